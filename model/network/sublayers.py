"""What a block's sublayers compute: attention to the sequence itself, across to the encoder, and the mlp.

Each is a function of the stream it is given, with its points where their numbers stand. Knows no norms around it (but
those of queries and keys) and no residuals.

Axes: T rows that need this layer, H query heads, K key heads, D head dimension, d model width, E rows of the encoder.
"""

from dataclasses import dataclass

import numpy as np
import torch

from model.batch import Batch, Sight
from model.hooks.attention_hooks import Attended, attend_and_look, look_at_results, look_at_rows
from model.hooks.hooks import LayerLooks
from model.kv_cache import LayerCache
from model.layers.attention import Attention, AttentionRule, Turns
from model.layers.linear import Linear
from model.layers.mlp import Mlp
from model.layers.norm import Norm


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What a block is given beside the stream."""

    batch: Batch
    cache: LayerCache
    turns: Turns | None
    """Of this layer's rotary positions."""


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """From queries and cached keys and values to what is added: the half that both attentions share."""

    name: str
    """Of its points: attn | cross_attn."""
    attention: Attention
    rule: AttentionRule
    out: Linear
    """[d, H D]"""

    def __call__(
        self, q: torch.Tensor, step: Step, sight: Sight, look: LayerLooks | None, *, cross: bool
    ) -> torch.Tensor:
        """q [T, H, D], turned -> [T, d]."""
        z = self._attend(q, step, sight, look, cross=cross)  # [T, H, D]
        if look is not None:
            z = look(f"{self.name}.hook_z", z)
        out = self.out(z.flatten(1))
        return out if look is None else self._look_at_results(z, out, look)

    def _attend(
        self, q: torch.Tensor, step: Step, sight: Sight, look: LayerLooks | None, *, cross: bool
    ) -> torch.Tensor:
        if look is not None and (look.attention or look.attention_changes):
            return attend_and_look(self._attended(q, step, sight, cross=cross), step.batch, look)
        return self.attention.attend(q, step.cache, step.batch, sight, self.rule)

    def _look_at_results(self, z: torch.Tensor, out: torch.Tensor, look: LayerLooks) -> torch.Tensor:
        return look_at_results(f"{self.name}.hook_result", self.out.product, z, out, look)

    def show(self, q: torch.Tensor, step: Step, sight: Sight, look: LayerLooks) -> None:
        """Of self-attention, what is seen of the scores of q [T, H, D], turned, where nobody needs their sum."""
        if look.attention:
            look_at_rows(self._attended(q, step, sight, cross=False), look)

    def _attended(self, q: torch.Tensor, step: Step, sight: Sight, *, cross: bool) -> Attended:
        return Attended(self.attention, self.rule, q, step.cache, sight, cross, step.batch.check)


@dataclass(frozen=True, slots=True, eq=False)
class SelfAttention:
    """Of a sequence to itself."""

    qkv: Linear
    """[(H + 2K) D, d]"""
    heads: Heads
    num_heads: int
    num_kv_heads: int
    head_dim: int
    causal: bool
    window: int | None
    q_norm: Norm | None = None
    """Over D, or over all heads at once, [H D]: by the length of its weight."""
    k_norm: Norm | None = None

    def __call__(self, x: torch.Tensor, step: Step, look: LayerLooks | None) -> torch.Tensor:
        """x [T, d] -> [T, d]; keys and values go into the cache."""
        q = self._enter(x, step, look)
        sight = step.batch.sight(self.causal, self.window)
        return self.heads(q, step, sight, look, cross=False)

    def enter(self, x: torch.Tensor, step: Step, look: LayerLooks | None) -> None:
        """Keys and values of x [T, d] go into the cache, and what is seen of the scores is handed out: no more."""
        q = self._enter(x, step, look)
        if look is not None:
            self.heads.show(q, step, step.batch.sight(self.causal, self.window), look)

    def _enter(self, x: torch.Tensor, step: Step, look: LayerLooks | None) -> torch.Tensor:
        """Keys and values of x [T, d] go into the cache; returns the turned queries [T, H, D]."""
        qkv = self.qkv(x).view(len(x), -1, self.head_dim)  # [T, H + 2K, D]
        if look is not None:
            qkv = self._look_at_parts(qkv, look)
        if self.q_norm is not None and self.k_norm is not None:
            q, k, v = self._parts(qkv)
            qkv = torch.cat((_normed(self.q_norm, q), _normed(self.k_norm, k), v), 1)
        q = self.heads.attention.enter(qkv, step.turns, step.cache, step.batch)  # [T, H, D]
        if look is not None:
            q = look("attn.hook_rot_q", q)
            look.derive("attn.hook_rot_k", lambda rows: _keys_at(step, rows))
        return q

    def _parts(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        keys, values = self.num_heads, self.num_heads + self.num_kv_heads
        return qkv[:, :keys], qkv[:, keys:values], qkv[:, values:]

    def _look_at_parts(self, qkv: torch.Tensor, look: LayerLooks) -> torch.Tensor:
        before = self._parts(qkv)
        after = [look(f"attn.hook_{name}", part) for name, part in zip("qkv", before, strict=True)]
        changed = any(new is not old for new, old in zip(after, before, strict=True))
        return torch.cat(after, 1) if changed else qkv


def _normed(norm: Norm, x: torch.Tensor) -> torch.Tensor:
    """x [T, heads, D] normalised in rows as long as the norm's weight: a head, or all heads at once."""
    return norm(x.reshape(-1, norm.weight.shape[0])).view(x.shape)


def _keys_at(step: Step, rows: torch.Tensor) -> torch.Tensor:
    """The cached keys of batch rows [n] -> [n, K, D]."""
    slots = torch.from_numpy(step.batch.slots_array)[rows].to(step.cache.keys.device)
    return step.cache.keys[slots // step.batch.block_size, :, :, slots % step.batch.block_size]


@dataclass(frozen=True, slots=True, eq=False)
class CrossAttention:
    """Of a decoder to the encoder's output, whose keys and values `enter` has put into the cache."""

    q: Linear
    """[H D, d]"""
    kv: Linear
    """[2K D, width of the encoder]"""
    heads: Heads
    head_dim: int

    def __call__(self, x: torch.Tensor, step: Step, look: LayerLooks | None) -> torch.Tensor:
        """x [T, d] -> [T, d]."""
        q = self.q(x).view(len(x), -1, self.head_dim)  # [T, H, D]
        if look is not None:
            q = look("cross_attn.hook_rot_q", look("cross_attn.hook_q", q))
        return self.heads(q, step, step.batch.cross_sight(), look, cross=True)

    def enter(self, hidden: torch.Tensor, cache: LayerCache, slots: np.ndarray, look: LayerLooks | None) -> None:
        """Keys and values of the encoder's rows: hidden [E, width], slots [E] (block * block size + place).

        `look` speaks of rows of the encoder's batch.
        """
        kv = self.kv(hidden).view(len(hidden), -1, self.head_dim)  # [E, 2K, D]
        if look is not None:
            k, v = kv.chunk(2, 1)
            k, v = look("cross_attn.hook_k", k), look("cross_attn.hook_v", v)
            look("cross_attn.hook_rot_k", k)
            kv = torch.cat((k, v), 1)
        self.heads.attention.enter_cross(kv, cache, slots)


@dataclass(frozen=True, slots=True, eq=False)
class Feedforward:
    """The mlp with its points."""

    mlp: Mlp

    def __call__(self, x: torch.Tensor, step: Step, look: LayerLooks | None) -> torch.Tensor:
        """x [T, d] -> [T, d]."""
        if look is None or not look.wants("mlp.hook_pre", "mlp.hook_pre_linear", "mlp.hook_post"):
            return self.mlp(x)
        hidden = self._look_before(x, self.mlp.hidden(x), look)
        return self.mlp.down(look("mlp.hook_post", hidden))

    def _look_before(self, x: torch.Tensor, hidden: torch.Tensor, look: LayerLooks) -> torch.Tensor:
        """The points before the activation, which the fused product does not leave: made again for the rows asked for.

        Returns hidden [T, ff] with the rows made anew in which somebody changed something.
        """
        place = look.place("mlp.hook_pre", "mlp.hook_pre_linear")
        if place is None:
            return hidden
        rows = torch.tensor(place.rows, device=x.device)
        pre, linear = self.mlp.before_activation(x[rows])
        pre = look("mlp.hook_pre", pre, place)
        linear = None if linear is None else look("mlp.hook_pre_linear", linear, place)
        changes = [*look.changes.get("mlp.hook_pre", ()), *look.changes.get("mlp.hook_pre_linear", ())]
        if not changes:
            return hidden
        changed = sorted({row for change in changes for row in change.rows})
        at = torch.tensor(place.of(changed, None).rows, device=x.device)
        hidden = hidden.clone()
        hidden[torch.tensor(changed, device=x.device)] = self.mlp.hidden_from(
            pre[at], None if linear is None else linear[at]
        )
        return hidden
