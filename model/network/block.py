"""Runs one block: its sublayers, the norms where the family puts them, and the residual stream that they are added to.
It knows no cache.

Axes: T rows that need this layer, d model width.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from model.hooks.hooks import LayerHooks
from model.layers.linear import Linear
from model.layers.mlp import Mlp
from model.layers.norm import Norm
from model.network.delta_net import DeltaNet
from model.network.short_conv import ShortConvolution
from model.network.sublayers import BlockInputs, CrossAttention, Feedforward, MixedFeedforward, SelfAttention

Mixer = SelfAttention | ShortConvolution | DeltaNet
"""What brings numbers of other positions to a position: attention, or what some layers have in its place."""
Sublayer = TypeVar("Sublayer", bound=Mixer | CrossAttention | Feedforward | MixedFeedforward)


@dataclass(frozen=True, slots=True, eq=False)
class Residual(Generic[Sublayer]):
    """A sublayer f on the residual stream: of_sum(x + scale * after(f(before(x)))); each norm is optional.

    A call returns what is added to x, and `add` adds it.
    Pre-norm (GPT-2) has `before`, post-norm (Vaswani et al. 2017) `of_sum`, Gemma `before` and `after`, OLMo-2 `after`.
    """

    f: Sublayer
    out: str
    """The point of what is added, e.g. hook_attn_out."""
    stream: str
    """The point of the residual stream after it, e.g. hook_resid_mid."""
    norm: str
    """The name of its norm's points, e.g. ln1."""
    before: Norm | None = None
    after: Norm | None = None
    of_sum: Norm | None = None
    scale: float = 1.0

    def __call__(self, x: torch.Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> torch.Tensor:
        """Return what is added to the residual stream: x [T, d] -> [T, d]."""
        y = self.f(_normed(self.before, self.norm, x, layer_hooks), step, layer_hooks)
        second = self.norm if self.before is None else f"{self.norm}_post"
        y = self.scaled(_normed(self.after, second, y, layer_hooks))
        return y if layer_hooks is None else layer_hooks(self.out, y)

    def scaled(self, y: torch.Tensor) -> torch.Tensor:
        """Return what is added of y [T, d], which is rounded before it is."""
        return y if self.scale == 1 else y * self.scale

    def add(self, y: torch.Tensor, x: torch.Tensor, layer_hooks: LayerHooks | None) -> torch.Tensor:
        """Return the stream [T, d] with y [T, d] added to x [T, d]."""
        x = _normed(self.of_sum, self.norm, x + y, layer_hooks)
        return x if layer_hooks is None else layer_hooks(self.stream, x)


def _normed(norm: Norm | None, name: str, x: torch.Tensor, layer_hooks: LayerHooks | None) -> torch.Tensor:
    if norm is None:
        return x
    normed = norm(x)
    if layer_hooks is not None:
        layer_hooks.of_norm(name, norm, x, normed)
    return normed


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Attention or what stands in its place, cross attention if there is one, mlp: one after another, or in parallel on
    the same residual stream.
    """

    index: int
    attention: Residual[Mixer]
    cross: Residual[CrossAttention] | None
    mlp: Residual[Feedforward | MixedFeedforward]
    parallel: bool
    """Whether the block is x + attention(x) + mlp(x), as in GPT-NeoX (Black et al. 2022, arXiv:2204.06745, section
    2.1).
    """

    def __call__(self, x: torch.Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> torch.Tensor:
        """Return the residual stream after the block: x [T, d] -> [T, d]."""
        if layer_hooks is not None:
            x = layer_hooks("hook_resid_pre", x)
        if self.parallel:
            attention = self.attention(x, step, layer_hooks)
            x = self.mlp(x, step, layer_hooks) + attention + x
            return x if layer_hooks is None else layer_hooks("hook_resid_post", x)
        x = self.attention.add(self.attention(x, step, layer_hooks), x, layer_hooks)
        if self.cross is not None:
            x = self.cross.add(self.cross(x, step, layer_hooks), x, layer_hooks)
        return self.mlp.add(self.mlp(x, step, layer_hooks), x, layer_hooks)

    def write_kv(self, x: torch.Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> None:
        """Run only as far as the queries, keys and values of the residual stream x [T, d], or the states of a layer
        without attention, and what hooks read of them: if nothing else of this block is needed, most of its products
        need not be computed.
        """
        if layer_hooks is not None:
            x = layer_hooks("hook_resid_pre", x)
        self.attention.f.write_kv(
            _normed(self.attention.before, self.attention.norm, x, layer_hooks), step, layer_hooks
        )

    @property
    def linears(self) -> dict[str, Linear]:
        """Return its matrices by their names, without those of experts; up has the gate, if there is one, above it."""
        found = self.attention.f.linears
        if (mlp := self.one_mlp) is not None:
            found |= {"up": mlp.up, "down": mlp.down}
        if self.cross is not None:
            cross = self.cross.f
            found |= {"cross_q": cross.q, "cross_kv": cross.kv, "cross_out": cross.heads.out}
        return found

    @property
    def matrices(self) -> list[Linear]:
        """Return all its matrices, those of experts too."""
        mlp = self.mlp.f
        return [*self.linears.values(), *(mlp.experts.linears if isinstance(mlp, MixedFeedforward) else [])]

    @property
    def self_attention(self) -> SelfAttention:
        """Return the attention of a block that has one."""
        assert isinstance(self.attention.f, SelfAttention)
        return self.attention.f

    @property
    def one_mlp(self) -> Mlp | None:
        """Return its mlp, or None if it has experts."""
        return self.mlp.f.mlp if isinstance(self.mlp.f, Feedforward) else None

    @property
    def cross_attention(self) -> CrossAttention:
        """Return the cross attention of a block that has one."""
        assert self.cross is not None
        return self.cross.f
