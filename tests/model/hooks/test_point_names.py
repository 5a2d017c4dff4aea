"""Names of points: a model's names, their spellings, the suggestions of a refusal."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell.model.config import AltUpConfig, DeltaNetConfig, ExpertsConfig, ModelConfig, ShortConvConfig
from lightwell.model.hooks.point_names import (
    UnknownPoint,
    full_name,
    near_names,
    points_of,
    read_name,
    sizes,
    stacks,
    why_absent,
)
from lightwell.model.hooks.points import BY_NAME, POINTS
from tests.server.serving import tiny_config

DECODER = tiny_config()
DELTA = DeltaNetConfig(layers=(1,), kernel_size=3, num_key_heads=2, num_value_heads=4, key_dim=6, value_dim=5)
EXPERTS = ExpertsConfig(num_experts=4, num_chosen=2, intermediate_size=8, normalized=True)
ENCODER = replace(DECODER, kind="encoder", has_head=False, causal=False, final_norm=False, norm_placement="post")
BOTH = replace(
    DECODER,
    kind="encoder-decoder",
    cross_attention=True,
    encoder=replace(ENCODER, num_layers=2, num_heads=2, num_kv_heads=2, intermediate_size=5),
)


def names(config: ModelConfig, stack: Any) -> set[str]:
    return {point.name for point in points_of(config, stack)}


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_every_point_can_be_written_in_full_short_and_without_hook(point: Any) -> None:
    config = replace(
        BOTH, norm_placement="sandwich", gated_mlp=True, embedding_norm=True, num_token_types=2, learned_positions=True
    )
    if "per_layer" in point.name or point.name == "hook_resid_mid_mlp":
        config = replace(config, per_layer_size=3)
    if point.name in ("hook_predicted", "hook_laurel_out"):
        config = replace(config, altup=AltUpConfig(num_streams=2, laurel_rank=1, scales_corrected=True))
    if "expert" in point.axes or "chosen" in point.axes:
        config = replace(config, experts=EXPERTS)
    if point.name.startswith("conv."):
        config = replace(config, recurrence=ShortConvConfig(layers=(1,), kernel_size=3))
    if point.name.startswith("delta."):
        config = replace(config, recurrence=DELTA)
    if point.name == "attn.hook_gate":
        config = replace(config, attention_gate=True)
    if point.name in ("mlp.hook_dense_out", "mlp.hook_experts_out"):
        config = replace(config, experts=replace(EXPERTS, dense_layers=(), beside_mlp=True))
    layer = 1 if point.in_block else None
    full = full_name(config, "decoder", point.name, layer)
    assert full.startswith("decoder.")
    for written in (full, full.removeprefix("decoder."), full.replace("hook_", "")):
        read = read_name(config, written)
        assert (read.stack, read.point, read.layer) == ("decoder", point, layer), written
    assert read_name(config, point.name).layer is None
    if layer is not None:
        assert read_name(config, f"{point.name}.{layer}").layer == layer


def test_short_names_of_transformer_lens_mean_attention() -> None:
    for short in ("q", "k", "v", "z", "pattern", "attn_scores", "result", "rot_q"):
        for written in (short, f"hook_{short}"):
            assert read_name(BOTH, written).point.name == f"attn.hook_{short}"


@pytest.mark.parametrize(
    ("changes", "written", "meant"),
    [
        ({}, "blocks.1.hook_in", "hook_resid_pre"),
        ({}, "blocks.1.hook_out", "hook_resid_post"),
        ({}, "hook_out", "hook_resid_post"),
        ({}, "embed.hook_out", "hook_embed"),
        ({}, "blocks.0.attn.k.hook_out", "attn.hook_k"),
        ({}, "blocks.0.attn.o.hook_in", "attn.hook_z"),
        ({}, "blocks.0.ln2.hook_in", "hook_resid_mid"),
        ({"gated_mlp": True}, "mlp.in.hook_out", "mlp.hook_pre_linear"),
        ({"gated_mlp": True}, "mlp.gate.hook_out", "mlp.hook_pre"),
        ({"gated_mlp": False}, "mlp.in.hook_out", "mlp.hook_pre"),
        ({"gated_mlp": False}, "mlp.gate.hook_out", None),
        ({}, "attn.hook_out", "hook_attn_out"),
        ({"norm_placement": "sandwich"}, "attn.hook_out", None),  # is before ln1_post, and hook_attn_out after it
        ({"norm_placement": "sandwich"}, "ln1_post.hook_out", "ln1_post.hook_out"),
        ({"norm_placement": "output"}, "ln1_post.hook_scale", "ln1.hook_scale"),
        ({}, "blocks.0.attn.hook_in", "ln1.hook_out"),
        ({}, "attn.q.hook_in", "ln1.hook_out"),
        ({"norm_placement": "post"}, "attn.v.hook_in", "hook_resid_pre"),
        ({}, "attn.o.hook_out", "hook_attn_out"),
        ({"norm_placement": "sandwich"}, "attn.o.hook_out", None),
        ({"residual_scale": 0.5}, "attn.hook_out", None),  # before the factor
        ({}, "mlp.hook_in", "ln2.hook_out"),
        ({"norm_placement": "output"}, "mlp.in.hook_in", "hook_resid_mid"),
        ({"gated_mlp": True}, "mlp.gate.hook_in", "ln2.hook_out"),
        ({"gated_mlp": False}, "mlp.gate.hook_in", None),
        ({}, "mlp.out.hook_out", "hook_mlp_out"),
        ({}, "ln_final.hook_in", "hook_resid_post"),
        ({}, "blocks.0.ln_final.hook_in", None),
        ({}, "unembed.hook_in", "ln_final.hook_out"),
        ({"logit_scale": 0.5}, "unembed.hook_in", None),
        ({}, "unembed.hook_out", "logits"),
        ({"final_logit_softcap": 30.0}, "unembed.hook_out", None),  # is before the cap
    ],
)
def test_names_of_transformer_lens_4_mean_what_they_mean_there(
    changes: dict[str, Any], written: str, meant: str | None
) -> None:
    config = replace(DECODER, **changes)
    if meant is None:
        with pytest.raises(UnknownPoint, match="similar names are"):
            read_name(config, written)
    else:
        assert read_name(config, written).point.name == meant


def test_a_name_without_prefix_means_the_decoder_of_two_stacks() -> None:
    assert stacks(BOTH) == ("encoder", "decoder")
    assert read_name(BOTH, "blocks.0.hook_resid_pre").stack == "decoder"
    assert read_name(BOTH, "encoder.blocks.0.hook_resid_pre").stack == "encoder"
    assert read_name(ENCODER, "hook_embed").stack == "encoder"
    assert full_name(DECODER, "decoder", "attn.hook_q", 3) == "blocks.3.attn.hook_q"


@pytest.mark.parametrize(
    ("config", "absent"),
    [
        (DECODER, {"cross_attn.hook_q", "ln1_post.hook_scale", "mlp.hook_pre_linear", "hook_token_type_embed"}),
        (replace(DECODER, learned_positions=False), {"hook_pos_embed"}),
        (replace(DECODER, parallel_blocks=True), {"hook_resid_mid"}),
        (ENCODER, {"logits", "ln_final.hook_out", "embed_norm.hook_scale"}),
        (replace(DECODER, norm_placement="post"), {"ln2_post.hook_out"}),
        (DECODER, {"mlp.hook_router_logits", "mlp.hook_expert_weights", "mlp.hook_expert_indices"}),
        (replace(DECODER, experts=EXPERTS), {"mlp.hook_pre", "mlp.hook_pre_linear", "mlp.hook_post"}),
    ],
)
def test_what_a_model_lacks_is_no_point_of_it_and_the_refusal_says_why(config: ModelConfig, absent: set[str]) -> None:
    assert not absent & names(config, stacks(config)[-1])
    for name in absent:
        with pytest.raises(UnknownPoint, match=r"this model has no point .*: .*; similar names are ") as caught:
            read_name(config, name)
        proposed = str(caught.value).partition("similar names are ")[2].split(", ")
        assert proposed
        for near in proposed:
            read_name(config, near)


def test_points_of_experts_and_of_one_mlp_are_those_of_different_layers() -> None:
    config = replace(DECODER, experts=replace(EXPERTS, dense_layers=(1,)))
    assert read_name(config, "blocks.0.mlp.hook_expert_weights").layer == 0
    assert read_name(config, "blocks.1.mlp.hook_post").layer == 1
    for name, why in (("blocks.1.mlp.hook_expert_indices", "no experts"), ("blocks.0.mlp.hook_post", "has experts")):
        with pytest.raises(UnknownPoint, match=why):
            read_name(config, name)


def test_a_first_block_without_norm_is_refused_by_layer_only() -> None:
    config = replace(ENCODER, first_attention_norm=False)
    assert "ln1.hook_scale" in names(config, "encoder")
    assert read_name(config, "blocks.1.ln1.hook_scale").layer == 1
    assert why_absent(config, "encoder", BY_NAME["ln1.hook_scale"], 0)
    for name in ("blocks.0.ln1.hook_scale", f"blocks.-{config.num_layers}.ln1.hook_scale"):
        with pytest.raises(UnknownPoint, match="first block has no norm"):
            read_name(config, name)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("hook_resid_psot", "hook_resid_post"),
        ("blocks.0.attn.hook_patern", "attn.hook_pattern"),
        ("mlp.hook_pots", "mlp.hook_post"),
        ("encoder.blocks.0.attn.hook_qq", "encoder.attn.hook_q"),
        ("embed.hook_in", "embed.hook_out"),
    ],
)
def test_a_misspelt_name_lists_near_ones(name: str, near: str) -> None:
    with pytest.raises(UnknownPoint, match="there is no point") as caught:
        read_name(BOTH, name)
    assert near in str(caught.value)
    assert "hook_pre_linear" not in str(caught.value), "names that differ much are not proposed"


def test_a_name_of_the_last_blocks_output_has_its_layer() -> None:
    read = read_name(DECODER, "ln_final.hook_in")
    assert (read.point.name, read.layer) == ("hook_resid_post", DECODER.num_layers - 1)


def test_a_stack_that_the_model_lacks_is_named() -> None:
    with pytest.raises(UnknownPoint, match="this model has no encoder"):
        read_name(DECODER, "encoder.blocks.0.hook_resid_pre")


def test_a_layer_of_what_stands_outside_the_blocks_is_refused() -> None:
    with pytest.raises(UnknownPoint, match="outside the blocks"):
        read_name(DECODER, "blocks.0.hook_embed")


def test_near_names_can_be_those_that_may_be_changed() -> None:
    assert "ln1.hook_scale" in near_names(DECODER, "ln1.hook_scale")
    proposed = near_names(DECODER, "ln1.hook_scale", changeable=True).split(", ")
    assert all(read_name(DECODER, name).point.changeable for name in proposed)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(name: str) -> None:
    try:
        read = read_name(BOTH, name)
    except UnknownPoint:
        return
    assert read.point in points_of(BOTH, read.stack)


def test_sizes_are_those_of_the_stack_and_of_what_cross_attention_sees() -> None:
    assert sizes(BOTH, "decoder", BY_NAME["attn.hook_pattern"], 5, 7) == (4, 5, 5)
    assert sizes(BOTH, "decoder", BY_NAME["cross_attn.hook_pattern"], 5, 7) == (4, 5, 7)
    assert sizes(BOTH, "decoder", BY_NAME["cross_attn.hook_k"], 5, 7) == (7, 4, 2)
    assert sizes(BOTH, "decoder", BY_NAME["cross_attn.hook_q"], 5, 7) == (5, 4, 2)
    assert sizes(BOTH, "encoder", BY_NAME["attn.hook_pattern"], 7) == (2, 7, 7)
    assert sizes(BOTH, "encoder", BY_NAME["mlp.hook_pre"], 7) == (7, 5)
    assert sizes(BOTH, "decoder", BY_NAME["ln1.hook_scale"], 5) == (5, 1)
    assert sizes(BOTH, "decoder", BY_NAME["logits"], 5) == (5, BOTH.vocab_size)
