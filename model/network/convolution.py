"""Convolution over positions, each channel separately, with the inputs that each sequence keeps from earlier steps.

The bits of a row depend only on the inputs that it reads, not on the division of the sequence into steps: each output
is a sum of products in the order of positions, with each operation rounded.

Axes: T rows of the leading spans, S spans, n kept inputs, C channels.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from lightwell.model.batch import Batch
from lightwell.model.kv_cache import LayerStates
from lightwell.model.layers.attention_arithmetic import at_least_float32


@dataclass(frozen=True, slots=True, eq=False)
class KeptInputs:
    """Indices of a convolution's inputs in the order [state of span 0, rows of span 0, state of span 1, ...], int64."""

    rows: Tensor
    """[T]: the index of each row's own input."""
    before: Tensor
    """[S, n]: the indices of the inputs kept before the step."""
    after: Tensor
    """[S, n]: the indices of the inputs to keep after the step."""
    read: Tensor
    """[S]: the index of each span's state before the step."""
    write: Tensor
    """[S]: the index of each span's state after the step."""
    is_first: Tensor
    """[S] bool: whether the span begins its sequence, so that its state is zero."""
    first_rows: np.ndarray
    """[S + 1]: the first row of each span, and the number of rows."""

    @classmethod
    def of(cls, batch: Batch, num_kept: int) -> Self:
        """Return the indices for a batch and a convolution that reads `num_kept` earlier positions."""
        spans, first_rows = batch.spans, np.array(batch.first_rows)
        before = (first_rows[:-1] + num_kept * np.arange(len(spans)))[:, None] + np.arange(num_kept)

        def there(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(batch.device)

        return cls(
            rows=there(np.arange(batch.num_rows) + num_kept * (batch.owners + 1)),
            before=there(before),
            after=there(before + np.diff(first_rows)[:, None]),
            read=there(np.array([span.states[0] for span in spans])),
            write=there(np.array([span.states[1] for span in spans])),
            is_first=there(np.array([span.start == 0 for span in spans])),
            first_rows=first_rows,
        )

    def leading(self, num_rows: int) -> Self:
        """Return the indices of the leading spans, which have `num_rows` rows together."""
        if num_rows == len(self.rows):
            return self
        count = int(np.searchsorted(self.first_rows, num_rows))
        before, after = self.before[:count], self.after[:count]
        read, write, is_first = self.read[:count], self.write[:count], self.is_first[:count]
        return type(self)(self.rows[:num_rows], before, after, read, write, is_first, self.first_rows[: count + 1])

    def old(self, states: Tensor) -> Tensor:
        """Return a copy of each span's state before the step, [S, ...], from `states` [state, ...]."""
        found = states[self.read]
        return found.masked_fill_(self.is_first.view(-1, *[1] * (found.dim() - 1)), 0)


@dataclass(frozen=True, slots=True, eq=False)
class Convolution:
    """A causal convolution of each channel."""

    taps: Tensor
    """[n + 1, C] float32 (float64 in float64): the factors of the inputs, the row's own last."""
    bias: Tensor | None
    """[C]"""

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> Self:
        """Return the convolution of weight [C, 1, n + 1] and bias [C], in the model's dtype."""
        wide = at_least_float32(weight.dtype)
        return cls(weight[:, 0].T.to(wide).contiguous(), None if bias is None else bias.to(wide))

    def __call__(self, x: Tensor, kept: KeptInputs, states: LayerStates) -> Tensor:
        """Return the outputs of x [T, C], float32 (float64 in float64), and write the kept inputs to the states."""
        kept = kept.leading(len(x))
        inputs = x.new_empty(len(x) + kept.before.numel(), x.shape[1])
        inputs[kept.rows] = x
        inputs[kept.before] = kept.old(states.inputs)
        states.inputs[kept.write] = inputs[kept.after]
        first = kept.rows - (len(self.taps) - 1)
        out = inputs[first] * self.taps[0]
        for tap in range(1, len(self.taps)):
            out += inputs[first + tap] * self.taps[tap]
        return out if self.bias is None else out.add_(self.bias)
