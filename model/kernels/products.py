"""Products of rows with a weight that is stored in blocks of 64 outputs, as `cpu/products/products.h` describes.

Each 64 inputs are summed in order, and these sums are added in order. So the bits of a row depend only on the row, on
any number of threads. They are the same at every level of CPU, except with DOT, which uses the CPU's own instruction.

Axes: R rows, K inputs, N outputs.
"""

import math
from enum import IntEnum
from typing import Literal

import torch
from torch import Tensor

from lightwell.model.config import Activation
from lightwell.model.kernels.checks import (
    ACTIVATIONS,
    address_of,
    check_activation,
    check_axes,
    check_indices,
    check_numbers,
)
from lightwell.model.kernels.library import kernels

BLOCK = 64
"""Outputs that are stored side by side; the last block is padded with zeros."""

Arithmetic = Literal[0, 1]
WIDEN: Arithmetic = 0
"""The arithmetic that widens bfloat16 numbers to float32."""
DOT: Arithmetic = 1
"""The arithmetic that multiplies two bfloat16 inputs at a time, if the CPU's level has an instruction for it, or else
equals WIDEN.
"""

Form = IntEnum("Form", "FLOAT32 WIDENED DOT INT8 GROUPED GROUPED_DOT GROUPED_BYTES INT8_BYTES", start=0)
"""The layouts and arithmetics of weights: `Form` of `cpu/decoder.h`."""

MOST_COLUMNS = 1 << 24
"""Most columns that `find_largest` can distinguish."""

_LARGE_PAGE = 2 << 20
"""Bytes of the system's large pages: products of few rows with weights in them are 10 to 20 % faster."""


def _aligned_room(dtype: torch.dtype, *shape: int) -> Tensor:
    """Return an array at the start of a large page, unless smaller than one. Unused bytes take no memory."""
    count = math.prod(shape)
    if count * dtype.itemsize < _LARGE_PAGE:
        return torch.empty(shape, dtype=dtype)
    room = torch.empty(count + _LARGE_PAGE // dtype.itemsize, dtype=dtype)
    first = -room.data_ptr() % _LARGE_PAGE // dtype.itemsize
    return room[first : first + count].view(shape)


class LaidWeight:
    """A weight [N, K] in a layout that the kernels read. Each form is a subclass."""

    num_inputs: int
    """K"""
    num_outputs: int
    """N"""
    packed: Tensor
    """The memory of the layout."""
    row_dtype: torch.dtype
    """The dtype of the rows that the weight multiplies."""
    stored: str
    """The format in which the numbers are stored, as text for people."""
    form: Form
    _kernels: dict[torch.dtype, tuple[str, tuple[int, ...]]]
    """For each accepted dtype of rows the end of the kernels' names, and their last arguments."""

    def to_dense(self) -> Tensor:
        """Return the numbers of the weight [N, K], in the dtype of its rows."""
        raise NotImplementedError

    def multiply(self, x: Tensor, bias: Tensor | None = None, activation: Activation | None = None) -> Tensor:
        """Return activation(x W^T + bias), rounded once: x [R, K], contiguous, bias [N] of its dtype -> [R, N]."""
        name, extra = self._find_kernel(x)
        bias_address = address_of("bias", bias, (x.dtype,), (self.num_outputs,))
        check_activation(activation)
        out = x.new_empty(len(x), self.num_outputs)
        kernels().call(
            f"product_{name}",
            "ppppllll" + "l" * len(extra),
            *(x.data_ptr(), self.packed.data_ptr(), bias_address, out.data_ptr()),
            *(*x.shape, self.num_outputs, ACTIVATIONS[activation], *extra),
        )
        return out

    def find_largest(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the first index of the largest number of each row of `multiply(x)`, int64 [R], and that number,
        float32 [R], or None if a number of the product is not finite. x is the same as in `multiply`.

        Raises ValueError for a weight with no outputs or too many.
        """
        name, extra = self._find_kernel(x)
        if not 0 < self.num_outputs <= MOST_COLUMNS:
            raise ValueError(f"the weight has {self.num_outputs} outputs; 1 to {MOST_COLUMNS} are accepted")
        places, numbers = torch.empty(len(x), dtype=torch.int64), torch.empty(len(x))
        finite = torch.empty(1, dtype=torch.int64)
        kernels().call(
            f"find_largest_{name}",
            "pplllppp" + "l" * len(extra),
            *(x.data_ptr(), self.packed.data_ptr(), *x.shape, self.num_outputs),
            *(places.data_ptr(), numbers.data_ptr(), finite.data_ptr(), *extra),
        )
        return (places, numbers) if finite.item() else None

    def _find_kernel(self, x: Tensor) -> tuple[str, tuple[int, ...]]:
        """Check rows, and return the entry of `_kernels` for them."""
        check_axes("x", x, self._kernels, 2)
        if x.shape[1] != self.num_inputs:
            raise ValueError(f"x has rows of {x.shape[1]}; the weight takes {self.num_inputs}")
        return self._kernels[x.dtype]


class TableWeight(LaidWeight):
    """A weight with readable rows, such as a token table."""

    _gather: str
    """The kernel that reads rows."""

    def rows(self, ids: Tensor) -> Tensor:
        """Return rows `ids` [T] int64 of the weight: [T, K] in the dtype of its rows.

        Raises ValueError for an index outside the weight.
        """
        ids = ids.contiguous()
        check_axes("ids", ids, (torch.int64,), 1)
        check_indices("ids", ids, self.num_outputs)
        found = torch.empty(len(ids), self.num_inputs, dtype=self.row_dtype)
        addresses = self.packed.data_ptr(), ids.data_ptr(), len(ids), self.num_inputs, found.data_ptr()
        kernels().call(self._gather, "ppllp", *addresses)
        return found


class BlockedWeight(TableWeight):
    """A weight [N, K], float32 or bfloat16. The same memory is read for any number of rows."""

    def __init__(self, weight: Tensor, arithmetic: Arithmetic = WIDEN, row_dtype: torch.dtype | None = None) -> None:
        """Copy weight [N, K]. arithmetic: of bfloat16 rows. row_dtype: the weight's own dtype (the default) or float32.

        Rows of the weight's dtype and of float32 can be multiplied.
        """
        kind = check_numbers("weight", weight, 2)
        check_arithmetic(arithmetic)
        if row_dtype not in (None, weight.dtype, torch.float32):
            raise ValueError(f"row_dtype is {row_dtype}; {weight.dtype} or torch.float32 is accepted")
        self.dtype = weight.dtype
        """The dtype in which the weight is stored."""
        self.row_dtype = row_dtype or weight.dtype
        self.num_outputs, self.num_inputs = weight.shape
        self.stored = str(weight.dtype).removeprefix("torch.")
        self.form = Form.FLOAT32 if weight.dtype == torch.float32 else Form.WIDENED
        if weight.dtype == self.row_dtype == torch.bfloat16 and arithmetic == DOT:
            self.form = Form.DOT
        self._kernels = {torch.float32: (kind, ())}
        if weight.dtype == torch.bfloat16:
            self._kernels = {torch.bfloat16: (kind, (int(arithmetic),)), torch.float32: ("f32_bf16", ())}
        self._kind, together = kind, 4 // weight.itemsize
        self._gather = f"gather_rows_{kind}" if self.row_dtype == weight.dtype else "gather_rows_bf16_to_f32"
        num_blocks, num_steps = -(-self.num_outputs // BLOCK), -(-self.num_inputs // together)
        self.packed = _aligned_room(weight.dtype, num_blocks, num_steps, BLOCK, together)
        """The memory: [ceil(N / 64), K, 64, 1] of float32, [ceil(N / 64), ceil(K / 2), 64, 2] of bfloat16."""
        kernels().call(
            f"pack_weight_{kind}", "ppll", weight.data_ptr(), self.packed.data_ptr(), self.num_inputs, self.num_outputs
        )

    def to_dense(self) -> Tensor:
        """Return a copy of the weight [N, K] with its original bits, in the dtype of its rows."""
        weight = self.packed.new_empty(self.num_outputs, self.num_inputs)
        kernels().call(
            f"unpack_weight_{self._kind}",
            "ppll",
            *(self.packed.data_ptr(), weight.data_ptr(), self.num_inputs, self.num_outputs),
        )
        return weight.to(self.row_dtype)


def check_arithmetic(arithmetic: Arithmetic) -> None:
    """Raise ValueError for an unknown arithmetic."""
    if arithmetic not in (WIDEN, DOT):
        raise ValueError(f"arithmetic is {arithmetic!r}; {WIDEN} and {DOT} are accepted")
