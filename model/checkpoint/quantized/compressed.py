"""Reads matrices as the package compressed-tensors writes them (github.com/vllm-project/compressed-tensors).

pack-quantized: `weight_packed` int32 [out, in bits / 32], neighbouring inputs in a word, each code plus 2^(bits - 1);
`weight_shape` is out and in. int-quantized: `weight` int8 [out, in]. Both have `weight_scale`, for each group of inputs
of an output, for each output or for all, and unless zeros are 0 `weight_zero_point`: packed over outputs as codes are
over inputs, or int8 of the shape of the scales. `weight_g_idx` is the group of each input if they are out of order. A
number is (code - zero) * scale. float-quantized: see `fp8`; mxfp4-pack-quantized: see
`mxfp4`.

Only weights are read so: scales of activations, which stay in the dtype, are left out.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from model.checkpoint.folder import ModelLoadError
from model.checkpoint.quantized import fp8, mxfp4
from model.checkpoint.quantized.parts import SCALE_DTYPES, Parts
from model.checkpoint.quantized.whole_numbers import affine_rows, unpacked
from model.checkpoint.stored_tensor import StoredTensor
from model.quantized import GroupedRows

PARTS = (
    *("weight_packed", "weight_shape", "weight", "weight_scale", "weight_zero_point", "weight_g_idx"),
    *("input_scale", "input_zero_point", "output_scale", "output_zero_point"),
)
"""The tensors of a matrix."""


def read_matrix(parts: Parts) -> StoredTensor:
    """Return a matrix as one tensor. Raises ModelLoadError for parts that do not fit."""
    if "weight_packed" in parts.tensors:
        is_mxfp4 = parts.tensors["weight_packed"].dtype == "U8"
        return mxfp4.read_parts(parts, "weight_packed", "weight_scale", (None, None)) if is_mxfp4 else _packed(parts)
    codes = parts.tensor("weight", ("I8", "F8_E4M3"), None, None)
    if codes.dtype == "F8_E4M3":
        return fp8.read_matrix(parts)
    return _affine(parts, (codes.shape[0], codes.shape[1]), 8, lambda: _without_sign(codes.read(), 8))


def _packed(parts: Parts) -> StoredTensor:
    """Return a matrix of codes that are packed in words."""
    words = parts.tensor("weight_packed", ("I32",), None, None)
    num_outputs, num_inputs = parts.tensor("weight_shape", ("I64", "I32"), 2).read().tolist()
    fitting = [bits for bits in parts.scheme.bits if words.shape == (num_outputs, -(-num_inputs * bits // 32))]
    if not fitting:
        raise ModelLoadError(
            f"weights: {parts.name}.weight_packed is {list(words.shape)} and weight_shape {[num_outputs, num_inputs]}; "
            f"codes of {' or '.join(map(str, parts.scheme.bits))} bits are expected"
        )
    bits = fitting[0]
    return _affine(parts, (num_outputs, num_inputs), bits, lambda: unpacked(words.read(), bits)[:, :num_inputs])


def _affine(parts: Parts, shape: tuple[int, int], bits: int, read_codes: Callable[[], Tensor]) -> StoredTensor:
    """Return a matrix of whole numbers. read_codes: returns them without a sign [out, in] uint8."""
    num_outputs, num_inputs = shape
    grids = [(1, 1), *((num_outputs, count) for count in parts.group_counts(num_inputs))]
    scales, grid = parts.scales("weight_scale", SCALE_DTYPES, grids)
    zeros, num_words = parts.tensors.get("weight_zero_point"), -(-num_outputs * bits // 32)
    if zeros is not None and zeros.dtype == "I32":
        parts.tensor("weight_zero_point", ("I32",), num_words, grid[1])
    elif zeros is not None:
        parts.scales("weight_zero_point", ("I8",), [grid])
    read_groups = partial(parts.groups_of_inputs, "weight_g_idx", num_inputs, grid[1])

    def read() -> GroupedRows:
        if zeros is None:
            found = torch.full(grid, 1 << bits - 1, dtype=torch.uint8)
        elif zeros.dtype == "I32":
            found = unpacked(zeros.read().T, bits).T[:num_outputs]
        else:
            found = _without_sign(zeros.read().view(grid), bits)
        of_groups = found.expand(num_outputs, -1), scales.read().view(grid).expand(num_outputs, -1)
        return affine_rows(read_codes(), *of_groups, bits, read_groups())

    return parts.grouped(shape, read)


def _without_sign(numbers: Tensor, bits: int) -> Tensor:
    """Return whole numbers with a sign, int8, plus 2^(bits - 1): uint8."""
    return (numbers.to(torch.int16) + (1 << bits - 1)).to(torch.uint8)
