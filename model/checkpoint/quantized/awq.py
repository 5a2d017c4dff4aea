"""Reads matrices as AutoAWQ's version gemm writes them (Lin et al. 2023, arXiv:2306.00978).

`qweight` int32 [in, out / 8]: each word holds eight outputs of four bits, the even ones first. `qzeros` int32
[groups, out / 8] in the same order, `scales` [groups, out]. A number is (q - zero) * scale.
"""

from torch import Tensor

from model.checkpoint.quantized.parts import SCALE_DTYPES, Parts
from model.checkpoint.quantized.whole_numbers import affine_rows, unpacked
from model.checkpoint.stored_tensor import StoredTensor
from model.quantized import GroupedRows

PARTS = ("qweight", "qzeros", "scales")
"""The tensors of a matrix."""
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place in a word of each of its eight outputs."""


def read_matrix(parts: Parts) -> StoredTensor:
    """Return a matrix as one tensor. Raises ModelLoadError for parts that do not fit."""
    codes = parts.tensor("qweight", ("I32",), None, None)
    num_inputs, num_outputs = codes.shape[0], 8 * codes.shape[1]
    grids = [(count, num_outputs) for count in parts.group_counts(num_inputs)]
    scales, (num_groups, _) = parts.scales("scales", SCALE_DTYPES, grids)
    zeros = parts.tensor("qzeros", ("I32",), num_groups, num_outputs // 8)

    def read() -> GroupedRows:
        of_groups = _turned(zeros.read()), scales.read().view(num_groups, -1).T.contiguous()
        return affine_rows(_turned(codes.read()), *of_groups, 4)

    return parts.grouped((num_outputs, num_inputs), read)


def _turned(words: Tensor) -> Tensor:
    """Return the numbers of some words, output by output: [n, out / 8] int32 -> [out, n] uint8."""
    in_order = unpacked(words, 4).view(len(words), -1, 8)[:, :, _PLACES]
    return in_order.flatten(1).T.contiguous()
