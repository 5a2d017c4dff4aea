"""POST /v1/explain and /v1/contributions: one head step by step, and what each part of the network adds."""

from pathlib import Path

import numpy as np
import pytest

from tests.server.dialects.looks import IDS, TEXT, VARIANTS, array, ask, at_site, engine_of
from tests.server.tiny_network import HEADS, LAYERS

# --- explain ---


@pytest.mark.parametrize("variant", VARIANTS)
async def test_every_step_of_a_head_leads_to_the_next(variant: str, tmp_path: Path) -> None:
    engine = engine_of(variant)
    layer, head, query = 1, 3, 3
    async with at_site(tmp_path, engine) as at:
        entry = await ask(at, "explain", layer=layer, head=head, query_position=query)
    points = {name: value for name, value in engine.network.points(IDS).items() if f"blocks.{layer}." in name}
    of = {name.removeprefix(f"blocks.{layer}.attn.hook_"): value for name, value in points.items()}
    assert (entry["kv_head"], entry["query_position"]) == (1, query)
    assert np.allclose(array(entry, "q"), of["rot_q"][query, head], atol=1e-6)
    assert np.allclose(array(entry, "k"), of["rot_k"][:, 1], atol=1e-6)
    dots = array(entry, "products").sum(-1)
    assert np.allclose(array(entry, "dots"), dots, atol=1e-5)
    assert np.allclose(array(entry, "scaled"), dots * entry["scale"], atol=1e-5)
    assert ("capped" in entry["arrays"]) == (variant == "capped")
    told = entry["arrays"]["scores"]["data"]
    assert told[query + 1 :] == [None] * (len(IDS) - query - 1)
    seen = np.array(told[: query + 1])
    assert np.allclose(seen, of["attn_scores"][head, query, : query + 1], atol=1e-5)
    assert np.allclose(array(entry, "exponentials")[: query + 1], np.exp(seen - entry["softmax"]["largest_score"]))
    assert np.allclose(array(entry, "weights"), of["pattern"][head, query], atol=1e-6)
    assert np.allclose(array(entry, "weighted_v").sum(0), of["z"][query, head], atol=1e-6)
    assert np.allclose(array(entry, "output"), of["result"][query, head], atol=1e-5)
    assert np.allclose(array(entry, "output_bias"), engine.network.layers[layer]["b_o"])
    assert max(entry["differences"].values()) < 1e-5
    assert entry["softmax"]["sum_of_weights"] == pytest.approx(1)


# --- contributions ---


@pytest.mark.parametrize("variant", VARIANTS)
async def test_the_parts_of_a_logit_sum_to_it(variant: str, tmp_path: Path) -> None:
    engine = engine_of(variant)
    async with at_site(tmp_path, engine) as at:
        entry = await ask(at, "contributions", target="h", query_positions=[1, -1])
    logits = engine.network.points(IDS)["logits"][[1, -1], 104]
    cap = engine.network.config.final_logit_softcap
    components = array(entry, "components")
    summed = components.sum(-1)
    assert len(entry["component_names"]) == 1 + LAYERS * (HEADS + 2) + 1
    # Parts cancel, so a logit near zero carries the rounding of parts that are much larger.
    assert (np.abs(summed - entry["logits"]) <= 1e-5 * np.abs(components).sum(-1)).all()
    assert np.allclose(summed if cap is None else cap * np.tanh(summed / cap), logits, atol=1e-5)
    assert entry["difference"] < 1e-5
    # What the words add through a head sums to what the head adds.
    through_heads = array(entry, "attributions").sum(-1)
    for layer in range(LAYERS):
        for head in range(HEADS):
            column = entry["component_names"].index(f"blocks.{layer}.attn.head.{head}")
            assert np.allclose(through_heads[layer, head], components[:, column], atol=1e-5)


async def test_versus_takes_one_logit_from_the_other(tmp_path: Path) -> None:
    async with at_site(tmp_path, engine_of()) as at:
        both = await ask(at, "contributions", target="h", versus="i")
        one = await ask(at, "contributions", target="h")
        other = await ask(at, "contributions", target="i")
    for name in ("attributions", "components"):
        assert np.allclose(array(both, name), array(one, name) - array(other, name), atol=1e-5)
    assert both["logits"][0] == pytest.approx(one["logits"][0] - other["logits"][0], abs=1e-5)
    assert np.array_equal(array(both, "norms"), array(one, "norms"))


async def test_norms_are_the_lengths_of_the_moves(tmp_path: Path) -> None:
    engine = engine_of()
    async with at_site(tmp_path, engine) as at:
        entry = await ask(at, "contributions", layers=[1], heads=[3, 0], query_positions=[4, 2], key_positions=[0, 2])
    points = engine.network.points(IDS)
    norms = array(entry, "norms")
    assert norms.shape == (1, 2, 2, 2)
    assert "attributions" not in entry["arrays"]
    for i, head in enumerate([3, 0]):
        v = points["blocks.1.attn.hook_v"][:, head // 2]
        for j, query in enumerate([4, 2]):
            for k, key in enumerate([0, 2]):
                move = points["blocks.1.attn.hook_pattern"][head, query, key] * v[key]
                length = np.linalg.norm(move @ engine.network.layers[1]["o"][head])
                assert norms[0, i, j, k] == pytest.approx(length, rel=1e-4)


async def test_versus_needs_a_target(tmp_path: Path) -> None:
    async with at_site(tmp_path, engine_of()) as at:
        error = await at.error("/v1/contributions", {"input": TEXT, "versus": "h"}, 400)
    assert error["param"] == "versus"
