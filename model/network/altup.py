"""Several residual streams, of which the sublayers read one (AltUp: Baykal et al. 2023, arXiv:2301.13310), and a
low-rank path around attention (LAuReL: Menghani et al. 2024, arXiv:2411.07501), as in Gemma 3n.

The first stream, x, is the input of the sublayers. Before a block, each stream is predicted from all of them. After it,
each is corrected by the difference between the block's output and its prediction.

Axes: N streams, T rows, d model width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from lightwell.model.kernels.rows import soft_cap
from lightwell.model.layers.attention_arithmetic import at_least_float32
from lightwell.model.layers.fixed_shapes import whole_vectors
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.lora import multiply
from lightwell.model.layers.norm import Norm, row_means
from lightwell.model.network.sublayers import BlockInputs, Streams

_LEAST_MEAN_SQUARE = 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class StreamEnds:
    """The layers that create the other streams from the embedding, and join all streams after the last block."""

    into: Sequence[Linear]
    """[d, d] for each of the other streams."""
    out: Sequence[Linear]
    """[d, d] for each of the other streams."""

    def start(self, x: Tensor) -> Streams:
        """Return the other streams, rescaled to the length of the embedding x [T, d]."""
        return Streams(torch.stack([_as_long_as(x, linear(x)) for linear in self.into]))

    def end(self, x: Tensor, streams: Streams) -> Tensor:
        """Return the mean [T, d] of x [T, d] and the other streams, rescaled to its length."""
        others = [_as_long_as(x, linear(other)) for linear, other in zip(self.out, streams.others, strict=True)]
        return reduce(torch.add, others, x) / (1 + len(others))


def _as_long_as(x: Tensor, y: Tensor) -> Tensor:
    return y * row_means(x * x).sqrt() / row_means(y * y).clamp(min=_LEAST_MEAN_SQUARE).sqrt()


@dataclass(frozen=True, slots=True, eq=False)
class AltUp:
    """Predictions and corrections of the streams of one block, and its low-rank path."""

    norm: Norm
    router: Linear
    """[N, d]"""
    predict: Linear
    """[N N, N]"""
    correct: Linear
    """[N, N]"""
    scale: Tensor | None
    """[d]: a factor of the corrected stream in the input of the per-layer gate, or None."""
    laurel_left: Linear
    """[r, d]"""
    laurel_right: Linear
    """[d, r]"""
    laurel_norm: Norm

    def predicted(self, x: Tensor, streams: Streams) -> list[Tensor]:
        """Return the prediction of each stream [T, d], x's first."""
        every = [x, *streams.others]
        weights = self.predict(self._routed(x)).view(len(x), len(every), len(every), 1)  # [T, to, from, 1]
        return [
            reduce(torch.add, [each * weights[:, i, j] for j, each in enumerate(every)]) + own
            for i, own in enumerate(every)
        ]

    def corrected(self, predicted: Sequence[Tensor], y: Tensor) -> list[Tensor]:
        """Return each stream [T, d], corrected by the block's output y [T, d]."""
        weights = self.correct(self._routed(y)) + 1.0  # [T, N]
        novel = y - predicted[0]
        return [novel * weights[:, i, None] + each for i, each in enumerate(predicted)]

    def _routed(self, x: Tensor) -> Tensor:
        """Return the router's weights [T, N] for x [T, d]."""
        routed = self.router(self.norm(x) * x.shape[-1] ** -1.0)
        wide = routed.to(at_least_float32(x.dtype))
        if not self.router.native:
            return whole_vectors(torch.tanh, wide).to(x.dtype)
        wide = wide.clone()
        soft_cap(wide, 1.0)  # tanh
        return wide.to(x.dtype)

    def laurel(self, x: Tensor, step: BlockInputs) -> Tensor:
        """Return x [T, d] plus the output of the low-rank path."""
        low = multiply(self.laurel_left, x, step.adapted)
        return x + self.laurel_norm(multiply(self.laurel_right, low, step.adapted))
