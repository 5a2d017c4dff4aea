"""The points of a decoder's program: the place of each point's numbers between two steps.

Axes: n rows that a hook reads, R rows, d model width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from lightwell.model.kernels.program import Register
from lightwell.model.layers.lora import AdaptedRows

Finish = Callable[[Tensor, AdaptedRows | None], Tensor]
"""Computes a point [n, ...] from the numbers [n, ...] at its place and the adapters of these rows."""


@dataclass(frozen=True, slots=True)
class Place:
    """Some columns of a register between two steps."""

    step: int
    """The number of steps before it."""
    register: Register | None = None
    """None for queries, cached keys, scores and patterns, which attention keeps or computes again."""
    row_width: int = 0
    """The numbers of a row of the register there."""
    first: int = 0
    """The first column."""
    shape: tuple[int, ...] = ()
    """The numbers of a row: [d], or [heads, D]."""
    finish: Finish | None = None
    """The computation of the point from these numbers, or None if they are the point."""


Points = Mapping[str, Place]
"""The places of one layer's points, by short name."""
