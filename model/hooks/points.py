"""The named points of a forward pass, with their axes, by TransformerLens's names. This module never imports torch.

A full name is `{stack}blocks.{layer}.{point}` for a point of a block and `{stack}{point}` for one outside; stack is ""
for a model of one stack, "encoder." or "decoder." for an encoder-decoder. The network calls its hooks by the short name
(`attn.hook_q`).
"""

from dataclasses import dataclass
from typing import Literal

Stack = Literal["decoder", "encoder"]
Axis = Literal[
    "position", "head", "kv_head", "d_head", "d_model", "d_convolved", "key_head", "d_key", "value_head", "d_value",
    "d_mlp", "expert", "chosen", "d_per_layer", "query", "key", "d_vocab", "one",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Point:
    """One point. `axes` are the axes of the answer for one input; the first is along the sequence, except that scores
    and patterns are [head, query, key]. "one" is an axis of length 1, which TransformerLens keeps in `hook_scale`.
    """

    name: str
    axes: tuple[Axis, ...]
    formula: str
    """How the numbers are computed from other points."""
    about: str = ""
    """The operations that the numbers have and have not been through: gain, rotation, scale."""
    in_block: bool = True
    changeable: bool = True
    """Whether an intervention may change it."""


_MODEL: tuple[Axis, ...] = ("position", "d_model")
_HEADS: tuple[Axis, ...] = ("position", "head", "d_head")
_KV_HEADS: tuple[Axis, ...] = ("position", "kv_head", "d_head")
_MAP: tuple[Axis, ...] = ("head", "query", "key")
_SCALE: tuple[Axis, ...] = ("position", "one")
_NEURONS: tuple[Axis, ...] = ("position", "d_mlp")
_EXPERTS: tuple[Axis, ...] = ("position", "expert")


def _norm(name: str, of: str, in_block: bool = True) -> tuple[Point, ...]:
    """Return the points of a norm. They are read-only: an intervention can change the norm's input instead."""
    points = (
        ("hook_scale", _SCALE, "sqrt(mean((x - mean(x))^2) + eps); RMSNorm: sqrt(mean(x^2) + eps)", f"x is {of}"),
        (
            "hook_normalized",
            _MODEL,
            "(x - mean(x)) / hook_scale; RMSNorm: x / hook_scale",
            f"x is {of}; before gain and bias, never rounded to a low precision",
        ),
        ("hook_out", _MODEL, "hook_normalized * gain + bias", "the output of the norm, after gain and bias"),
    )
    return tuple(
        Point(f"{name}.{point}", axes, formula, about, in_block, changeable=False)
        for point, axes, formula, about in points
    )


def _attention(name: str, x: str, keys: str) -> tuple[Point, ...]:
    """Return the points of one attention. x: the input of its queries; keys: the input of its keys and values."""
    cross = "; positions are the encoder's" if keys != x else ""
    gated = "before the sigmoid; one number for each of hook_z"
    gate = () if cross else (Point(f"{name}.hook_gate", _HEADS, f"{x} W_gate + b_gate", gated),)
    turned = "after the norm of queries and keys and the rotation, where the model has them; not scaled"
    return (
        Point(f"{name}.hook_q", _HEADS, f"{x} W_Q + b_Q", "before q/k norm and rotation; not scaled"),
        Point(f"{name}.hook_k", _KV_HEADS, f"{keys} W_K + b_K", f"before q/k norm and rotation{cross}"),
        Point(
            f"{name}.hook_v", _KV_HEADS, f"{keys} W_V + b_V", f"never rotated; after the norm of values, if any{cross}"
        ),
        Point(f"{name}.hook_rot_q", _HEADS, "rotate(norm(hook_q), position)", turned),
        Point(
            f"{name}.hook_rot_k",
            _KV_HEADS,
            "rotate(norm(hook_k), position)",
            f"as hook_rot_q; stored in the KV cache{cross}",
            changeable=False,
        ),
        Point(
            f"{name}.hook_attn_scores",
            _MAP,
            "cap(hook_rot_q . hook_rot_k * attention_scale) + position bias",
            "after scale, soft cap and bias, in this order; -inf where masked",
        ),
        Point(
            f"{name}.hook_pattern",
            _MAP,
            "softmax of hook_attn_scores over the keys" + ("" if cross else ", and the head's sink where it has one"),
            "rows sum to 1; 0 where masked" + ("" if cross else "; with a sink (gpt-oss) rows sum to less than 1"),
        ),
        Point(f"{name}.hook_z", _HEADS, "sum over the keys of hook_pattern * hook_v", "before a gate and W_O"),
        *gate,
        Point(
            f"{name}.hook_result",
            ("position", "head", "d_model"),
            "hook_z W_O of each head; gated: sigmoid(hook_gate) * hook_z W_O",
            "without b_O",
        ),
    )


_DELTA_KEYS: tuple[Axis, ...] = ("position", "key_head", "d_key")
_DELTA_VALUES: tuple[Axis, ...] = ("position", "value_head", "d_value")
_DELTA = (
    Point("delta.hook_in", ("position", "d_convolved"), "n W_qkv", "the input of the convolution"),
    Point("delta.hook_q", _DELTA_KEYS, "silu of the convolution of its part of hook_in", "before it has length 1"),
    Point("delta.hook_k", _DELTA_KEYS, "silu of the convolution of its part of hook_in", "before it has length 1"),
    Point("delta.hook_v", _DELTA_VALUES, "silu of the convolution of its part of hook_in"),
    Point("delta.hook_beta", ("position", "value_head"), "sigmoid(n W_b)", "the share of a value that is written"),
    Point(
        "delta.hook_decay",
        ("position", "value_head"),
        "exp(-exp(A_log) * softplus(n W_a + b_dt))",
        "factor of the head's state, the matrix S, before it writes",
    ),
    Point(
        "delta.hook_z",
        _DELTA_VALUES,
        "q S / sqrt(d_key), where S = hook_decay S + k (hook_beta (v - k hook_decay S))",
        "q and k divided by their lengths; before the norm",
    ),
    Point("delta.hook_out", _DELTA_VALUES, "RMSNorm(hook_z) * silu(n W_z)", "the input of W_out"),
)

POINTS: tuple[Point, ...] = (
    Point(
        "hook_embed", _MODEL, "W_E[token] * embedding_scale", "projected where the table is narrower", in_block=False
    ),
    Point("hook_pos_embed", _MODEL, "W_pos[position], or sines and cosines of it", in_block=False),
    Point("hook_token_type_embed", _MODEL, "W_type[type]", in_block=False),
    *_norm("embed_norm", "the sum of the embeddings", in_block=False),
    Point("hook_resid_pre", _MODEL, "hook_resid_post of the block before; of the first the sum of the embeddings"),
    Point(
        "hook_predicted",
        _MODEL,
        "hook_resid_pre + the sum of all streams, each weighted as hook_resid_pre decides",
        "Gemma 3n: the input of the sublayers, predicted from its several streams; hook_resid_pre and "
        "hook_resid_post are the first stream",
    ),
    *_norm(
        "ln1",
        "hook_resid_pre; in post-norm models hook_resid_pre + hook_attn_out; in OLMo 2 the attention's output",
    ),
    *_attention("attn", "n", "n"),
    Point("conv.hook_in", _MODEL, "B * x, both parts of n W_in + b_in", "the input of the convolution"),
    Point(
        "conv.hook_out", _MODEL, "C * the convolution of conv.hook_in, C a part of n W_in + b_in", "the input of W_out"
    ),
    *_DELTA,
    *_norm("ln1_post", "the attention's output (Gemma 2 and 3)"),
    Point(
        "hook_attn_out",
        _MODEL,
        "sum over the heads of attn.hook_result + b_O; of a convolution or a delta net hook_out W_out + b_out",
        "the addition to the stream: after a norm of the attention's output, if any, times residual_scale",
    ),
    Point("hook_laurel_out", _MODEL, "n + norm(n W_left W_right)", "Gemma 3n: the low-rank path around attention"),
    Point(
        "hook_resid_mid",
        _MODEL,
        "hook_resid_pre + hook_attn_out",
        "in post-norm models after the norm; absent in parallel blocks; Gemma 3n: (hook_predicted + hook_attn_out + "
        "hook_laurel_out) / sqrt(2)",
    ),
    *_norm("ln_cross", "hook_resid_mid; in post-norm models hook_resid_mid + hook_cross_attn_out"),
    *_attention("cross_attn", "n", "the encoder's output"),
    Point("hook_cross_attn_out", _MODEL, "sum over the heads of cross_attn.hook_result + b_O"),
    Point(
        "hook_resid_mid_cross",
        _MODEL,
        "hook_resid_mid + hook_cross_attn_out",
        "in post-norm models after the norm",
    ),
    *_norm(
        "ln2",
        "the stream before the mlp; in post-norm models that + hook_mlp_out; in OLMo 2 the mlp's output",
    ),
    Point("mlp.hook_pre", _NEURONS, "n W_in + b_in; gated: n W_gate", "before the activation"),
    Point("mlp.hook_pre_linear", _NEURONS, "n W_in", "the factor of the activated gate"),
    Point("mlp.hook_post", _NEURONS, "act(hook_pre); gated: act(hook_pre) * hook_pre_linear", "the input of W_out"),
    Point("mlp.hook_router_logits", _EXPERTS, "n W_router + b_router", "of a layer with experts, each a gated mlp"),
    Point(
        "mlp.hook_expert_weights",
        _EXPERTS,
        "softmax of hook_router_logits over the experts",
        "before the largest are chosen (and, in some models, divided by their sum): a change changes who is chosen",
    ),
    Point(
        "mlp.hook_expert_indices",
        ("position", "chosen"),
        "the experts with the largest hook_expert_weights",
        "largest first; the weighted outputs of these experts are summed",
        changeable=False,
    ),
    Point("mlp.hook_dense_out", _MODEL, "norm(mlp.hook_post W_out)", "of a layer with an mlp and experts"),
    Point(
        "mlp.hook_experts_out",
        _MODEL,
        "norm(weighted sum of the experts' outputs for the normed stream)",
        "of a layer with an mlp and experts: both are summed",
    ),
    *_norm("ln2_post", "the mlp's output (Gemma 2 and 3)"),
    Point(
        "hook_mlp_out",
        _MODEL,
        "mlp.hook_post W_out + b_out; of experts their weighted sum",
        "the addition to the stream: after a norm of the mlp's output, if any, times residual_scale",
    ),
    Point("hook_resid_mid_mlp", _MODEL, "hook_resid_mid + hook_mlp_out", "of layers with per-layer embeddings"),
    Point(
        "hook_per_layer_input",
        ("position", "d_per_layer"),
        "(norm(hook_embed W_layers / sqrt(d_model)) + W_tokens[token] * sqrt(d_per_layer)) / sqrt(2)",
        "the per-layer embedding of the token",
    ),
    *_norm("ln_per_layer", "(act(hook_resid_mid_mlp W_gate) * hook_per_layer_input) W_out"),
    Point("hook_per_layer_out", _MODEL, "ln_per_layer.hook_out", "the addition to the stream"),
    Point(
        "hook_resid_post",
        _MODEL,
        "the stream before the mlp + hook_mlp_out; parallel blocks: hook_resid_pre + hook_attn_out + hook_mlp_out",
        "in post-norm models after the norm; Gemma 4: with hook_per_layer_out, times a layer factor; "
        "Gemma 3n: hook_predicted + w (hook_resid_mid_mlp - hook_predicted), with w from hook_resid_mid_mlp; "
        "hook_per_layer_out goes to the other streams",
    ),
    *_norm("ln_final", "hook_resid_post of the last block", in_block=False),
    Point(
        "logits",
        ("position", "d_vocab"),
        "cap(ln_final.hook_out W_U * logit_scale + b_U)",
        "after the soft cap, before temperature, penalties and softmax; an encoder's head transforms the state first",
        in_block=False,
    ),
)
OF_A_NORM = ("hook_scale", "hook_normalized", "hook_out")
BY_NAME = {point.name: point for point in POINTS}


def is_cross(point: Point) -> bool:
    """Return whether the point is inside cross attention."""
    return point.name.startswith("cross_attn.")


def reads_encoder(point: Point) -> bool:
    """Return whether the positions of a decoder's point are the encoder's: keys and values of cross attention."""
    return is_cross(point) and "kv_head" in point.axes
