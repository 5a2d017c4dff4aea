"""Reads matrices as AutoGPTQ and GPTQModel write them (Frantar et al. 2022, arXiv:2210.17323).

`qweight` int32 [in bits / 32, out]: each word holds neighbouring inputs of an output. `qzeros` int32
[groups, out bits / 32]: each word holds neighbouring outputs. `scales` [groups, out], and `g_idx` [in]: the group of
each input. A number is (q - zero) * scale; the format gptq holds every zero less 1, with a borrow from the next one in
a word, and gptq_v2 as it is.
"""

from functools import partial

from model.checkpoint.quantized.parts import SCALE_DTYPES, Parts
from model.checkpoint.quantized.whole_numbers import affine_rows, unpacked
from model.checkpoint.stored_tensor import StoredTensor
from model.quantized import GroupedRows

PARTS = ("qweight", "qzeros", "scales", "g_idx")
"""The tensors of a matrix."""
_ONES = {4: 0x11111111, 8: 0x01010101}
"""A word of ones, by the bits of each."""


def read_matrix(parts: Parts) -> StoredTensor:
    """Return a matrix as one tensor. Raises ModelLoadError for parts that do not fit."""
    (bits,) = parts.scheme.bits
    codes = parts.tensor("qweight", ("I32",), None, None)
    num_inputs, num_outputs = codes.shape[0] * 32 // bits, codes.shape[1]
    grids = [(count, num_outputs) for count in parts.group_counts(num_inputs)]
    scales, (num_groups, _) = parts.scales("scales", SCALE_DTYPES, grids)
    zeros = parts.tensor("qzeros", ("I32",), num_groups, num_outputs * bits // 32)
    read_groups = partial(parts.groups_of_inputs, "g_idx", num_inputs, num_groups)

    def read() -> GroupedRows:
        words = zeros.read() + (_ONES[bits] if parts.scheme.is_less_one else 0)
        of_groups = unpacked(words, bits).T.contiguous(), scales.read().view(num_groups, -1).T.contiguous()
        return affine_rows(unpacked(codes.read().T, bits), *of_groups, bits, read_groups())

    return parts.grouped((num_outputs, num_inputs), read)
