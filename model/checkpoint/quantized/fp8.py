"""Reads matrices of 8-bit floating-point numbers, e4m3, which share scales. They are no whole numbers times a scale, so
they are widened when they are read.

`weight` e4m3 [out, in], and `weight_scale_inv`, as DeepSeek's files call it (arXiv:2412.19437), or `weight_scale`: one
for all, one for each output, or one for each block of outputs and inputs. A number is code * scale.
"""

from torch import Tensor

from model.checkpoint.quantized.parts import SCALE_DTYPES, Parts
from model.checkpoint.stored_tensor import StoredTensor

PARTS = ("weight", "weight_scale_inv", "weight_scale", "input_scale")
"""The tensors of a matrix."""


def read_matrix(parts: Parts) -> StoredTensor:
    """Return a matrix as one tensor. Raises ModelLoadError for parts that do not fit."""
    codes = parts.tensor("weight", ("F8_E4M3",), None, None)
    num_outputs, num_inputs = codes.shape
    blocks = [(num_outputs, num_inputs), (1, num_inputs), *parts.scheme.blocks]
    part = "weight_scale_inv" if "weight_scale_inv" in parts.tensors else "weight_scale"
    grids = [(-(-num_outputs // rows), -(-num_inputs // columns)) for rows, columns in blocks]
    scales, grid = parts.scales(part, (*SCALE_DTYPES, "F8_E8M0"), grids)
    rows, columns = blocks[grids.index(grid)]

    def read() -> Tensor:
        each = scales.read().float().view(grid).repeat_interleave(rows, 0)[:num_outputs]
        return codes.read().float() * each.repeat_interleave(columns, 1)[:, :num_inputs]

    return parts.stored((num_outputs, num_inputs), read, None)
