"""The memory of a GGUF file's tensors, if quantised matrices stay quantised. No torch."""

from math import prod
from pathlib import Path

from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type

from lightwell.model.checkpoint.gguf.header import read_header

KEPT: dict[Type, tuple[int, int]] = {
    Type.Q4_0: (4, 2), Type.Q4_1: (4, 4), Type.Q5_0: (8, 2), Type.Q5_1: (8, 4), Type.Q8_0: (8, 2), Type.Q4_K: (4, 20),
    Type.Q5_K: (8, 20), Type.Q6_K: (8, 18), Type.IQ4_NL: (4, 2),
}  # fmt: skip
"""By format: the bits of a code in memory, and the bytes of a block's scales, mins and factors."""


def kept_bytes(path: Path, item_size: int) -> tuple[int, int]:
    """Return the bytes of a file's quantised matrices, and of all other tensors in numbers of `item_size` bytes.

    Raises ModelLoadError for a file that cannot be read.
    """
    quantized = plain = 0
    for entry in read_header(path, with_texts=False).tensors.values():
        count = prod(entry.shape)
        if entry.type in KEPT and len(entry.shape) == 2:
            bits, of_block = KEPT[entry.type]
            quantized += count * bits // 8 + count // GGML_QUANT_SIZES[entry.type][0] * of_block
        else:
            plain += count * item_size
    return quantized, plain
