"""Low-rank adapters: changes of a layer's product for the rows that have an adapter (LoRA: Hu et al. 2021,
arXiv:2106.09685).

All rows share the product with the network's own weight; the adapter's product is added to it.

Axes: rows, in, out, R the sum of the ranks of a layer's adapted parts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Self

from torch import Tensor

from lightwell.model.batch import Batch
from lightwell.model.layers.linear import Linear


class LowRank(NamedTuple):
    """The change of one layer: x -> (x A^T) B^T, with the adapter's scale in B."""

    down: Linear
    """A [R, in]"""
    up: Linear
    """B [out, R]"""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the addend of the layer's product: x [rows, in] -> [rows, out]."""
        return self.up(self.down(x))


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Adapter:
    """An adapter of one network."""

    changes: Mapping[Linear, LowRank]
    """The changes by layer."""


class AdaptedRows:
    """The adapters of a batch's rows. A row's product depends only on that row and its adapter."""

    def __init__(self, adapters: Sequence[Adapter | None]) -> None:
        """Keep the adapter of each row, or None for a row without one."""
        self._adapters = adapters
        self.runs: list[tuple[slice, Adapter]] = []
        """The runs of rows with one adapter, in order."""
        start = 0
        for adapter, run in groupby(adapters):
            stop = start + sum(1 for _ in run)
            if adapter is not None:
                self.runs.append((slice(start, stop), adapter))
            start = stop

    @classmethod
    def of(cls, batch: Batch) -> Self | None:
        """Return the adapters of a batch's rows, or None if no span has an adapter."""
        if not batch.is_adapted:
            return None
        adapters: list[Adapter | None] = []
        for span in batch.spans:
            assert span.adapter is None or isinstance(span.adapter, Adapter)
            adapters += [span.adapter] * span.num_rows
        return cls(adapters)

    def at(self, rows: Sequence[int]) -> Self:
        """Return the adapters of these rows, in their order."""
        return type(self)([self._adapters[row] for row in rows])

    def changes(self, linear: Linear, num_rows: int) -> Iterator[tuple[slice, LowRank]]:
        """Yield the runs among the first `num_rows` rows with a change of this layer, and the change."""
        for rows, adapter in self.runs:
            change = adapter.changes.get(linear)
            if change is not None and rows.start < num_rows:
                yield slice(rows.start, min(rows.stop, num_rows)), change

    def add(self, linear: Linear, x: Tensor, y: Tensor) -> Tensor:
        """Add the changes of the rows' adapters to y [rows, out], the layer's product with x [rows, in], and return y.

        x holds the first rows of the batch.
        """
        for rows, change in self.changes(linear, len(x)):
            y[rows].add_(change(x[rows]))
        return y


def multiply(linear: Linear, x: Tensor, adapted: AdaptedRows | None) -> Tensor:
    """Return the product [rows, out] of a layer without activation with x [rows, in], changed by the rows' adapters."""
    y = linear(x)
    return y if adapted is None else adapted.add(linear, x, y)
