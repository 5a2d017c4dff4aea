"""Products with an int8 weight on a CPU. Knows torch's private oneDNN operators for int8; refuses to know what a layer
is.

Batch invariant by construction, since whole numbers are added up exactly in any order (`int8_kernels`). So few rows,
which wait for the weight to be read, are multiplied by our own kernel, which does everything else on the way; and many,
which wait for arithmetic, by oneDNN where it has matrix units for bytes (AMX), both from one copy of the weight. Where
it has none, or would pack the weight differently, our own kernel does all.

Axes: rows, in, out.
"""

import ctypes
import time
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F

from model.layers import int8_kernels as kernels
from model.layers.arrays import bits
from model.layers.int8_rows import Int8Rows, dequantize
from model.layers.packed_weight import PostOp

_FEW_DIGITS = 32
"""Up to so many rows of digits our own kernel is the faster one."""

_MOST_SUMS = 16 << 20
"""Bytes of sums that are made before they are used: what a cache may hold."""

_SLOW_PRODUCT = 4e-3
"""Seconds of processor time for the product that is tried: with matrix units it took a tenth, without ten times that.
"""

_NUM_DIGITS = {torch.float32: 3, torch.bfloat16: 2}

_ACTIVATIONS: dict[PostOp, int] = {
    ("none", ""): kernels.NONE,
    ("swish", ""): kernels.SILU,
    ("gelu", "none"): kernels.GELU,
    ("gelu", "tanh"): kernels.GELU_TANH,
    ("relu", ""): kernels.RELU,
}


class Int8Weight:
    """A `PackedWeight`, of float32 or bfloat16 where kernels are compiled (`arrays.why_not_compiled`)."""

    def __init__(self, rows: Int8Rows) -> None:
        """Drop `rows`: this is a copy."""
        self._shape = rows.values.shape
        self._dtype = rows.dtype
        self._scales = rows.scales.numpy()
        blocks = _in_blocks(rows.values)
        self._packed = _packed_alike(rows.values, blocks)
        self._blocks = blocks.numpy() if self._packed is None else _memory_of(self._packed)[: len(blocks)]
        """The weight as `int8_kernels` has it: of what oneDNN packed the same memory."""
        self._starts = (
            -kernels.ZERO * F.pad(rows.values.sum(1, dtype=torch.int32), (0, -self._shape[0] % kernels.BLOCK)).numpy()
        )
        self._unscaled = torch.ones(self._shape[0]), torch.zeros(self._shape[0], dtype=torch.int32)

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None, post_op: PostOp) -> torch.Tensor:
        """As `PackedWeight` says."""
        out = x.new_empty(len(x), self._shape[0])
        num_rows = max(_FEW_DIGITS, _MOST_SUMS // (4 * _NUM_DIGITS[x.dtype] * self._shape[0]))
        for first in range(0, len(x), num_rows):
            part = slice(first, first + num_rows)
            self._multiply_into(out[part], x[part], bias, _ACTIVATIONS[post_op])
        return out

    def _multiply_into(self, out: torch.Tensor, x: torch.Tensor, bias: torch.Tensor | None, activation: int) -> None:
        y = bits(out)
        rest = y[0, :0] if bias is None else bits(bias), activation, y
        num_digits = _NUM_DIGITS[x.dtype]
        if self._packed is None or len(x) * num_digits <= _FEW_DIGITS:
            kernels.multiply_here(bits(x), self._blocks, self._starts, self._scales, *rest, num_digits)
            return
        digits = torch.empty(len(x), num_digits, x.shape[1], dtype=torch.uint8)
        row_scales = np.empty(len(x), np.float32)
        kernels.to_digits(bits(x), digits.numpy(), row_scales)
        sums = _exact_products(digits.flatten(0, 1).view(torch.int8), self._packed, *self._unscaled)
        kernels.finish(sums.numpy().reshape(len(x), num_digits, -1), row_scales, self._scales, *rest)

    def to_dense(self) -> torch.Tensor:
        """The numbers that stand for the weight [out, in], rounded to its dtype: a copy."""
        outputs, inputs = (kernels.filled_up(size) for size in self._shape)
        blocks = torch.from_numpy(self._blocks).view(outputs // kernels.BLOCK, -1, kernels.BLOCK, kernels.GROUP)
        values = blocks.transpose(1, 2).reshape(outputs, inputs)[: self._shape[0], : self._shape[1]]
        return dequantize(values, torch.from_numpy(self._scales), self._dtype)


def _in_blocks(values: torch.Tensor) -> torch.Tensor:
    """values [out, in] in the order that `int8_kernels` describes, flat."""
    outputs, inputs = (kernels.filled_up(size) for size in values.shape)
    filled = F.pad(values, (0, inputs - values.shape[1], 0, outputs - values.shape[0]))
    return filled.view(-1, kernels.BLOCK, inputs // kernels.GROUP, kernels.GROUP).transpose(1, 2).flatten()


def _packed_alike(values: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor | None:
    """values [out, in] packed by oneDNN, if its memory begins with these blocks and its products serve."""
    if not _onednn_serves():
        return None
    packed: torch.Tensor = torch.ops.onednn.qlinear_prepack(values, None)
    memory = torch.from_numpy(_memory_of(packed)[: len(blocks)])
    return packed if torch.equal(memory, blocks) else None


def _memory_of(packed: torch.Tensor) -> np.ndarray:
    """All bytes of what oneDNN packed, which must outlive this view."""
    operators = torch.ops.mkldnn
    array_type = ctypes.c_int8 * operators._nbytes(packed)
    return np.ctypeslib.as_array(array_type.from_address(operators.data_ptr(packed)))


def _exact_products(
    digits: torch.Tensor, packed: torch.Tensor, ones: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """digits times a packed weight: digits [rows, in] int8 -> [rows, out], whole numbers rounded once, to float32.

    ones and zeros [out]: what the operator wants as scales and zero points of the weight.
    """
    no_activation: tuple[str, list[None], str] = ("none", [], "")
    sums: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
        *(digits, 1.0, 0, packed, ones, zeros), None, *(1.0, 0, torch.float32), *no_activation
    )
    return sums


@cache
def _onednn_serves() -> bool:
    """Whether oneDNN multiplies signed bytes here without loss, and not by its reference code, which takes forever.

    A wrong guess of the latter costs time alone: the numbers are the same.
    """
    needed = ((torch.ops.onednn, ("qlinear_prepack", "qlinear_pointwise")), (torch.ops.mkldnn, ("data_ptr", "_nbytes")))
    if not all(hasattr(operators, name) for operators, names in needed for name in names):
        return False
    if min(_seconds_of_a_small_product() for _ in range(3)) > _SLOW_PRODUCT:
        return False
    outputs, inputs = 192, 4160
    generator = torch.Generator().manual_seed(0)
    values = 127 * torch.randint(-1, 2, (outputs, inputs), generator=generator, dtype=torch.int8)
    values[0] = 127
    for rows in (_FEW_DIGITS + 1, 64, 130):
        digits = torch.randint(-128, 128, (rows, inputs), generator=generator, dtype=torch.int8)
        digits[0] = -128
        if not torch.equal(_products_once(digits, values), (digits.double() @ values.double().T).float()):
            return False
    return True


def _seconds_of_a_small_product() -> float:
    """Of this thread alone, since on a busy machine threads wait for each other."""
    small, num_threads = torch.zeros(64, 256, dtype=torch.int8), torch.get_num_threads()
    torch.set_num_threads(1)
    started = time.thread_time()
    _products_once(small, small)
    seconds = time.thread_time() - started
    torch.set_num_threads(num_threads)
    return seconds


def _products_once(digits: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """`_exact_products` of a weight that is still to be packed, values [out, in]."""
    ones, zeros = torch.ones(len(values)), torch.zeros(len(values), dtype=torch.int32)
    return _exact_products(digits, torch.ops.onednn.qlinear_prepack(values, None), ones, zeros)
