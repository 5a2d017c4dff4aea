"""The memory of a GGUF file's tensors, if quantised matrices stay quantised. No torch."""

from math import prod
from pathlib import Path

from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type

from lightwell.model.checkpoint.gguf.header import read_header

KEPT: dict[Type, tuple[int, int]] = {
    Type.Q4_0: (4, 2), Type.Q4_1: (4, 4), Type.Q5_0: (5, 2), Type.Q5_1: (5, 4), Type.Q8_0: (8, 2), Type.Q4_K: (4, 20),
    Type.Q5_K: (5, 20), Type.Q6_K: (6, 18), Type.IQ4_NL: (4, 2),
}  # fmt: skip
"""By format: the bits of a code, and the bytes of a block's scales, mins and factors."""


def bits_kept(kind: Type, *, on_card: bool) -> int:
    """Return the bits of a code in memory: our CPU kernels store 4 or 8."""
    bits = KEPT[kind][0]
    return bits if on_card or bits == 4 else 8


def kept_bytes(path: Path, item_size: int, *, on_card: bool = False) -> tuple[int, int]:
    """Return the bytes of a file's quantised matrices, and of all other tensors in numbers of `item_size` bytes.
    on_card: whether a GPU stores them.

    Raises ModelLoadError for a file that cannot be read.
    """
    quantized = plain = 0
    for entry in read_header(path, with_texts=False).tensors.values():
        count = prod(entry.shape)
        if entry.type in KEPT and len(entry.shape) == 2:
            quantized += count * bits_kept(entry.type, on_card=on_card) // 8
            quantized += count // GGML_QUANT_SIZES[entry.type][0] * KEPT[entry.type][1]
        else:
            plain += count * item_size
    return quantized, plain
