"""Looks up token ids in a table. It knows where a weight in blocks keeps its rows, not what becomes of them.

A network whose head has the table's own weight (a tied head) would hold it twice, as it is and as the kernels' blocks.
A large table is then freed, and its rows are gathered from the blocks, bit for bit: other rows are interleaved with
them, so that takes about a microsecond, a fifth of a percent of what the network does with the row.

Axes: T ids, e width.
"""

import torch
from torch import Tensor

from model.kernels.forms import lay_weight
from model.kernels.grouped import GroupedWeight
from model.kernels.products import WIDEN, BlockedWeight
from model.layers.linear import Linear
from model.quantized import QuantizedMatrix

_LARGE = 16 << 20
"""Bytes from which memory matters more than the time to gather."""


class TokenTable:
    """The token table, [vocab, e]."""

    def __init__(self, weight: Tensor | QuantizedMatrix, tied: Linear | None = None) -> None:
        """Keep the table. `tied`: a product with the same weight, if there is one; drop the weight afterwards, it may
        not be needed.
        """
        self.dtype, self.device = weight.dtype, weight.device
        self._rows: Tensor | BlockedWeight | GroupedWeight
        if isinstance(weight, QuantizedMatrix):
            self._rows = _quantized_rows(weight, tied)
        elif tied is not None and isinstance(tied.weight, BlockedWeight) and weight.nbytes >= _LARGE:
            self._rows = tied.weight
        else:
            self._rows = weight

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the rows [T, e] of ids [T] int64, each under vocab."""
        return self._rows.index_select(0, ids) if isinstance(self._rows, Tensor) else self._rows.rows(ids)

    @property
    def dense(self) -> Tensor | None:
        """Return the whole table if it is stored as it was given, or None."""
        return self._rows if isinstance(self._rows, Tensor) else None

    def to_dense(self) -> Tensor:
        """Return the whole table: a copy if it is stored in blocks."""
        return self._rows if isinstance(self._rows, Tensor) else self._rows.to_dense()

    @property
    def stored(self) -> str:
        """Return the format in which the numbers are stored, as text for people."""
        rows = self._rows
        return str(rows.dtype).removeprefix("torch.") if isinstance(rows, Tensor) else rows.stored

    def new_zeros(self, *shape: int) -> Tensor:
        """Return zeros of the table's dtype, on its device."""
        return torch.zeros(shape, dtype=self.dtype, device=self.device)


def _quantized_rows(weight: QuantizedMatrix, tied: Linear | None) -> BlockedWeight | GroupedWeight:
    """Return what rows of a table that is stored quantised are gathered from."""
    laid = lay_weight(weight, arithmetic=WIDEN) if tied is None else tied.weight
    assert isinstance(laid, BlockedWeight | GroupedWeight)  # it was not quantised further
    return laid
