"""Computes the steps of attention on whole tensors: dots, tanh, softmax, mix. It knows matrices; it knows no cache and
no positions of rows.

`TorchArithmetic` uses torch's own operations, the fastest for the shape at hand. `InvariantArithmetic` uses those of
`fixed_shapes`: a row's bits depend on the row and on its own keys alone, on any device.

Axes: heads, rows, S keys, D head dimension.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from model.layers import fixed_shapes


class Arithmetic(Protocol):
    """The steps from queries, keys and values to the result of attention."""

    def dots(self, q: Tensor, k: Tensor) -> Tensor:
        """Return q [heads, rows, D] times k [heads, D, S]: [heads, rows, S]."""

    def tanh(self, x: Tensor) -> Tensor:
        """Return tanh of each number."""

    def softmax(self, scores: Tensor) -> Tensor:
        """Return the pattern of scores [heads, rows, S], float32, or float64 in float64."""

    def mix(self, pattern: Tensor, values: Tensor) -> Tensor:
        """Return pattern [heads, rows, S] times values [heads, S, D]: [heads, rows, D] in the values' dtype."""


class TorchArithmetic:
    """Arithmetic in the model's dtype."""

    def dots(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k

    def tanh(self, x: Tensor) -> Tensor:
        return torch.tanh(x)

    def softmax(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, -1, dtype=at_least_float32(scores.dtype))

    def mix(self, pattern: Tensor, values: Tensor) -> Tensor:
        return pattern.to(values.dtype) @ values


class InvariantArithmetic:
    """Arithmetic in float32, or float64 in float64."""

    def dots(self, q: Tensor, k: Tensor) -> Tensor:
        wide = at_least_float32(q.dtype)
        return fixed_shapes.product(q.to(wide), k.to(wide), inner=q.shape[2], columns=fixed_shapes.KEYS)

    def tanh(self, x: Tensor) -> Tensor:
        return fixed_shapes.whole_vectors(torch.tanh, x)

    def softmax(self, scores: Tensor) -> Tensor:
        return fixed_shapes.softmax(scores)

    def mix(self, pattern: Tensor, values: Tensor) -> Tensor:
        def product(pattern: Tensor, values: Tensor) -> Tensor:
            return fixed_shapes.product(pattern, values, inner=fixed_shapes.KEYS, columns=values.shape[2])

        wide, finite = pattern.dtype, values.isfinite()
        mixed = product(pattern, values.where(finite, 0).to(wide))
        if not finite.all():  # 0 times infinity is no number, and must not come to rows that do not see it
            mixed[product((pattern != 0).to(wide), (~finite).to(wide)) > 0] = float("nan")
        return mixed.to(values.dtype)


def softmax_with_sinks(softmax: Callable[[Tensor], Tensor], scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Return a softmax of scores [..., S]; sinks: one more score for each row, of one shape with scores but for axes of
    length 1, whose weight is left out.
    """
    if sinks is None:
        return softmax(scores)
    # First, so that each key has the same place in a row whatever its neighbours see.
    with_sinks = torch.cat((sinks.to(scores.dtype).expand(*scores.shape[:-1], 1), scores), -1)
    return softmax(with_sinks)[..., 1:].contiguous()


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for float64, float32 for all others."""
    return dtype if dtype == torch.float64 else torch.float32
