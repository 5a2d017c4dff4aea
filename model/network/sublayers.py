"""Sublayers of a block: attention to the sequence itself, cross attention to the encoder, and feed-forward networks.

Each is a function of its input, and calls the hooks of its points. Residuals and most norms belong to the block.

Axes: T rows that need this layer, H query heads, K key heads, D head dimension, d model width, E rows of the encoder.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from lightwell.model.batch import Batch, KeyRange
from lightwell.model.hooks.attention_hooks import Attended, attend_with_hooks, deliver_results, deliver_rows
from lightwell.model.hooks.hooks import LayerHooks, hooked, normed
from lightwell.model.kernels.rows import activate_times
from lightwell.model.kv_cache import LayerCache
from lightwell.model.layers.attention import Attention, AttentionRule, RotaryTables
from lightwell.model.layers.experts import Experts
from lightwell.model.layers.fixed_shapes import whole_vectors
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.lora import AdaptedRows, multiply
from lightwell.model.layers.mlp import Mlp
from lightwell.model.layers.norm import Norm
from lightwell.model.layers.rope import Rope
from lightwell.model.network.convolution import KeptInputs


@dataclass(slots=True, eq=False)
class Streams:
    """All residual streams except the first one, which blocks replace."""

    others: Tensor
    """[N - 1, T, d]"""

    def keep(self, rows: int) -> None:
        """Keep only the first rows."""
        self.others = self.others[:, :rows].contiguous()


@dataclass(frozen=True, slots=True, eq=False)
class BlockInputs:
    """The inputs of a block in addition to the residual stream."""

    batch: Batch
    cache: LayerCache
    rotary_tables: RotaryTables | None
    """cos and sin of this layer's rotary positions, or None."""
    adapted: AdaptedRows | None = None
    """The adapters of the batch's rows, or None if no row has one."""
    kept: KeptInputs | None = None
    """The indices of convolutions' inputs, or None in a stack without convolutions."""
    of_tokens: Tensor | None = None
    """This layer's per-layer token embeddings [T, P] (`PerLayerInputs`), or None."""
    streams: Streams | None = None
    """The other residual streams, or None if there is one stream."""
    projected: dict[int, tuple[Tensor, Tensor]] | None = None
    """The keys and values [T, K, D] of each layer, if hooks may read them in layers that share them, or None."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionHeads:
    """The heads of self- or cross-attention and the matrix W_O, which maps their results to the model's width."""

    are_all: ClassVar[bool] = True
    """Whether these are all heads of the attention; False on a rank with some of them."""
    name: str
    """The prefix of its points: attn | cross_attn."""
    attention: Attention
    rule: AttentionRule
    out: Linear
    """[d, H D]"""

    def attend(
        self, q: Tensor, step: BlockInputs, key_range: KeyRange, layer_hooks: LayerHooks | None, *, cross: bool
    ) -> Tensor:
        """Return the heads' weighted sums of values, z [T, H, D], for rotated q [T, H, D]."""
        if layer_hooks is None:
            return self.attention.attend(q, step.cache, step.batch, key_range, self.rule)
        z = self._attend_with_hooks(q, step, key_range, layer_hooks, cross=cross)
        return layer_hooks(f"{self.name}.hook_z", z)

    def _attend_with_hooks(
        self, q: Tensor, step: BlockInputs, key_range: KeyRange, layer_hooks: LayerHooks, *, cross: bool
    ) -> Tensor:
        if layer_hooks.attention or layer_hooks.attention_changes:
            attended = self.attended(q, step, key_range, cross=cross)
            return attend_with_hooks(self.attention, attended, step.batch, layer_hooks)
        return self.attention.attend(q, step.cache, step.batch, key_range, self.rule)

    def deliver_results(self, z: Tensor, out: Tensor, step: BlockInputs, layer_hooks: LayerHooks) -> Tensor:
        """Serve the hooks of each head's result, and return the attention's output `out` [T, d] with their changes."""
        return deliver_results(f"{self.name}.hook_result", partial(self._project, step.adapted), z, out, layer_hooks)

    def _project(self, adapted: AdaptedRows | None, z: Tensor, rows: Sequence[int]) -> Tensor:
        """Return the product of W_O with z [n, H D] of these batch rows, without the bias: [n, d]."""
        y = self.out.product(z)
        return y if adapted is None else adapted.at(rows).add(self.out, z, y)

    def attended(self, q: Tensor, step: BlockInputs, key_range: KeyRange, *, cross: bool) -> Attended:
        """Return the attention of rotated q [T, H, D] for hooks."""
        return Attended(self.attention, self.rule, q, step.cache, key_range, cross, step.batch.check)


@dataclass(frozen=True, slots=True, eq=False)
class SelfAttention:
    """Attention of a sequence to itself."""

    qkv: Linear
    """[(H + 2K) D, d], or with gates [(2H + 2K) D, d]"""
    heads: AttentionHeads
    num_heads: int
    num_kv_heads: int
    head_dim: int
    causal: bool
    window: int | None
    gated: bool = False
    """Whether sigmoids of gates are factors of the heads' results; the gates' rows of `qkv` follow the rows of q."""
    q_norm: Norm | None = None
    """A norm over D, or over all heads together [H D], by the length of its weight."""
    k_norm: Norm | None = None
    v_norm: Norm | None = None
    kv_layer: int = 0
    """The layer with the keys and values that it reads."""
    has_kv: bool = True
    """Whether that is this layer; otherwise `qkv` is [H D, d], and the cache is the other layer's."""

    def __call__(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> Tensor:
        """Return the attention's output, x [T, d] -> [T, d], and write keys and values to the cache."""
        qkv, gates = self._project(x, step)
        q = self._write(qkv, step, layer_hooks)
        key_range = step.batch.key_range(self.causal, self.window)
        z = self.heads.attend(q, step, key_range, layer_hooks, cross=False)  # [T, H, D]
        if gates is not None:
            z = self._gated(z, hooked(layer_hooks, "attn.hook_gate", gates))
        out = multiply(self.heads.out, z.flatten(1), step.adapted)
        return out if layer_hooks is None else self.heads.deliver_results(z, out, step, layer_hooks)

    def _gated(self, z: Tensor, gates: Tensor) -> Tensor:
        if not self.qkv.native:
            return z * whole_vectors(torch.sigmoid, gates)
        return activate_times(torch.cat((gates.flatten(1), z.flatten(1)), -1), "sigmoid").view(z.shape)

    @property
    def linears(self) -> dict[str, Linear]:
        """Return the matrices by Lightwell's names of their weights."""
        return {"qkv": self.qkv, "attn_out": self.heads.out}

    def write_kv(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> None:
        """Write keys and values of x [T, d] to the cache, if `has_kv`, and serve the hooks that read scores."""
        q = self._write(self._project(x, step)[0], step, layer_hooks)
        if layer_hooks is not None and layer_hooks.attention:
            key_range = step.batch.key_range(self.causal, self.window)
            deliver_rows(self.heads.attended(q, step, key_range, cross=False), layer_hooks)

    def _project(self, x: Tensor, step: BlockInputs) -> tuple[Tensor, Tensor | None]:
        """Return queries, keys and values [T, H + 2K, D] of x [T, d], and the gates [T, H, D] or None."""
        qkv = multiply(self.qkv, x, step.adapted).view(len(x), -1, self.head_dim)
        if not self.gated:
            return qkv, None
        q, gates, kv = torch.split(qkv, [self.num_heads, self.num_heads, 2 * self.num_kv_heads], 1)
        return torch.cat((q, kv), 1), gates

    def _write(self, qkv: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> Tensor:
        """Write the keys and values of qkv [T, H + 2K, D] to the cache; return the rotated queries [T, H, D]."""
        write = self._write_own if self.has_kv else self._rotated
        q = write(qkv, step, layer_hooks)
        if layer_hooks is not None:
            q = layer_hooks("attn.hook_rot_q", q)
            layer_hooks.derive("attn.hook_rot_k", lambda rows: keys_at(step.batch, step.cache, rows))
        return q

    def _write_own(self, qkv: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> Tensor:
        if self.v_norm is not None:
            q, k, v = self._parts(qkv)
            qkv = torch.cat((q, k, _normed(self.v_norm, v)), 1)
        if layer_hooks is not None:
            qkv = self._hook_parts(qkv, layer_hooks)
        if step.projected is not None:
            step.projected[self.kv_layer] = self._parts(qkv)[1:]
        if self.q_norm is not None and self.k_norm is not None:
            q, k, v = self._parts(qkv)
            qkv = torch.cat((_normed(self.q_norm, q), _normed(self.k_norm, k), v), 1)
        return self.heads.attention.write_kv(qkv, step.rotary_tables, step.cache, step.batch)  # [T, H, D]

    def _rotated(self, q: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> Tensor:
        """Return the rotated queries [T, H, D] of q [T, H, D], with keys and values of another layer."""
        if layer_hooks is not None:
            q = layer_hooks("attn.hook_q", q)
            assert step.projected is not None
            for name, part in zip("kv", step.projected[self.kv_layer], strict=True):
                layer_hooks(f"attn.hook_{name}", part[: len(q)])
        if self.q_norm is not None:
            q = _normed(self.q_norm, q)
        if self.qkv.native:
            none = LayerCache(step.cache.keys[:, :0], step.cache.values[:, :0])
            return self.heads.attention.write_kv(q, step.rotary_tables, none, step.batch)
        if step.rotary_tables is None:
            return q
        cos, sin = (table[: len(q)] for table in step.rotary_tables)
        return Rope.rotate(q, cos, sin)

    def _parts(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keys, values = self.num_heads, self.num_heads + self.num_kv_heads
        return qkv[:, :keys], qkv[:, keys:values], qkv[:, values:]

    def _hook_parts(self, qkv: Tensor, layer_hooks: LayerHooks) -> Tensor:
        before = self._parts(qkv)
        after = [layer_hooks(f"attn.hook_{name}", part) for name, part in zip("qkv", before, strict=True)]
        changed = any(new is not old for new, old in zip(after, before, strict=True))
        return torch.cat(after, 1) if changed else qkv


def _normed(norm: Norm, x: Tensor) -> Tensor:
    """Return x [T, heads, D] normalised over each head, or over all heads, by the length of the norm's weight."""
    return norm(x.reshape(-1, norm.weight.shape[0])).view(x.shape)


def keys_at(batch: Batch, cache: LayerCache, rows: Tensor) -> Tensor:
    """Return the cached keys [n, K, D] of batch rows [n]."""
    slots = torch.from_numpy(batch.slots_array)[rows].to(cache.keys.device)
    return cache.keys[slots // batch.block_size, :, :, slots % batch.block_size]


@dataclass(frozen=True, slots=True, eq=False)
class CrossAttention:
    """Attention of a decoder to the encoder's output, by the keys and values that `write_kv` wrote to the cache."""

    q: Linear
    """[H D, d]"""
    kv: Linear
    """[2K D, width of the encoder]"""
    heads: AttentionHeads
    head_dim: int

    def __call__(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> Tensor:
        """Return the attention's output: x [T, d] -> [T, d]."""
        q = multiply(self.q, x, step.adapted).view(len(x), -1, self.head_dim)  # [T, H, D]
        q = hooked(layer_hooks, "cross_attn.hook_rot_q", hooked(layer_hooks, "cross_attn.hook_q", q))
        z = self.heads.attend(q, step, step.batch.cross_key_range, layer_hooks, cross=True)  # [T, H, D]
        out = multiply(self.heads.out, z.flatten(1), step.adapted)
        return out if layer_hooks is None else self.heads.deliver_results(z, out, step, layer_hooks)

    def write_kv(
        self,
        hidden: Tensor,
        cache: LayerCache,
        slots: np.ndarray,
        layer_hooks: LayerHooks | None,
        adapted: AdaptedRows | None = None,
    ) -> None:
        """Write keys and values of the encoder's rows: hidden [E, width], slots [E] (block * block size + place).

        The rows of `layer_hooks` and `adapted` are rows of the encoder's batch.
        """
        kv = multiply(self.kv, hidden, adapted).view(len(hidden), -1, self.head_dim)  # [E, 2K, D]
        if layer_hooks is not None:
            k, v = kv.chunk(2, 1)
            k, v = layer_hooks("cross_attn.hook_k", k), layer_hooks("cross_attn.hook_v", v)
            layer_hooks("cross_attn.hook_rot_k", k)
            kv = torch.cat((k, v), 1)
        self.heads.attention.write_cross_kv(kv, cache, slots)


@dataclass(frozen=True, slots=True, eq=False)
class Feedforward:
    """The mlp with its points."""

    mlp: Mlp

    def __call__(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> Tensor:
        """Return the mlp's output: x [T, d] -> [T, d]."""
        hidden = self.mlp.hidden(x, step.adapted)  # [T, ff]
        if layer_hooks is not None and layer_hooks.wants("mlp.hook_pre", "mlp.hook_pre_linear", "mlp.hook_post"):
            hidden = layer_hooks("mlp.hook_post", self._hook_before(x, hidden, step, layer_hooks))
        return multiply(self.mlp.down, hidden, step.adapted)

    def _hook_before(self, x: Tensor, hidden: Tensor, step: BlockInputs, layer_hooks: LayerHooks) -> Tensor:
        """Serve the hooks of the points before the activation, which the fused product does not keep: they are computed
        again for the rows of the hooks.

        Returns hidden [T, ff], computed again for the rows that hooks changed.
        """
        region = layer_hooks.region("mlp.hook_pre", "mlp.hook_pre_linear")
        if region is None:
            return hidden
        rows = torch.tensor(region.rows, device=x.device)
        adapted = None if step.adapted is None else step.adapted.at(rows.tolist())
        pre, linear = self.mlp.before_activation(x[rows], adapted)
        pre = layer_hooks("mlp.hook_pre", pre, region)
        linear = None if linear is None else layer_hooks("mlp.hook_pre_linear", linear, region)
        changes = [*layer_hooks.changes.get("mlp.hook_pre", ()), *layer_hooks.changes.get("mlp.hook_pre_linear", ())]
        if not changes:
            return hidden
        changed = sorted({row for change in changes for row in change.rows})
        at = torch.tensor(region.of(changed, None).rows, device=x.device)
        hidden = hidden.clone()
        hidden[torch.tensor(changed, device=x.device)] = self.mlp.hidden_from(
            pre[at], None if linear is None else linear[at]
        )
        return hidden


@dataclass(frozen=True, slots=True, eq=False)
class MixedFeedforward:
    """A mixture of experts with its points. Adapters change none of its matrices."""

    experts: Experts

    def __call__(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> Tensor:
        """Return the experts' output: x [T, d] -> [T, d]."""
        return self.of(x, x, layer_hooks)

    def of(self, x: Tensor, routed: Tensor, layer_hooks: LayerHooks | None) -> Tensor:
        """Return the output [T, d] for x [T, d] of the experts that the router chooses for `routed` [T, d]."""
        logits = hooked(layer_hooks, "mlp.hook_router_logits", self.experts.route(routed))  # [T, E]
        probabilities = hooked(layer_hooks, "mlp.hook_expert_weights", self.experts.probabilities(logits))
        chosen, weights = self.experts.choose(probabilities)
        if layer_hooks is not None:
            layer_hooks("mlp.hook_expert_indices", chosen.to(probabilities.dtype))
        return self.experts(x, chosen, weights)


@dataclass(frozen=True, slots=True, eq=False)
class DenseAndExperts:
    """The sum of an mlp and experts, each with its own norms (Gemma 4). The router reads the stream without a norm."""

    dense: Feedforward
    experts: MixedFeedforward
    before_dense: Norm
    after_dense: Norm
    before_experts: Norm
    after_experts: Norm

    def __call__(self, x: Tensor, step: BlockInputs, layer_hooks: LayerHooks | None) -> Tensor:
        """Return the sum: x [T, d] -> [T, d]."""
        dense = self.dense(normed(self.before_dense, "ln2", x, layer_hooks), step, layer_hooks)
        dense = hooked(layer_hooks, "mlp.hook_dense_out", self.after_dense(dense))
        experts = self.after_experts(self.experts.of(self.before_experts(x), x, layer_hooks))
        return dense + hooked(layer_hooks, "mlp.hook_experts_out", experts)
