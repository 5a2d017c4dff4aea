"""Adds what low-rank adapters change of a layer's product, for those rows of a batch that have an adapter: Hu et al.
2021, "LoRA: low-rank adaptation of large language models", arXiv:2106.09685.

The product with the network's own weight is the one that every row has, and stays as it is. It knows rows and layers;
it knows no files and no requests.

Axes: rows, in, out, R the ranks of a layer's adapted parts together.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Self

from torch import Tensor

from model.batch import Batch
from model.layers.linear import Linear


class LowRank(NamedTuple):
    """The change of one layer: x -> (x A^T) B^T, with the adapter's scale in B."""

    down: Linear
    """A [R, in]"""
    up: Linear
    """B [out, R]"""

    def __call__(self, x: Tensor) -> Tensor:
        """Return what is added to the layer's product: x [rows, in] -> [rows, out]."""
        return self.up(self.down(x))


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Adapter:
    """An adapter of one network, ready to be multiplied with."""

    changes: Mapping[Linear, LowRank]
    """By the layer that it changes."""


class AdaptedRows:
    """Which rows of a batch have which adapter. A row's product depends on that row and its adapter alone."""

    def __init__(self, adapters: Sequence[Adapter | None]) -> None:
        """Keep the adapter of each row, or None for a row of the network as it is."""
        self._adapters = adapters
        self.runs: list[tuple[slice, Adapter]] = []
        """The rows that have adapters, in order."""
        start = 0
        for adapter, run in groupby(adapters):
            stop = start + sum(1 for _ in run)
            if adapter is not None:
                self.runs.append((slice(start, stop), adapter))
            start = stop

    @classmethod
    def of(cls, batch: Batch) -> Self | None:
        """Return those of a batch, or None if none of its spans has an adapter."""
        if not batch.is_adapted:
            return None
        adapters: list[Adapter | None] = []
        for span in batch.spans:
            assert span.adapter is None or isinstance(span.adapter, Adapter)
            adapters += [span.adapter] * span.num_rows
        return cls(adapters)

    def at(self, rows: Sequence[int]) -> Self:
        """Return those of some of the rows, in their order."""
        return type(self)([self._adapters[row] for row in rows])

    def changes(self, linear: Linear, num_rows: int) -> Iterator[tuple[slice, LowRank]]:
        """Yield the runs of rows, of the first `num_rows`, for which adapters change a layer, and each one's change."""
        for rows, adapter in self.runs:
            change = adapter.changes.get(linear)
            if change is not None and rows.start < num_rows:
                yield slice(rows.start, min(rows.stop, num_rows)), change

    def add(self, linear: Linear, x: Tensor, y: Tensor) -> Tensor:
        """Return y [rows, out], a product of a layer with x [rows, in], with what the rows' adapters add to it; y is
        overwritten. x: the first rows of the batch.
        """
        for rows, change in self.changes(linear, len(x)):
            y[rows].add_(change(x[rows]))
        return y


def multiply(linear: Linear, x: Tensor, adapted: AdaptedRows | None) -> Tensor:
    """Return a layer's product with x [rows, in] as the rows' adapters change it: [rows, out]. The layer has no
    activation.
    """
    y = linear(x)
    return y if adapted is None else adapted.add(linear, x, y)
