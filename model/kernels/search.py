"""Searches along rows at memory's speed, where torch and numpy take one number at a time.

Axes: R rows, V numbers of a row.
"""

import torch
from torch import Tensor

from model.kernels.checks import check_numbers
from model.kernels.library import kernels


def argmax(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first index of the largest number in each row of x [R, V], [R] int64, and that number, [R] float32.

    If a row holds a NaN, it is the first of them.
    """
    kind = check_numbers("x", x, 2)
    num_rows, width = x.shape
    if width == 0:
        raise ValueError("x has rows of 0 numbers; at least 1 is accepted")
    places, numbers = torch.empty(num_rows, dtype=torch.int64), torch.empty(num_rows)
    kernels().call(f"argmax_{kind}", "pllpp", x.data_ptr(), num_rows, width, places.data_ptr(), numbers.data_ptr())
    return places, numbers
