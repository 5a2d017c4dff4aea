"""Blocks: sublayers with their norms and the residual stream.

Axes: T rows that need this layer, d model width.
"""

import math
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from lightwell.model.hooks.hooks import LayerHooks, hooked, normed
from lightwell.model.layers.experts import Experts
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.mlp import Mlp
from lightwell.model.layers.norm import Norm
from lightwell.model.network.altup import AltUp
from lightwell.model.network.per_layer import PerLayer
from lightwell.model.network.recurrences import DeltaNet, ShortConvolution
from lightwell.model.network.sublayers import (
    BlockInputs,
    CrossAttention,
    DenseAndExperts,
    Feedforward,
    MixedFeedforward,
    SelfAttention,
)

Mixer = SelfAttention | ShortConvolution | DeltaNet
"""A sublayer that reads other positions: attention, or a recurrence in its place."""
AnyFeedforward = Feedforward | MixedFeedforward | DenseAndExperts
Sublayer = TypeVar("Sublayer", bound=Mixer | CrossAttention | AnyFeedforward | PerLayer)


@dataclass(frozen=True, slots=True, eq=False)
class Residual(Generic[Sublayer]):
    """A sublayer f on the residual stream: stream_scale * of_sum(x + scale * after(f(before(x)))), with optional norms.

    A call returns the addend of x, and `add` adds it. Pre-norm networks (GPT-2) have `before`, post-norm ones (Vaswani
    et al. 2017) `of_sum`, Gemma `before` and `after`, OLMo-2 `after`.
    """

    f: Sublayer
    out: str
    """The point of the addend, e.g. hook_attn_out."""
    stream: str
    """The point of the residual stream after it, e.g. hook_resid_mid."""
    norm: str
    """The prefix of the norm's points, e.g. ln1."""
    before: Norm | None = None
    after: Norm | None = None
    of_sum: Norm | None = None
    scale: float = 1.0
    stream_scale: Tensor | None = None
    """A factor [1] of the stream after it, or None."""

    def __call__(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> Tensor:
        """Return the addend of the residual stream: x [T, d] -> [T, d]."""
        y = self.f(normed(self.before, self.norm, x, layer_hooks), step, layer_hooks)
        y = self.scaled(normed(self.after, self.second_norm, y, layer_hooks))
        return hooked(layer_hooks, self.out, y)

    @property
    def second_norm(self) -> str:
        """Return the prefix of the points of `after`."""
        return self.norm if self.before is None else f"{self.norm}_post"

    def scaled(self, y: Tensor) -> Tensor:
        """Return y [T, d] times `scale`, rounded before the sum."""
        return y if self.scale == 1 else y * self.scale

    def add(self, y: Tensor, x: Tensor, layer_hooks: LayerHooks | None) -> Tensor:
        """Return the stream [T, d] with y [T, d] added to x [T, d]."""
        x = normed(self.of_sum, self.norm, x + y, layer_hooks)
        if self.stream_scale is not None:
            x = x * self.stream_scale
        return hooked(layer_hooks, self.stream, x)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Token mixer, optional cross attention, mlp and optional per-layer gate, one after another, or mixer and mlp in
    parallel on the same residual stream.
    """

    index: int
    attention: Residual[Mixer]
    cross: Residual[CrossAttention] | None
    mlp: Residual[AnyFeedforward]
    parallel: bool
    """Whether the block is x + attention(x) + mlp(x) (GPT-NeoX: Black et al. 2022, arXiv:2204.06745, section 2.1)."""
    per_layer: Residual[PerLayer] | None = None
    altup: AltUp | None = None
    """The block's part in several residual streams, or None if there is one stream."""

    def __call__(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> Tensor:
        """Return the residual stream after the block: x [T, d] -> [T, d]."""
        x = hooked(layer_hooks, "hook_resid_pre", x)
        if self.altup is not None:
            return self._among_streams(self.altup, x, step, layer_hooks)
        if self.parallel:
            attention = self.attention(x, step, layer_hooks)
            x = self.mlp(x, step, layer_hooks) + attention + x
            return hooked(layer_hooks, "hook_resid_post", x)
        for residual in self.residuals:
            x = residual.add(residual(x, step, layer_hooks), x, layer_hooks)
        return x

    def _among_streams(self, altup: AltUp, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> Tensor:
        """Return the first of several residual streams after the block, x [T, d] -> [T, d], and replace the others."""
        streams, last, before = step.streams, self.per_layer, self.attention.before
        assert streams is not None
        assert last is not None
        assert before is not None
        predicted = altup.predicted(x, streams)
        predicted[0] = hooked(layer_hooks, "hook_predicted", predicted[0])
        added = self.attention(predicted[0], step, layer_hooks)
        around = hooked(layer_hooks, "hook_laurel_out", altup.laurel(before(predicted[0]), step))
        x = hooked(layer_hooks, "hook_resid_mid", (predicted[0] + added + around) / math.sqrt(2))
        x = self.mlp.add(self.mlp(x, step, layer_hooks), x, layer_hooks)
        x, *others = altup.corrected(predicted, x)
        given = last(x if altup.scale is None else x * altup.scale, step, layer_hooks)
        streams.others = torch.stack([other + given for other in others])
        return hooked(layer_hooks, "hook_resid_post", x)

    def write_kv(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> None:
        """Compute only the queries, keys and values of the residual stream x [T, d], or the states of a recurrence, and
        serve their hooks. It saves most products of a block if its output is not needed.
        """
        x = hooked(layer_hooks, "hook_resid_pre", x)
        if self.altup is not None:
            assert step.streams is not None
            x = self.altup.predicted(x, step.streams)[0]
            x = hooked(layer_hooks, "hook_predicted", x)
        self.attention.f.write_kv(normed(self.attention.before, self.attention.norm, x, layer_hooks), step, layer_hooks)

    @property
    def linears(self) -> dict[str, Linear]:
        """Return the matrices by their names, without experts; the gate's rows come first in `up`."""
        found = self.attention.f.linears
        if (mlp := self.one_mlp) is not None:
            found |= {"up": mlp.up, "down": mlp.down}
        if self.cross is not None:
            cross = self.cross.f
            found |= {"cross_q": cross.q, "cross_kv": cross.kv, "cross_out": cross.heads.out}
        if self.per_layer is not None:
            found |= {"per_layer_gate": self.per_layer.f.gate, "per_layer_out": self.per_layer.f.out}
        if self.altup is not None:
            found |= {"laurel_left": self.altup.laurel_left, "laurel_right": self.altup.laurel_right}
        return found

    @property
    def residuals(self) -> list[Residual[Any]]:
        """Return the sublayers with their norms, in their order."""
        return [each for each in (self.attention, self.cross, self.mlp, self.per_layer) if each is not None]

    @property
    def matrices(self) -> list[Linear]:
        """Return all matrices, with experts."""
        return [*self.linears.values(), *([] if self.mixture is None else self.mixture.linears)]

    @property
    def mixture(self) -> Experts | None:
        """Return the mixture of experts, or None."""
        mlp = self.mlp.f.experts if isinstance(self.mlp.f, DenseAndExperts) else self.mlp.f
        return mlp.experts if isinstance(mlp, MixedFeedforward) else None

    @property
    def self_attention(self) -> SelfAttention:
        """Return the attention of a block with attention."""
        assert isinstance(self.attention.f, SelfAttention)
        return self.attention.f

    @property
    def one_mlp(self) -> Mlp | None:
        """Return the mlp, or None if there are only experts."""
        mlp = self.mlp.f.dense if isinstance(self.mlp.f, DenseAndExperts) else self.mlp.f
        return mlp.mlp if isinstance(mlp, Feedforward) else None

    @property
    def cross_attention(self) -> CrossAttention:
        """Return the cross attention of a block with cross attention."""
        assert self.cross is not None
        return self.cross.f
