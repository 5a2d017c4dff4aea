"""A decoder-only transformer over a ragged batch. Knows rows, positions and the cache; knows no requests and no server.

Axes: T rows (tokens of all sequences of the step), H query heads, K key heads, D head dimension, d model width.
"""

import time
from dataclasses import dataclass

import torch

from model.batch import Batch, padded_rows
from model.capture import Looks
from model.config import ModelConfig
from model.kv_cache import KVCache, LayerCache
from model.layers.attention import Attention, AttentionRule, Turns
from model.layers.linear import Linear
from model.layers.mlp import Mlp
from model.layers.norm import Norm
from model.layers.rope import Rope

TAP_BYTES = 64 << 20
"""Most bytes of attention rows in flight at a time: a long prompt's rows are handed out in pieces of this size."""


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One block, pre-norm: x + attention(norm(x)), then x + mlp(norm(x))."""

    index: int
    attn_norm: Norm
    qkv: Linear
    attn_out: Linear
    mlp_norm: Norm
    mlp: Mlp


class Decoder:
    """The network: `forward` runs one step, `logits` reads its result."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        embed: torch.Tensor,
        pos_embed: torch.Tensor | None,
        rope: Rope | None,
        layers: list[DecoderLayer],
        final_norm: Norm,
        head: Linear,
        attention: Attention,
    ) -> None:
        self.config = config
        self.embed = embed  # [vocab, d]
        self.pos_embed = pos_embed  # [context, d]
        self.rope = rope
        self.layers = layers
        self.final_norm = final_norm
        self.head = head
        self.attention = attention

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.dtype

    @property
    def device(self) -> torch.device:
        return self.embed.device

    @torch.inference_mode()
    def forward(self, batch: Batch, cache: KVCache, looks: Looks | None = None) -> torch.Tensor:
        """Run every row through the layers its span needs.

        Returns the final-normed hidden states [T', d] of the leading rows whose spans need all layers, and fills
        `cache` at the rows' slots. Looks are served on the way.
        """
        looks = looks or Looks()
        outside = looks.at(None)
        x = self.embed[batch.token_ids]  # [T, d]
        if self.pos_embed is not None:
            x = x + self.pos_embed[batch.positions]
        turns = None if self.rope is None else self.rope.at(batch.positions)
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            rows = batch.num_rows_at(layer.index)
            if rows == 0:
                return x[:0]
            x = x[: padded_rows(rows)]
            look = looks.at(layer.index)
            if look is not None:
                x = look("hook_resid_pre", x)
            x = x + self._attention(layer, layer_cache, x, rows, batch, turns, looks)
            x = x + layer.mlp(layer.mlp_norm(x))
            if look is not None:
                x = look("hook_resid_post", x)
        hidden = self.final_norm(x)
        if outside is not None:
            outside("ln_final.hook_normalized", hidden)
        return hidden[:rows]

    def _attention(
        self,
        layer: DecoderLayer,
        cache: LayerCache,
        x: torch.Tensor,
        rows: int,
        batch: Batch,
        turns: Turns | None,
        looks: Looks,
    ) -> torch.Tensor:
        config = self.config
        num_heads = config.num_heads + 2 * config.num_kv_heads
        qkv = layer.qkv(layer.attn_norm(x)).view(len(x), num_heads, config.head_dim)  # [T, H + 2K, D]
        q = self.attention.enter(qkv[:rows], turns, cache, batch)  # [T, H, D]
        if looks.attention:
            self._serve_attention(layer.index, q, cache, batch, looks)
        z = self.attention.attend(q, cache, batch, batch.sight(), AttentionRule(config.attention_scale))
        return layer.attn_out(_fill_up(z.flatten(1), len(x)))

    def _serve_attention(self, layer: int, q: torch.Tensor, cache: LayerCache, batch: Batch, looks: Looks) -> None:
        """Recompute the rows asked for from q [T, H, D] and the cached keys, a bounded piece at a time."""
        began = time.perf_counter()
        for tap in looks.attention:
            heads = tap.heads.get(layer)
            if not heads:
                continue
            piece = max(1, TAP_BYTES // (4 * len(heads) * batch.spans[tap.span].num_keys))
            for i in range(0, len(tap.rows), piece):
                found = self.attention.rows(
                    q,
                    tap.rows[i : i + piece],
                    heads,
                    cache,
                    batch.sight(),
                    tap.span,
                    AttentionRule(self.config.attention_scale),
                    tap.kind,
                )
                tap.deliver(layer, i, found)
        looks.attention_seconds += time.perf_counter() - began

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [n, d] of `forward` -> logits [n, vocab], float32 (float64 in float64)."""
        logits = self.head(_fill_up(hidden, padded_rows(len(hidden))))[: len(hidden)]
        return logits if logits.dtype == torch.float64 else logits.float()


def _fill_up(x: torch.Tensor, rows: int) -> torch.Tensor:
    """x [n, d] with rows of zeros up to `rows`."""
    return x if len(x) == rows else torch.nn.functional.pad(x, (0, 0, 0, rows - len(x)))
