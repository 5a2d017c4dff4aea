"""Weights of a running network by name, as it uses them: unpacked, and gains of norms with their offset.

Names, with the stack's prefix "" or "encoder.": embed.weight, embed_in.weight, embed_out.weight, head.weight and
head.bias (also of a tied head), transform_dense (.weight and .bias) and transform_norm (.gain and .bias) before an
encoder's head, classifier_dense, classifier_norm and classifier of the head that labels an input, pos_embed.weight
(from position 0), position_bias.by_distance (see `AttentionRule`, one for all layers), final_norm.gain and .bias, and
of each block `layers.{i}.` qkv, attn_out, cross_q, cross_kv, cross_out, gate, up, down, router, experts.{e}. and
shared. gate, up, down (.weight [out, in] and .bias), sinks.by_head (see `AttentionRule`), attn_post_norm.gain (of a
norm of the attention's output before the sum), stream_scale.weight (the factor of the stream after the block),
attn_norm, cross_norm and mlp_norm (.gain and .bias) of norms after sums, and by the names of their points ln1,
ln1_post, ln_cross, ln2, ln2_post, q_norm and k_norm (.gain and .bias); embed_norm is the embedding's.
rotary.frequencies, of a block that rotates queries and keys, is no parameter.
"""

import re

import torch

from lightwell.model.layers.experts import Experts
from lightwell.model.layers.linear import Linear
from lightwell.model.layers.mlp import Mlp
from lightwell.model.layers.norm import Norm
from lightwell.model.network.block import Block
from lightwell.model.network.stack import Stack
from lightwell.model.network.sublayers import DenseAndExperts, MixedFeedforward, SelfAttention
from lightwell.model.network.transformer import Transformer


class LiveWeights:
    """The weights of a network: call it with a name for a tensor, or None if the network has no such weight."""

    def __init__(self, model: Transformer) -> None:
        self._model = model

    def __call__(self, name: str) -> torch.Tensor | None:
        owner, _, kind = name.rpartition(".")
        if owner == "embed":
            return self._model.tokens.to_dense()
        if owner in ("transform_norm", "classifier_norm"):
            head = self._model.head_transform if owner == "transform_norm" else self._model.classifier
            return None if head is None else _of_norm(head.norm, kind)
        stack, rest = self._stack_of(owner)
        linear, part = self._linear(stack, rest)
        if linear is None:
            return _of_stack(stack, rest, kind)
        whole = linear.bias if kind == "bias" else linear.to_dense()
        return whole if part is None or whole is None else whole.chunk(2)[part]

    def token_rows(self, ids: tuple[int, ...]) -> torch.Tensor:
        """Return some rows of the token table without unpacking the others of a large, quantised table."""
        tokens = self._model.tokens
        return tokens(torch.tensor(ids, device=tokens.device))

    def stored_as(self, name: str) -> str | None:
        """Return the format in which a weight is stored, as readable text, or None if there is no such weight."""
        owner, _, kind = name.rpartition(".")
        if owner == "embed":
            return self._model.tokens.stored
        linear = self._linear(*self._stack_of(owner))[0]
        if linear is not None and kind == "weight":
            return linear.weight.stored
        found = self(name)
        return None if found is None else str(found.dtype).removeprefix("torch.")

    def _stack_of(self, owner: str) -> tuple[Stack, str]:
        """Return the stack of a weight, and the name of its owner without the stack's prefix."""
        model = self._model
        has_two = model.encoder is not None and model.decoder is not None
        stack = model.encoder if has_two and owner.startswith("encoder.") else model.decoder or model.encoder
        assert stack is not None
        return stack, owner.removeprefix("encoder.")

    def _linear(self, stack: Stack, owner: str) -> tuple[Linear | None, int | None]:
        """Return the linear layer with a weight, or None, and the half of its rows if the weight is only one half: a
        gated mlp stores gate above up.
        """
        model = self._model
        shared = {"head": model.head, "embed_in": stack.embedding.project, "embed_out": model.project_out}
        if model.head_transform is not None:
            shared["transform_dense"] = model.head_transform.dense
        if model.classifier is not None:
            shared |= {"classifier_dense": model.classifier.dense, "classifier": model.classifier.out}
        match = re.fullmatch(r"layers\.(\d+)\.([\w.]+)", owner)
        if match is None:
            return shared.get(owner), None
        block = stack.blocks[int(match[1])]
        path, _, last = match[2].rpartition(".")
        mlp = _expert(block, path) if path else block.one_mlp
        if last in ("gate", "up") and mlp is not None:
            halves = {"gate": 0, "up": 1}
            return (mlp.up, halves[last]) if mlp.gate is not None else (mlp.up if last == "up" else None, None)
        if path:
            return (None if mlp is None else mlp.down), None
        experts = _experts(block)
        if last == "router":
            return (None if experts is None else experts.router), None
        return block.linears.get(last), None


def _experts(block: Block) -> Experts | None:
    mixed = block.mlp.f.experts if isinstance(block.mlp.f, DenseAndExperts) else block.mlp.f
    return mixed.experts if isinstance(mixed, MixedFeedforward) else None


def _expert(block: Block, path: str) -> Mlp | None:
    """Return the expert of a path, "experts.3" or "shared"."""
    experts = _experts(block)
    if experts is None:
        return None
    return experts.shared if path == "shared" else experts.experts[int(path.rpartition(".")[2])]


def _of_stack(stack: Stack, owner: str, kind: str) -> torch.Tensor | None:
    match = re.fullmatch(r"layers\.(\d+)\.(\w+)", owner)
    if match:
        block = stack.blocks[int(match[1])]
        if match[2] == "stream_scale":
            return block.residuals[-1].stream_scale
        if match[2] == "rotary":
            rope = stack.ropes[int(match[1])]
            return None if rope is None else rope.frequencies
        if match[2] == "sinks":
            return block.self_attention.heads.rule.sinks
        return _of_norm(_norms(block).get(match[2]), kind)
    if owner in ("final_norm", "embed_norm"):
        return _of_norm(stack.final_norm if owner == "final_norm" else stack.embedding.norm, kind)
    if owner == "position_bias":
        has_bias = stack.config.position_bias is not None or stack.config.alibi
        return stack.blocks[0].self_attention.heads.rule.bias if has_bias else None
    return stack.embedding.positions if owner == "pos_embed" else None


def _norms(block: Block) -> dict[str, Norm | None]:
    """Return a block's norms of the attention's output and of sums by our names, and all by their points' names."""
    found: dict[str, Norm | None] = {"attn_post_norm": block.attention.after}
    found |= {"attn_norm": block.attention.of_sum, "mlp_norm": block.mlp.of_sum}
    if block.cross is not None:
        found["cross_norm"] = block.cross.of_sum
    if isinstance(block.attention.f, SelfAttention):
        found |= {"q_norm": block.attention.f.q_norm, "k_norm": block.attention.f.k_norm}
    for residual in (block.attention, block.cross, block.mlp):
        if residual is not None:
            first = residual.before or residual.of_sum
            found[residual.norm] = first or residual.after
            found[f"{residual.norm}_post"] = residual.after if first is not None else None
    if isinstance(block.mlp.f, DenseAndExperts):
        found["ln2"] = block.mlp.f.before_dense
    return found


def _of_norm(norm: Norm | None, kind: str) -> torch.Tensor | None:
    if norm is None:
        return None
    return norm.weight if kind == "gain" else getattr(norm, "bias", None)
