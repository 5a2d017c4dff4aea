"""The named points of a forward pass, in TransformerLens's words. Knows names and axes; never imports torch.

A full name is `{stack}blocks.{layer}.{point}` for a point of a block and `{stack}{point}` for one outside; stack is ""
for a model of one stack, "encoder." or "decoder." for an encoder-decoder. The network calls its hooks by the short
name (`attn.hook_q`), `model.capture` carries the numbers away.
"""

from dataclasses import dataclass
from typing import Literal

Stack = Literal["decoder", "encoder"]
Axis = Literal["position", "head", "kv_head", "d_head", "d_model", "d_mlp", "query", "key", "d_vocab", "one"]


@dataclass(frozen=True, slots=True)
class Point:
    """One place. `axes` are those of the answer for one input; the first is along the sequence, except that scores and
    patterns are [head, query, key]. "one" is an axis of length 1, as TransformerLens keeps in `hook_scale`.
    """

    name: str
    axes: tuple[Axis, ...]
    in_block: bool = True
    changeable: bool = True
    """Whether an intervention may stand here."""


_MODEL: tuple[Axis, ...] = ("position", "d_model")
_HEADS: tuple[Axis, ...] = ("position", "head", "d_head")
_KV_HEADS: tuple[Axis, ...] = ("position", "kv_head", "d_head")
_MAP: tuple[Axis, ...] = ("head", "query", "key")
_SCALE: tuple[Axis, ...] = ("position", "one")
_NEURONS: tuple[Axis, ...] = ("position", "d_mlp")


def _norm(name: str) -> tuple[Point, Point]:
    """hook_scale is what the (centred) input is divided by; hook_normalized is the norm's output, weight and bias
    included, which is what the next layer is given. Read only: change what goes in, or what comes out of the next."""
    return (
        Point(f"{name}.hook_scale", _SCALE, changeable=False),
        Point(f"{name}.hook_normalized", _MODEL, changeable=False),
    )


def _attention(name: str) -> tuple[Point, ...]:
    return (
        Point(f"{name}.hook_q", _HEADS),  # as projected: before q/k norm and rotation
        Point(f"{name}.hook_k", _KV_HEADS),
        Point(f"{name}.hook_v", _KV_HEADS),
        Point(f"{name}.hook_rot_q", _HEADS),  # after q/k norm and rotation; there also when a model has neither
        Point(f"{name}.hook_rot_k", _KV_HEADS, changeable=False),  # what the cache holds
        Point(f"{name}.hook_attn_scores", _MAP),  # scaled, capped, biased; -inf where masked
        Point(f"{name}.hook_pattern", _MAP),
        Point(f"{name}.hook_z", _HEADS),
        Point(f"{name}.hook_result", ("position", "head", "d_model")),  # z W_O of each head, without the bias
    )


POINTS: tuple[Point, ...] = (
    Point("hook_embed", _MODEL, in_block=False),  # the token's vector, scaled (and projected) as the model does
    Point("hook_pos_embed", _MODEL, in_block=False),  # what is added for the position
    Point("hook_token_type_embed", _MODEL, in_block=False),
    *(Point(p.name, p.axes, in_block=False, changeable=False) for p in _norm("embed_norm")),
    Point("hook_resid_pre", _MODEL),
    *_norm("ln1"),  # of attention: before it (pre, sandwich), after the sum (post), of its output (output)
    *_attention("attn"),
    *_norm("ln1_post"),  # sandwich: of the attention's output
    Point("hook_attn_out", _MODEL),  # what is added to the stream: after ln1_post, after an "output" norm
    Point("hook_resid_mid", _MODEL),  # the stream the next sublayer is given: after the sum, and in post-norm models
    # after the norm; not there in parallel blocks
    *_norm("ln_cross"),
    *_attention("cross_attn"),  # hook_k, hook_v and the keys of scores and pattern are the encoder's positions
    Point("hook_cross_attn_out", _MODEL),
    Point("hook_resid_mid_cross", _MODEL),
    *_norm("ln2"),  # of the mlp
    Point("mlp.hook_pre", _NEURONS),  # before the activation; gated: of the gate
    Point("mlp.hook_pre_linear", _NEURONS),  # gated: what the activated gate is multiplied with
    Point("mlp.hook_post", _NEURONS),  # what the last matrix is given
    *_norm("ln2_post"),
    Point("hook_mlp_out", _MODEL),
    Point("hook_resid_post", _MODEL),  # in post-norm models after the norm
    *(Point(p.name, p.axes, in_block=False, changeable=False) for p in _norm("ln_final")),
    Point("logits", ("position", "d_vocab"), in_block=False),
)
BY_NAME = {point.name: point for point in POINTS}


def is_cross(point: Point) -> bool:
    """Whether the point is inside cross attention."""
    return point.name.startswith("cross_attn.")


def reads_encoder(point: Point) -> bool:
    """Whether the positions of a decoder's point are the encoder's: keys and values of cross attention."""
    return is_cross(point) and "kv_head" in point.axes
