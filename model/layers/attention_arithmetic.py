"""Steps of attention on whole tensors: dots, tanh, softmax and mix, without cache and positions.

`Arithmetic` uses torch's own operations, the fastest for each shape. `InvariantArithmetic` uses `fixed_shapes`: the
bits of a row depend only on the row and its own keys, on any device.

Axes: heads, rows, S keys, D head dimension.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from lightwell.model.layers import fixed_shapes


class Arithmetic:
    """Arithmetic in the model's dtype."""

    def dots(self, q: Tensor, k: Tensor) -> Tensor:
        """Return q [heads, rows, D] times k [heads, D, S]: [heads, rows, S]."""
        return q @ k

    def tanh(self, x: Tensor) -> Tensor:
        """Return tanh of each number."""
        return torch.tanh(x)

    def softmax(self, scores: Tensor) -> Tensor:
        """Return the pattern of scores [heads, rows, S], float32 (float64 in float64)."""
        return torch.softmax(scores, -1, dtype=at_least_float32(scores.dtype))

    def mix(self, pattern: Tensor, values: Tensor) -> Tensor:
        """Return pattern [heads, rows, S] times values [heads, S, D]: [heads, rows, D] in the values' dtype."""
        return pattern.to(values.dtype) @ values


class InvariantArithmetic(Arithmetic):
    """Batch-invariant arithmetic in float32 (float64 in float64)."""

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
        if not finite.all():  # 0 * infinity is NaN, which rows must get only from values that they see
            mixed[product((pattern != 0).to(wide), (~finite).to(wide)) > 0] = float("nan")
        return mixed.to(values.dtype)


def softmax_with_sinks(softmax: Callable[[Tensor], Tensor], scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Return the softmax of scores [..., S]. sinks [..., 1]: an additional score of each row, broadcast to the shape of
    scores; its weight is removed from the result.
    """
    if sinks is None:
        return softmax(scores)
    # The sink comes first, so that a key's place in the row does not depend on the number of keys.
    with_sinks = torch.cat((sinks.to(scores.dtype).expand(*scores.shape[:-1], 1), scores), -1)
    return softmax(with_sinks)[..., 1:].contiguous()


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for float64, float32 for all others."""
    return dtype if dtype == torch.float64 else torch.float32
