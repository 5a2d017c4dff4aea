"""Says which keys each row sees, where its patterns go, and where sums wait for the next of the card's kernels.

Axes: T rows, H query heads, D head dimension.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from model.kernels.cuda.attention_shapes import TILE_ROWS, width_of


@dataclass(frozen=True, slots=True, eq=False)
class PagedKeys:
    """Which cached keys each row sees, on the card: those of its own span that a causal mask and a window leave."""

    blocks: Tensor
    """[n] int32: the blocks of all spans, each span's in the order of its keys."""
    table_starts: Tensor
    """[span] int32: the index in `blocks` of a span's first block."""
    lengths: Tensor
    """[span] int32: the keys of a span; in a span of none a row sees nothing and gets zeros."""
    positions: Tensor
    """[T] int32: each row's own position."""
    causal: bool
    """Whether a row at p sees keys k <= p only."""
    window: int | None
    """The window w, or None: a row at p sees keys at |p - k| < w only."""


@dataclass(frozen=True, slots=True, eq=False)
class PatternRows:
    """Where one layer's attention writes patterns, each over all keys of its span; keys that are not seen get 0."""

    slots: Tensor
    """[n] int32: for a row with `row_slots` i, elements i .. i + H - 1 are the slots of its heads; -1 for a head that
    nobody asks for.
    """
    row_slots: Tensor
    """[T] int32, or -1 for a row that nobody asks for."""
    starts: Tensor
    """[T] int32: the index in `out` of a row's slot 0."""
    strides: Tensor
    """[T] int32: the distance between two slots of a row."""
    out: Tensor
    """[n] float32, fewer than 2**31."""


class Arrivals:
    """Counts of programs that share a row's keys and are done: all are 0 between two launches. Kernels that count in
    the same place must run one after the other.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self._counts: list[Tensor] = []

    def of(self, size: int, device: torch.device) -> Tensor:
        """Return `size` counts or more, int32. Earlier ones stay where they are: captured graphs count there."""
        if not self._counts or len(self._counts[-1]) < size:
            self._counts.append(torch.zeros(size, dtype=torch.int32, device=device))
        return self._counts[-1]


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Room for sums over keys, from one kernel or program to the next; every layer uses the same."""

    z: Tensor
    """[tiles, H, pieces, D] float32; for tiles of several rows any room for each tile's own sums."""
    m: Tensor
    """[tiles, H, pieces] float32: the largest scores; for tiles of several rows [T, H], or nothing without patterns."""
    l: Tensor
    """The sums of exponentials, of m's shape."""
    arrivals: Tensor
    """[n] int32, all 0: at least one for each tile and query head; unused for tiles of several rows."""

    @classmethod
    def of_single_rows(
        cls, num_tiles: int, num_heads: int, num_pieces: int, dim: int, device: torch.device, arrivals: Arrivals
    ) -> "Parts":
        """Return room for so many tiles of one row each, with at most so many pieces of keys."""
        shape = num_tiles, num_heads, num_pieces
        z = torch.empty((*shape, dim), dtype=torch.float32, device=device)
        m, l = torch.empty((2, *shape), dtype=torch.float32, device=device).unbind()
        return cls(z, m, l, arrivals.of(num_tiles * num_heads, device))

    @classmethod
    def of_tiles(cls, num_tiles: int, num_rows: int, num_heads: int, dim: int, device: torch.device) -> "Parts":
        """Return room for so many tiles of several rows. num_rows: T where patterns are written, else 0."""
        z = torch.empty((num_tiles, TILE_ROWS, num_heads, width_of(dim)), dtype=torch.float32, device=device)
        m, l = torch.empty((2, num_rows, num_heads), dtype=torch.float32, device=device).unbind()
        return cls(z, m, l, torch.empty(0, dtype=torch.int32, device=device))
