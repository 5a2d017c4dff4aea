"""The weights over HTTP, of small random checkpoints: census, geometry and circuits."""

import math
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from model.checkpoint.weight_files import load_weights
from tests.server.dialects.conftest import FAMILIES
from tests.server.dialects.routes import refuses
from tests.server.inline_engine import InlineEngine
from tests.server.serving import Site, error_of


def every(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("at", names, indirect=True)


def loaded(at: Site) -> dict[str, np.ndarray]:
    engine = at.engine
    assert isinstance(engine, InlineEngine)
    weights = load_weights(engine.folder, engine.model_config, torch.float64)
    return {name: tensor.numpy() for name, tensor in weights.items()}


def entry(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    (data,) = answer.json()["data"]
    return dict(data)


def array(told: dict[str, Any], name: str) -> np.ndarray:
    found = told["arrays"][name]
    value = np.array(found["data"], dtype=found["dtype"])
    assert list(value.shape) == found["shape"]
    assert len(found["axes"]) == value.ndim
    return value


async def get(at: Site, path: str, **query: Any) -> httpx.Response:
    # The model's id is "org/tiny": hub ids hold slashes.
    return await at.http.get(f"/v1/models/org/tiny/{path}", params=query)


def effective_rank(singular: np.ndarray) -> float:
    """Return exp of the entropy of the singular values' shares (Roy and Vetterli 2007)."""
    shares = singular / singular.sum()
    return math.exp(-(shares * np.log(shares)).sum())


# ---- parameters


@every(*FAMILIES)
async def test_the_census_counts_what_the_checkpoint_holds(at: Site) -> None:
    told = (await get(at, "parameters")).json()
    assert told["object"] == "parameters"
    assert told["total"] == sum(weight.size for weight in loaded(at).values())
    assert sum(row["share"] for row in told["rows"]) == pytest.approx(1.0)
    assert (await at.http.get("/v1/models/org/tiny")).json()["object"] == "model"


async def test_of_another_model_nothing_is_told(at: Site) -> None:
    for path in ("parameters", "geometry?matrix=W_E"):
        answer = await at.http.get(f"/v1/models/org/other/{path}")
        assert answer.status_code == 404
        assert error_of(answer)["code"] == "model_not_found"


# ---- geometry


async def test_geometry_of_the_token_table(at: Site) -> None:
    table = loaded(at)["embed.weight"]
    told = entry(await get(at, "geometry", matrix="W_E"))
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    cosines = (unit @ unit.T)[np.triu_indices(len(table), 1)]
    assert told["matrix"] == "embed.W_E"
    assert (told["num_vectors"], told["dimension"]) == table.shape == tuple(told["shape"])
    assert (told["num_pairs"], told["num_compared"], told["sampled"]) == (len(cosines), len(cosines), False)
    assert told["cosines"]["std"] == pytest.approx(cosines.std(), abs=1e-6)
    assert told["cosines"]["quantiles"]["0.5"] == pytest.approx(np.median(cosines), abs=1e-3)
    assert told["max_deviation_from_identity"] == pytest.approx(np.abs(cosines).max(), abs=1e-6)
    n, d = table.shape
    assert told["baseline"]["std"] == pytest.approx(1 / math.sqrt(d))
    assert told["baseline"]["welch_bound"] == pytest.approx(math.sqrt((n - d) / (d * (n - 1))))
    assert told["max_deviation_from_identity"] >= told["baseline"]["welch_bound"]
    assert array(told, "histogram").sum() == len(cosines)
    singular = np.linalg.svd(table, compute_uv=False)
    np.testing.assert_allclose(array(told, "singular_values"), singular, rtol=1e-5)
    assert told["spectrum"]["effective_rank"] == pytest.approx(effective_rank(singular), rel=1e-5)
    assert told["spectrum"]["frobenius_norm"] == pytest.approx(np.linalg.norm(table), rel=1e-6)


async def test_geometry_of_a_head_by_any_way_to_name_it(at: Site) -> None:
    config = at.context.config
    last, heads = config.num_layers - 1, config.num_kv_heads
    ways = (
        {"matrix": f"blocks.{last}.attn.W_K", "head": heads - 1},
        {"matrix": "W_K", "layer": last, "head": -1},
        {"matrix": "attn.W_K", "layer": -1, "head": heads - 1},
    )
    told = [entry(await get(at, "geometry", axis="columns", **way)) for way in ways]
    assert told[0] == told[1] == told[2]
    assert told[0]["shape"] == [config.hidden_size, config.head_dim]
    assert told[0]["baseline"]["welch_bound"] is None or config.head_dim > config.hidden_size


async def test_a_sample_of_pairs_says_that_it_is_one(at: Site) -> None:
    told = entry(await get(at, "geometry", matrix="W_E", pairs=500, seed=3, spectrum=False))
    assert (told["sampled"], told["num_compared"], told["seed"], told["spectrum"]) == (True, 500, 3, None)
    assert told["num_pairs"] > 500
    assert "singular_values" not in told["arrays"]
    assert told == entry(await get(at, "geometry", matrix="W_E", pairs=500, seed=3, spectrum=False))


async def test_all_pairs_are_compared_of_a_matrix_that_is_sampled_otherwise(
    at: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = loaded(at)["embed.weight"]
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    cosines = (unit @ unit.T)[np.triu_indices(len(table), 1)]
    monkeypatch.setattr("model.analysis.weight_geometry.MAX_PAIRS", 99)
    monkeypatch.setattr("model.analysis.weight_geometry.SAMPLED_PAIRS", 50)
    assert entry(await get(at, "geometry", matrix="W_E"))["num_compared"] == 50
    told = entry(await get(at, "geometry", matrix="W_E", pairs="all"))
    assert (told["sampled"], told["num_compared"], told["seed"]) == (False, len(cosines), None)
    assert told["max_deviation_from_identity"] == pytest.approx(np.abs(cosines).max(), abs=1e-6)


@every("bart")
async def test_geometry_knows_both_stacks(at: Site) -> None:
    encoder = entry(await get(at, "geometry", matrix="encoder.blocks.0.mlp.W_in", axis="columns"))
    decoder = entry(await get(at, "geometry", matrix="mlp.W_in", layer=0, axis="columns"))
    assert decoder["matrix"] == "decoder.blocks.0.mlp.W_in"
    assert encoder["cosines"] != decoder["cosines"]
    crossing = entry(await get(at, "geometry", matrix="cross_attn.W_K", layer=0, axis="columns"))
    assert crossing["matrix"] == "decoder.blocks.0.cross_attn.W_K"


@pytest.mark.parametrize(
    ("query", "param", "says"),
    [
        ({}, "matrix", "required"),
        ({"matrix": "W_cross"}, "matrix", "near ones are"),
        ({"matrix": "cross_attn.W_Q", "layer": 0}, "matrix", "near ones are attn.W_Q"),
        ({"matrix": "W_Q"}, "matrix", "name a layer"),
        ({"matrix": "blocks.77.attn.W_Q"}, "matrix", "no layer 77"),
        ({"matrix": "W_Q", "layer": -77}, "layer", "no layer -77"),
        ({"matrix": "W_Q", "layer": 77}, "layer", "no layer 77"),
        ({"matrix": ["W_E", "W_U"]}, "matrix", "given 2 times, ['W_E', 'W_U']"),
        ({"matrix": "W_E", "head": 0}, "head", "has no heads"),
        ({"matrix": "W_Q", "layer": 0, "head": 99}, "head", "no head 99"),
        ({"matrix": "W_E", "axis": "diagonal"}, "axis", "'rows' or 'columns'"),
        ({"matrix": "W_E", "pairs": 0}, "pairs", "greater than or equal to 1"),
        ({"matrix": "W_E", "pairs": "most"}, "pairs", "'all'"),
        ({"matrix": "W_E", "colour": 1}, "colour", "no such field"),
    ],
)
async def test_a_geometry_that_makes_no_sense_is_refused(
    at: Site, query: dict[str, Any], param: str, says: str
) -> None:
    answer = await get(at, "geometry", **query)
    assert answer.status_code == 400
    error = error_of(answer)
    assert error["param"] == param
    assert says in error["message"]


# ---- circuits


@every(*FAMILIES)
async def test_circuits_of_some_heads(at: Site) -> None:
    config = at.context.config
    layers, heads = [config.num_layers - 1, 0], [-1, 1]
    told = entry(await at.post("/v1/circuits", {"layers": layers, "heads": heads, "compose": True}))
    assert told["layers"] == layers
    assert told["heads"] == [config.num_heads - 1, 1]
    weights, size = loaded(at), config.head_dim
    q, kv = config.num_heads * size, config.num_kv_heads * size
    for i, layer in enumerate(told["layers"]):
        qkv, out = weights[f"layers.{layer}.qkv.weight"], weights[f"layers.{layer}.attn_out.weight"]
        for j, (head, group) in enumerate(zip(told["heads"], told["kv_heads"], strict=True)):
            w_q = qkv[head * size : (head + 1) * size].T
            w_k = qkv[q + group * size : q + (group + 1) * size].T
            w_v = qkv[q + kv + group * size : q + kv + (group + 1) * size].T
            w_o = out[:, head * size : (head + 1) * size].T
            for name, whole in (("ov", w_v @ w_o), ("qk", w_q @ w_k.T)):
                singular = np.linalg.svd(whole, compute_uv=False)[:size]
                np.testing.assert_allclose(array(told, f"{name}.singular_values")[i, j], singular, rtol=1e-4, atol=1e-5)
                assert array(told, f"{name}.norm")[i, j] == pytest.approx(np.linalg.norm(whole), rel=1e-4)
                assert array(told, f"{name}.effective_rank")[i, j] == pytest.approx(effective_rank(singular), rel=1e-4)
            assert array(told, "ov.trace")[i, j] == pytest.approx(np.trace(w_v @ w_o), rel=1e-3, abs=1e-3)
            assert -1 <= array(told, "ov.positivity")[i, j] <= 1
    composition = array(told, "composition")
    earlier = [pair[0] for pair in told["pairs"]]
    for i, j in np.ndindex(4, 4):
        assert composition[i, j].all() == (earlier[i] < earlier[j])


@every("bart")
async def test_circuits_of_cross_attention(at: Site) -> None:
    told = entry(await at.post("/v1/circuits", {"part": "cross", "layers": 0}))
    assert array(told, "qk.singular_values").shape == (1, at.context.config.num_heads, at.context.config.head_dim)
    await refuses(at, "/v1/circuits", {"part": "cross", "compose": True}, param="compose")


async def test_circuits_that_make_no_sense_are_refused(at: Site) -> None:
    assert (await at.error("/v1/circuits", {"layers": 99}, 400))["param"] == "layers"
    assert (await at.error("/v1/circuits", {"heads": [0, 0]}, 400))["param"] == "heads"
    assert (await at.error("/v1/circuits", {"part": "cross"}, 400))["param"] == "part"
