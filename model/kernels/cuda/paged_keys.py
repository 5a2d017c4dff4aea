"""Arguments of kernels on a GPU: visible keys, states, places of patterns, and room for sums between kernels.

Axes: T rows, H query heads, D head dimension.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lightwell.model.kernels.cuda.attention_shapes import TILE_ROWS, width_of


@dataclass(frozen=True, slots=True, eq=False)
class PagedKeys:
    """The cached keys that each row sees: the keys of its span within a causal mask and a window."""

    blocks: Tensor
    """[n] int32: the blocks of all spans, in the order of each span's keys."""
    table_starts: Tensor
    """[span] int32: the index in `blocks` of a span's first block."""
    lengths: Tensor
    """[span] int32: the number of keys of a span. Rows of a span without keys get zeros."""
    positions: Tensor
    """[T] int32: the position of each row."""
    causal: bool
    """Whether a row at p sees keys k <= p only."""
    window: int | None
    """The window w, or None: a row at p sees keys at |p - k| < w only."""


@dataclass(frozen=True, slots=True, eq=False)
class PatternRows:
    """The places of one layer's patterns, each over all keys of its span; hidden keys get 0."""

    slots: Tensor
    """[n] int32: for a row with `row_slots` i, elements i .. i + H - 1 are the slots of its heads; -1 for a head
    without a requested pattern.
    """
    row_slots: Tensor
    """[T] int32, or -1 for a row without requested patterns."""
    starts: Tensor
    """[T] int32: the index in `out` of a row's slot 0."""
    strides: Tensor
    """[T] int32: the distance between two slots of a row."""
    out: Tensor
    """[n] float32, fewer than 2**31."""


@dataclass(frozen=True, slots=True, eq=False)
class StateSpans:
    """The rows and states of the spans, [span] int32 each; padding has no rows."""

    first_rows: Tensor
    counts: Tensor
    """The numbers of rows."""
    reads: Tensor
    """The states before the step, or -1 at position 0."""
    writes: Tensor
    are_single: bool
    """True if no span has several rows."""
    has_loose_rows: bool
    """True if some rows may be outside of all spans."""

    def room(self, num_rows: int, width: int, like: Tensor) -> Tensor:
        """Return room for rows [T, width] of the dtype of `like`; rows outside of all spans are 0."""
        return (like.new_zeros if self.has_loose_rows else like.new_empty)(num_rows, width)


class Arrivals:
    """Counts of finished programs that share a row's keys: all are 0 between two launches. Kernels that use the same
    counts must run one after the other.
    """

    def __init__(self) -> None:
        self._counts: list[Tensor] = []

    def of(self, size: int, device: torch.device) -> Tensor:
        """Return `size` counts or more, int32. Earlier tensors are kept, since captured graphs use them."""
        if not self._counts or len(self._counts[-1]) < size:
            self._counts.append(torch.zeros(size, dtype=torch.int32, device=device))
        return self._counts[-1]


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Room for sums over keys between kernels or programs, the same for every layer."""

    z: Tensor
    """[tiles, H, pieces, D] float32; for tiles of several rows [tiles, TILE_ROWS, H, D rounded up]."""
    m: Tensor
    """The largest scores, [tiles, H, pieces] float32; for tiles of several rows [T, H], or [0, H] without patterns."""
    l: Tensor
    """The sums of exponentials, with the shape of m."""
    arrivals: Tensor
    """[n] int32, all 0: at least one for each tile and query head; unused for tiles of several rows."""

    @classmethod
    def of_single_rows(
        cls, num_tiles: int, num_heads: int, num_pieces: int, dim: int, device: torch.device, arrivals: Arrivals
    ) -> "Parts":
        """Return room for tiles of one row each, with at most `num_pieces` pieces of keys."""
        shape = num_tiles, num_heads, num_pieces
        z = torch.empty((*shape, dim), dtype=torch.float32, device=device)
        m, l = torch.empty((2, *shape), dtype=torch.float32, device=device).unbind()
        return cls(z, m, l, arrivals.of(num_tiles * num_heads, device))

    @classmethod
    def of_tiles(cls, num_tiles: int, num_rows: int, num_heads: int, dim: int, device: torch.device) -> "Parts":
        """Return room for tiles of several rows. num_rows: T if patterns are written, else 0."""
        z = torch.empty((num_tiles, TILE_ROWS, num_heads, width_of(dim)), dtype=torch.float32, device=device)
        m, l = torch.empty((2, num_rows, num_heads), dtype=torch.float32, device=device).unbind()
        return cls(z, m, l, torch.empty(0, dtype=torch.int32, device=device))
