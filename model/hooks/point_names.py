"""The points of one model: their sizes, the accepted spellings of their names, and similar names for misspelt ones.

`model.hooks.points` lists all points. This module never imports torch.
"""

import difflib
import re
from dataclasses import dataclass

from lightwell.model.config import DeltaNetConfig, ModelConfig, ShortConvConfig
from lightwell.model.hooks.points import BY_NAME, OF_A_NORM, POINTS, Axis, Point, Stack, is_cross, reads_encoder


class UnknownPoint(ValueError):
    """There is no such point in this model; the message gives the reason and similar names."""


@dataclass(frozen=True, slots=True)
class Written:
    """A point as a user wrote it."""

    stack: Stack
    point: Point
    layer: int | None
    """The layer, or None if the name has none."""


def stacks(config: ModelConfig) -> tuple[Stack, ...]:
    """Return the stacks of a model, in the order in which they run."""
    return ("encoder", "decoder") if config.kind == "encoder-decoder" else (config.kind,)


def stack_config(config: ModelConfig, stack: Stack) -> ModelConfig:
    return config.encoder if stack == "encoder" and config.encoder is not None else config


def full_name(config: ModelConfig, stack: Stack, point: str, layer: int | None) -> str:
    """Return the full name, as in `model.hooks.points`: "blocks.3.attn.hook_q", "decoder.logits"."""
    prefix = f"{stack}." if config.kind == "encoder-decoder" else ""
    return f"{prefix}{point}" if layer is None else f"{prefix}blocks.{layer}.{point}"


def short_name(config: ModelConfig, stack: Stack, point: str) -> str:
    """Return the point's name without a layer, as in messages; without a prefix: the only stack or the decoder."""
    prefix = "encoder." if stack == "encoder" and config.kind == "encoder-decoder" else ""
    return prefix + point


_NOT_BOTH = "no layer of it has an mlp and experts"


def why_absent(config: ModelConfig, stack: Stack, point: Point, layer: int | None = None) -> str | None:
    """Return why this stack (or this layer, if one is given) does not have the point, or None if it does."""
    own, name = stack_config(config, stack), point.name
    group = name.partition(".")[0]
    reasons = {
        "hook_pos_embed": (own.learned_positions or own.sinusoidal_positions, "no position is added to its embedding"),
        "hook_token_type_embed": (own.num_token_types > 0, "it has no token types"),
        "embed_norm": (own.embedding_norm, "its embedding is not normalised"),
        "ln1": (layer != 0 or own.first_attention_norm, "its first block has no norm before attention"),
        "ln1_post": (own.norm_placement == "sandwich", f"its norms are placed {own.norm_placement!r}, one a sublayer"),
        "ln2_post": (own.norm_placement == "sandwich", f"its norms are placed {own.norm_placement!r}, one a sublayer"),
        "hook_resid_mid": (not own.parallel_blocks, "attention and mlp are added together, in parallel blocks"),
        "ln_final": (own.final_norm, "no norm follows its last block"),
        "logits": (own.has_head and stack == stacks(config)[-1], "no head follows its last block"),
    }
    attends, has_conv, has_delta = _kinds_of_mixer(own, layer)
    attending = f"layers {', '.join(map(str, own.attention_layers))} have attention"
    other = "no attention" if layer is None else f"a {own.mixer_name(layer)} in place of attention"
    reasons["attn"] = (attends, f"its layer has {other}; {attending}")
    reasons["attn.hook_gate"] = (attends and own.attention_gate, "its attention has no gates")
    if attends is False:
        reasons["attn.hook_gate"] = reasons["attn"]
    for group_of_one, is_there in (("conv", has_conv), ("delta", has_delta)):
        reasons[group_of_one] = (is_there, "it has none" if layer is None else f"its layer has {own.mixer_name(layer)}")
    for of_tokens in ("hook_resid_mid_mlp", "hook_per_layer_input", "ln_per_layer", "hook_per_layer_out"):
        reasons[of_tokens] = (own.per_layer_size is not None, "its layers get nothing of the tokens themselves")
    for of_streams in ("hook_predicted", "hook_laurel_out"):
        reasons[of_streams] = (own.altup is not None, "it has one residual stream")
    is_dense, is_mixed = _kinds_of_mlp(own, layer)
    here = "it" if layer is None else "its layer"
    for point_of_one in ("mlp.hook_pre", "mlp.hook_pre_linear", "mlp.hook_post"):
        reasons[point_of_one] = (is_dense, f"{here} has experts, and their neurons are not available")
    if is_dense and not own.gated_mlp:
        reasons["mlp.hook_pre_linear"] = (False, "its mlp is not gated")
    for point_of_many in ("mlp.hook_router_logits", "mlp.hook_expert_weights", "mlp.hook_expert_indices"):
        reasons[point_of_many] = (is_mixed, f"{here} has no experts")
    for of_both in ("mlp.hook_dense_out", "mlp.hook_experts_out"):
        reasons[of_both] = (is_dense and is_mixed and own.experts is not None and own.experts.beside_mlp, _NOT_BOTH)
    for cross in ("ln_cross", "cross_attn", "hook_cross_attn_out", "hook_resid_mid_cross"):
        reasons[cross] = (own.cross_attention, "it has no cross attention")
    is_there, reason = reasons.get(name) or reasons.get(group) or (True, "")
    return None if is_there else reason


def _kinds_of_mixer(config: ModelConfig, layer: int | None) -> tuple[bool, bool, bool]:
    """Return whether a layer, or any layer if it is None, has attention, a short convolution, or a delta net."""
    attends = layer is None or config.has_attention(layer)
    recurs = config.recurrence is not None and (layer is None or not config.has_attention(layer))
    is_conv, is_delta = (isinstance(config.recurrence, kind) for kind in (ShortConvConfig, DeltaNetConfig))
    return attends, recurs and is_conv, recurs and is_delta


def _kinds_of_mlp(config: ModelConfig, layer: int | None) -> tuple[bool, bool]:
    """Return whether a layer, or any layer if it is None, has one mlp, and whether it has experts."""
    if layer is not None:
        return config.has_mlp(layer), config.has_experts(layer)
    layers = range(config.num_layers)
    return bool(config.dense_layers), any(map(config.has_experts, layers))


def points_of(config: ModelConfig, stack: Stack) -> tuple[Point, ...]:
    """Return the points that this stack has, in the order in which a forward pass reaches them."""
    return tuple(point for point in POINTS if why_absent(config, stack, point) is None)


def sizes(
    config: ModelConfig, stack: Stack, point: Point, length: int, encoder_length: int = 0, layer: int | None = None
) -> tuple[int, ...]:
    """Return the lengths of a point's axes for an input of `length` tokens (of this stack) and `encoder_length` of the
    encoder, in a layer, or in the first one.
    """
    own = stack_config(config, stack).at(layer or 0)
    of_encoder = reads_encoder(point)
    lengths: dict[Axis, int] = {
        "position": encoder_length if of_encoder else length,
        "query": length,
        "key": encoder_length if is_cross(point) else length,
        "head": own.num_heads,
        "kv_head": own.num_kv_heads,
        "d_head": own.head_dim,
        "d_model": own.hidden_size,
        "d_mlp": own.intermediate_size,
        "expert": own.experts.num_experts if own.experts else 0,
        "chosen": own.experts.num_chosen if own.experts else 0,
        "d_per_layer": own.per_layer_size or 0,
        "d_vocab": own.vocab_size,
        "one": 1,
    }
    if isinstance(own.recurrence, DeltaNetConfig):
        net = own.recurrence
        lengths |= {"d_convolved": net.convolved_width, "d_key": net.key_dim, "d_value": net.value_dim}
        lengths |= {"key_head": net.num_key_heads, "value_head": net.num_value_heads}
    return tuple(lengths[axis] for axis in point.axes)


def _spellings() -> dict[str, str]:
    """Return the names that users of TransformerLens before version 4 write -> ours: "attn.hook_q", "attn.q", and of
    attention also "hook_q" and "q".
    """
    found: dict[str, str] = {}
    for point in POINTS:
        short = point.name.replace("hook_", "")
        found |= {point.name: point.name, short: point.name}
        if short.startswith("attn."):
            found |= {point.name.removeprefix("attn."): point.name, short.removeprefix("attn."): point.name}
    return found


_SPELLINGS = _spellings()
_VERSION_4 = {
    "embed.hook_out": "hook_embed",
    "pos_embed.hook_out": "hook_pos_embed",
    "hook_in": "hook_resid_pre",
    "hook_out": "hook_resid_post",
    **{f"{attn}.{name}.hook_out": f"{attn}.hook_{name}" for attn in ("attn", "cross_attn") for name in "qkv"},
    "attn.o.hook_in": "attn.hook_z",
    "cross_attn.o.hook_in": "cross_attn.hook_z",
    "mlp.out.hook_in": "mlp.hook_post",
}
"""Names that TransformerLens 4 gave to points of any model."""


def version_4_names(config: ModelConfig, stack: Stack) -> dict[str, str]:
    """Return the names that TransformerLens 4 gave to this stack's points -> theirs in `model.hooks.points`.

    What a name means depends on the model: `attn.hook_out` comes before a norm of the attention's output, so it is
    `hook_attn_out` only if there is no such norm, and `unembed.hook_out` comes before the soft cap of the logits.
    Source: `hook_aliases` in transformer_lens 4.3, and its numbers (tests/model/test_transformer_lens.py).
    """
    own = stack_config(config, stack)
    names = dict(_VERSION_4)
    if own.final_logit_softcap is None and (own.logit_scale == 1 or own.cross_attention):  # Granite scales the logits
        names |= {"hook_unembed": "logits", "unembed.hook_out": "logits"}
    if own.final_norm and own.logit_scale == 1 and own.embedding_size is None and own.kind == "decoder":
        names |= {"unembed.hook_in": "ln_final.hook_out"}
    if own.final_norm and own.altup is None:
        names |= {"ln_final.hook_in": f"blocks.{own.num_layers - 1}.hook_resid_post"}
    names |= (
        {"mlp.gate.hook_out": "mlp.hook_pre", "mlp.in.hook_out": "mlp.hook_pre_linear"}
        if own.gated_mlp
        else {"mlp.in.hook_out": "mlp.hook_pre"}
    )
    before = own.norm_placement in ("pre", "sandwich")
    attn_in = "ln1.hook_out" if before else "hook_resid_pre"
    mlp_in = "ln2.hook_out" if before else "hook_resid_mid_cross" if own.cross_attention else "hook_resid_mid"
    names |= {f"{reader}.hook_in": attn_in for reader in ("attn", "attn.q", "attn.k", "attn.v")}
    names |= {f"{reader}.hook_in": mlp_in for reader in ("mlp", "mlp.in", *["mlp.gate"][: own.gated_mlp])}
    if own.norm_placement in ("pre", "post") and own.residual_scale == 1:
        outputs = {"attn": "attn.o", "cross_attn": "cross_attn.o", "mlp": "mlp.out"}
        names |= {f"{name}.hook_out": f"hook_{of}_out" for of, last in outputs.items() for name in (of, last)}
    if before:
        names |= {"ln1.hook_in": "hook_resid_pre"}
        if not own.parallel_blocks and not own.cross_attention:
            names |= {"ln2.hook_in": "hook_resid_mid"}
    if own.norm_placement == "output":  # ours have one norm a sublayer, whichever side of it the norm is on
        names |= {f"ln{n}_post.{name}": f"ln{n}.{name}" for n in (1, 2) for name in OF_A_NORM}
    return names


_IN_BLOCK = re.compile(r"blocks\.(-?\d{1,9})\.(.+)")
_WITH_LAYER = re.compile(r"(.+)\.(-?\d{1,9})")


def read_name(config: ModelConfig, name: str) -> Written:
    """Return the point of a name: full ("decoder.blocks.0.attn.hook_q"), or short ("hook_resid_post", "q",
    "resid_post.10"), as TransformerLens writes it before version 4 or since ("blocks.0.attn.q.hook_out").

    Without a prefix a name of an encoder-decoder means the decoder. The layer is not checked against the model. Raises
    UnknownPoint.
    """
    stack, rest = _stack_of(config, name)
    names, layer = version_4_names(config, stack), None
    if _IN_BLOCK.fullmatch(names.get(rest, "")):  # a point outside the blocks there, and of the last block here
        rest = names[rest]
    if match := _IN_BLOCK.fullmatch(rest):
        layer, rest = int(match[1]), match[2]
    elif match := _WITH_LAYER.fullmatch(rest):
        rest, layer = match[1], int(match[2])
    known = _SPELLINGS.get(names.get(rest, rest))
    if known is None:
        raise UnknownPoint(f"there is no point {name[:80]!r}; similar names are {near_names(config, name)}")
    point = BY_NAME[known]
    if layer is not None and not point.in_block:
        shown = short_name(config, stack, point.name)
        raise UnknownPoint(f"{shown!r} is outside the blocks; leave out layer; {shown!r} is accepted")
    absent_at = layer if layer is None or layer >= 0 else layer + stack_config(config, stack).num_layers
    reason = why_absent(config, stack, point, absent_at)
    if reason is not None:
        raise UnknownPoint(
            f"this model has no point {name[:80]!r}: {reason}; similar names are {near_names(config, name)}"
        )
    return Written(stack, point, layer)


def _stack_of(config: ModelConfig, name: str) -> tuple[Stack, str]:
    """Return the stack that a name's prefix means, and the rest of the name. Raises UnknownPoint for a stack that the
    model does not have.
    """
    has = stacks(config)
    for stack in ("encoder", "decoder"):
        rest = name.removeprefix(f"{stack}.")
        if rest == name:
            continue
        if stack not in has:
            raise UnknownPoint(
                f"this model has no {stack}, so no point {name[:80]!r}; similar names are {near_names(config, rest)}"
            )
        return stack, rest
    return has[-1], name


def near_names(config: ModelConfig, name: str, changeable: bool = False, count: int = 5) -> str:
    """Return the names of the model's points that are similar to `name`, at least the most similar one, for a message.

    changeable: name only the points that an intervention may change.
    """
    wanted = re.sub(r"blocks\.-?\d+\.|\.-?\d+$", "", name)
    has: list[str] = []
    for stack in reversed(stacks(config)):
        own = {point.name for point in points_of(config, stack) if point.changeable or not changeable}
        others = (other for other, meant in version_4_names(config, stack).items() if meant in own)
        has += [short_name(config, stack, each) for each in (*own, *others)]
    near = difflib.get_close_matches(wanted, has, count) or difflib.get_close_matches(wanted, has, 1, cutoff=0.0)
    return ", ".join(dict.fromkeys(near))
