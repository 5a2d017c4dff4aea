"""Multiplies rows with a weight that is stored in blocks of 64 outputs: `cpu/products/products.h` says how.

Each 64 inputs are summed in order and these sums are added in order. So a row has the same bits whatever rows are next
to it and on any number of threads; and at every level of CPU, except by DOT, whose bits are those of the CPU's own
instruction.

Axes: R rows, K inputs, N outputs.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from model.config import Activation
from model.kernels.checks import ACTIVATIONS, check_axes, check_numbers, check_product
from model.kernels.embedding import gather_rows
from model.kernels.library import kernels

BLOCK = 64
"""Outputs that are stored side by side; the last block is padded with zeros."""

Arithmetic = Literal[0, 1]
WIDEN: Arithmetic = 0
"""The arithmetic that multiplies bfloat16 numbers as float32."""
DOT: Arithmetic = 1
"""The arithmetic that multiplies bfloat16 numbers two inputs at a time, if the level's CPU has an instruction for it;
else like WIDEN.
"""

_FLOAT32_FORM, _WIDENED_FORM, _DOT_FORM = range(3)
"""`Form` of `cpu/decoder.h`."""

MOST_COLUMNS = 1 << 24
"""Most columns that `find_largest` can distinguish."""

_LARGE_PAGE = 2 << 20
"""Bytes of the system's large pages, in which few rows pass over weights a tenth to a fifth faster."""


def _aligned_room(dtype: torch.dtype, *shape: int) -> Tensor:
    """Return an array that begins at the start of a large page, if it has some. What is left before it is never
    written, so it takes no memory.
    """
    count = math.prod(shape)
    if count * dtype.itemsize < _LARGE_PAGE:
        return torch.empty(shape, dtype=dtype)
    room = torch.empty(count + _LARGE_PAGE // dtype.itemsize, dtype=dtype)
    first = -room.data_ptr() % _LARGE_PAGE // dtype.itemsize
    return room[first : first + count].view(shape)


class BlockedWeight:
    """A weight [N, K], float32 or bfloat16, in the layout that the kernels read; the same memory serves any number of
    rows.
    """

    def __init__(self, weight: Tensor, arithmetic: Arithmetic = WIDEN, row_dtype: torch.dtype | None = None) -> None:
        """Copy weight [N, K]. arithmetic: of bfloat16 rows. row_dtype: of the rows that it is to multiply, the weight's
        own or float32.
        """
        kind = check_numbers("weight", weight, 2)
        check_arithmetic(arithmetic)
        if row_dtype not in (None, weight.dtype, torch.float32):
            raise ValueError(f"row_dtype is {row_dtype}; {weight.dtype} or torch.float32 is accepted")
        self.arithmetic: Arithmetic = arithmetic
        self.row_dtype = row_dtype or weight.dtype
        self.num_outputs, self.num_inputs = weight.shape
        self._kind, self._together = kind, 4 // weight.itemsize
        num_blocks, num_steps = -(-self.num_outputs // BLOCK), -(-self.num_inputs // self._together)
        self.packed = _aligned_room(weight.dtype, num_blocks, num_steps, BLOCK, self._together)
        """The memory: [ceil(N / 64), K, 64, 1] of float32, [ceil(N / 64), ceil(K / 2), 64, 2] of bfloat16."""
        kernels().call(
            f"pack_weight_{kind}", "ppll", weight.data_ptr(), self.packed.data_ptr(), self.num_inputs, self.num_outputs
        )

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype in which the weight is stored."""
        return self.packed.dtype

    @property
    def stored(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def form(self) -> int:
        if self.dtype == torch.float32:
            return _FLOAT32_FORM
        return _DOT_FORM if self.arithmetic == DOT and self.row_dtype == torch.bfloat16 else _WIDENED_FORM

    def to_dense(self) -> Tensor:
        """Return a copy of the weight [N, K] as it was given, bit for bit, in the dtype of its rows."""
        weight = self.packed.new_empty(self.num_outputs, self.num_inputs)
        kernels().call(
            f"unpack_weight_{self._kind}",
            "ppll",
            *(self.packed.data_ptr(), weight.data_ptr(), self.num_inputs, self.num_outputs),
        )
        return weight.to(self.row_dtype)

    def rows(self, ids: Tensor) -> Tensor:
        """Return rows `ids` [T] int64 of the weight, as it was given: [T, K] in the dtype of its rows."""
        table = self.packed.squeeze(-1) if self._together == 1 else self.packed
        return gather_rows(table, ids, num_rows=self.num_outputs, width=self.num_inputs, dtype=self.row_dtype)

    def multiply(self, x: Tensor, bias: Tensor | None = None, activation: Activation | None = None) -> Tensor:
        """Return activation(x W^T + bias), rounded once: x [R, K] -> [R, N] of the dtype of x.

        x and bias [N] have the weight's dtype, or float32.
        """
        name, extra = self._kernel("product", x, bias, activation)
        return compute_product(name, x, self.packed, self.num_outputs, bias, activation, *extra)

    def find_largest(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the first index of the largest number of each row of `multiply(x)`, int64 [R], and that number,
        float32 [R], or None if a number of the product is not finite. x is the same as in `multiply`.
        """
        return search_product(*self._kernel("find_largest", x), x, self.packed, self.num_outputs)

    def _kernel(
        self, name: str, x: Tensor, bias: Tensor | None = None, activation: Activation | None = None
    ) -> tuple[str, tuple[int, ...]]:
        """Check the operands; return the kernel's name for them, and the arguments that it takes at the end."""
        check_axes("x", x, (self.dtype, torch.float32), 2)
        kind = check_product(x, bias, activation, self.num_inputs, self.num_outputs)
        if x.dtype != self.dtype:
            return f"{name}_f32_bf16", ()
        return f"{name}_{kind}", (int(self.arithmetic),) if x.dtype == torch.bfloat16 else ()


def compute_product(
    name: str, x: Tensor, packed: Tensor, width: int, bias: Tensor | None, activation: Activation | None, *extra: int
) -> Tensor:
    """Return the output of a weight's `multiply`, `width` numbers a row, by a kernel; `extra`: its last arguments."""
    out = x.new_empty(len(x), width)
    addresses = x.data_ptr(), packed.data_ptr(), None if bias is None else bias.data_ptr(), out.data_ptr()
    signature = "ppppllll" + "l" * len(extra)
    kernels().call(name, signature, *addresses, *x.shape, width, ACTIVATIONS[activation], *extra)
    return out


def search_product(
    name: str, extra: tuple[int, ...], x: Tensor, packed: Tensor, num_outputs: int
) -> tuple[Tensor, Tensor] | None:
    """Return what `find_largest` of a weight does. name, extra: the kernel and what it takes at the end.

    Raises ValueError for a weight with no outputs or too many.
    """
    if not 0 < num_outputs <= MOST_COLUMNS:
        raise ValueError(f"the weight has {num_outputs} outputs; 1 to {MOST_COLUMNS} are accepted")
    places, numbers = torch.empty(len(x), dtype=torch.int64), torch.empty(len(x))
    finite = torch.empty(1, dtype=torch.int64)
    found = places.data_ptr(), numbers.data_ptr(), finite.data_ptr()
    signature = "pplllppp" + "l" * len(extra)
    kernels().call(name, signature, x.data_ptr(), packed.data_ptr(), *x.shape, num_outputs, *found, *extra)
    return (places, numbers) if finite.item() else None


def check_arithmetic(arithmetic: Arithmetic) -> None:
    """Raise ValueError unless it is one of the two."""
    if arithmetic not in (WIDEN, DOT):
        raise ValueError(f"arithmetic is {arithmetic!r}; {WIDEN} and {DOT} are accepted")
