"""Gives the weights of a network that runs, by name, as it uses them: packed ones unpacked, norms' gains with their
offset.

Names, of the stack "" or "encoder.": embed.weight, embed_out.weight, head.weight and head.bias (the head's also where
it is tied), pos_embed.weight (from position 0), position_bias.by_distance (as `AttentionRule` has it, one for all
layers), final_norm.gain and .bias, and of each block `layers.{i}.` qkv, attn_out, cross_q, cross_kv, cross_out, gate,
up, down (.weight [out, in] and .bias), sinks.by_head (as `AttentionRule` has them), attn_post_norm.gain (of the
attention's output, where it is normed before it is added), stream_scale.weight (the number by which the stream is
multiplied after it), and where each sum is normed attn_norm, cross_norm and mlp_norm (.gain and .bias).
"""

import re

import torch

from model.layers.linear import Linear
from model.layers.mlp import Mlp
from model.layers.norm import Norm
from model.network.stack import Stack
from model.network.transformer import Transformer


class LiveWeights:
    """The weights of a network: call it with a name for a tensor, or None if the network has no such weight."""

    def __init__(self, model: Transformer) -> None:
        self._model = model

    def __call__(self, name: str) -> torch.Tensor | None:
        model = self._model
        owner, _, kind = name.rpartition(".")
        shared = {"head": model.head, "embed_out": model.project_out}
        if owner == "embed":
            return model.tokens.to_dense()
        if owner in shared:
            return _of_linear(shared[owner], kind)
        has_two = model.encoder is not None and model.decoder is not None
        stack = model.encoder if has_two and owner.startswith("encoder.") else model.decoder or model.encoder
        assert stack is not None
        return _of_stack(stack, owner.removeprefix("encoder."), kind)


def _of_stack(stack: Stack, owner: str, kind: str) -> torch.Tensor | None:
    match = re.fullmatch(r"layers\.(\d+)\.(\w+)", owner)
    if match:
        block = stack.blocks[int(match[1])]
        if match[2] == "attn_post_norm":
            return _of_norm(block.attention.after, kind)
        if match[2] == "stream_scale":
            return block.last.stream_scale
        sums = {"attn_norm": block.attention.of_sum, "mlp_norm": block.mlp.of_sum}
        if block.cross is not None:
            sums["cross_norm"] = block.cross.of_sum
        if match[2].endswith("_norm"):
            return _of_norm(sums.get(match[2]), kind)
        if match[2] == "sinks":
            return block.self_attention.heads.rule.sinks
        if match[2] in ("gate", "up"):
            return None if block.one_mlp is None else _of_up(block.one_mlp, match[2], kind)
        return _of_linear(block.linears.get(match[2]), kind)
    if owner == "final_norm":
        return _of_norm(stack.final_norm, kind)
    if owner == "position_bias":
        has_bias = stack.config.position_bias is not None or stack.config.alibi
        return stack.blocks[0].self_attention.heads.rule.bias if has_bias else None
    return stack.embedding.positions if owner == "pos_embed" else None


def _of_up(mlp: Mlp, name: str, kind: str) -> torch.Tensor | None:
    """Return the weight or bias of gate or up, which a gated mlp stores one under the other."""
    whole = _of_linear(mlp.up, kind)
    if mlp.gate is None:
        return whole if name == "up" else None
    return None if whole is None else whole.chunk(2)[("gate", "up").index(name)]


def _of_linear(linear: Linear | None, kind: str) -> torch.Tensor | None:
    if linear is None:
        return None
    return linear.bias if kind == "bias" else linear.to_dense()


def _of_norm(norm: Norm | None, kind: str) -> torch.Tensor | None:
    if norm is None:
        return None
    return norm.weight if kind == "gain" else getattr(norm, "bias", None)
