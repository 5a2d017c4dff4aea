"""Token tables: the embeddings of token ids.

A network with a tied head would store the weight twice: as the table and in the kernels' blocks. A large table is
freed, and its rows are gathered from the blocks, bit for bit. Gathering takes about a microsecond per row, 0.2 % of
the network's time.

Axes: T ids, e width.
"""

import torch
from torch import Tensor

from lightwell.model.kernels.forms import lay_weight
from lightwell.model.kernels.group_quantized import GroupedWeight
from lightwell.model.kernels.products import WIDEN, BlockedWeight
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.triton_grouped_weight import TritonGroupedWeight, lay_on_card
from lightwell.model.quantized import QuantizedMatrix

_LARGE = 16 << 20
"""Smallest size in bytes of a table that is freed."""


class TokenTable:
    """The token table, [vocab, e]."""

    def __init__(self, weight: Tensor | QuantizedMatrix, tied: Linear | None = None, *, native: bool = True) -> None:
        """Keep the table, or only the weight of `tied`, a layer with the same weight. Drop `weight` afterwards.

        native: whether our CPU kernels, and not our Triton kernels, read the rows of a quantised table.
        """
        self.dtype, self.device = weight.dtype, weight.device
        self._rows: Tensor | BlockedWeight | GroupedWeight | TritonGroupedWeight
        if isinstance(weight, QuantizedMatrix):
            self._rows = _quantized_rows(weight, tied) if native else _rows_on_card(weight, tied)
        elif tied is not None and isinstance(tied.weight, BlockedWeight) and weight.nbytes >= _LARGE:
            self._rows = tied.weight
        else:
            self._rows = weight

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the rows [T, e] of ids [T] int64, which are less than vocab."""
        return self._rows.index_select(0, ids) if isinstance(self._rows, Tensor) else self._rows.rows(ids)

    @property
    def dense(self) -> Tensor | None:
        """Return the table [vocab, e] if it is stored as one tensor, or None."""
        return self._rows if isinstance(self._rows, Tensor) else None

    def to_dense(self) -> Tensor:
        """Return the table [vocab, e]: a copy if it is stored in blocks."""
        return self._rows if isinstance(self._rows, Tensor) else self._rows.to_dense()

    @property
    def stored(self) -> str:
        """Return a description of the storage format."""
        rows = self._rows
        return str(rows.dtype).removeprefix("torch.") if isinstance(rows, Tensor) else rows.stored

    def new_zeros(self, *shape: int) -> Tensor:
        """Return zeros of the table's dtype, on its device."""
        return torch.zeros(shape, dtype=self.dtype, device=self.device)


def _quantized_rows(weight: QuantizedMatrix, tied: Linear | None) -> BlockedWeight | GroupedWeight:
    """Return the quantised weight of the table, from which rows are gathered."""
    laid = lay_weight(weight, arithmetic=WIDEN) if tied is None else tied.weight
    assert isinstance(laid, BlockedWeight | GroupedWeight)  # a head is not quantised again
    return laid


def _rows_on_card(weight: QuantizedMatrix, tied: Linear | None) -> TritonGroupedWeight | Tensor:
    """Return the weight of the table on a GPU; it is dequantised if our kernels have no form for it."""
    if tied is None:
        return lay_on_card(weight, "none", batch_invariant=True)
    return tied.weight if isinstance(tied.weight, TritonGroupedWeight) else tied.to_dense()
