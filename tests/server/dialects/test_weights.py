"""The weights of small random checkpoints over HTTP: census, geometry, circuits, slices, and correlations."""

import io
import math
import random
import tracemalloc
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from safetensors.numpy import load

from lightwell.model.checkpoint.weight_files import load_weights
from lightwell.server.config.auth.keys import hash_of
from tests.server.dialects.conftest import FAMILIES
from tests.server.dialects.routes import refuses
from tests.server.inline_engine import InlineEngine
from tests.server.serving import Site, error_of, site


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
    config = at.model.config
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
    monkeypatch.setattr("lightwell.model.analysis.weight_geometry.MAX_PAIRS", 99)
    monkeypatch.setattr("lightwell.model.analysis.weight_geometry.SAMPLED_PAIRS", 50)
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
        ({"matrix": "W_cross"}, "matrix", "similar names are"),
        ({"matrix": "cross_attn.W_Q", "layer": 0}, "matrix", "similar names are attn.W_Q"),
        ({"matrix": "W_Q"}, "matrix", "set layer"),
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
    config = at.model.config
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
    assert array(told, "qk.singular_values").shape == (1, at.model.config.num_heads, at.model.config.head_dim)
    await refuses(at, "/v1/circuits", {"part": "cross", "compose": True}, param="compose")


async def test_circuits_that_make_no_sense_are_refused(at: Site) -> None:
    assert (await at.error("/v1/circuits", {"layers": 99}, 400))["param"] == "layers"
    assert (await at.error("/v1/circuits", {"heads": [0, 0]}, 400))["param"] == "heads"
    assert (await at.error("/v1/circuits", {"part": "cross"}, 400))["param"] == "part"


async def numbers(at: Site, name: str, **query: Any) -> np.ndarray:
    return array(entry(await get(at, f"weights/{name}", **query)), "weights")


async def test_the_list_names_every_weight_and_each_is_there(at: Site) -> None:
    told = (await get(at, "weights")).json()
    names = [each["name"] for each in told["data"]]
    assert names[0] == "embed.W_E"
    assert names[-1] == "unembed.W_U"
    assert told["not_listed"] == []
    assert sum(np.prod(each["shape"]) for each in told["data"] if each["tied_to"] is None) == sum(
        weight.size for weight in loaded(at).values()
    )
    for each in told["data"]:
        found = entry(await get(at, f"weights/{each['name']}"))
        assert found["arrays"]["weights"]["axes"] == each["axes"]
        assert found["arrays"]["weights"]["shape"] == each["shape"] == found["whole_shape"]
        assert each["stored"] == "float32"


@every("llama-gqa", "bert", "bart")
async def test_slices_are_those_of_the_checkpoint(at: Site) -> None:
    config, weights = at.model.config, loaded(at)
    d, heads, size = config.hidden_size, config.num_heads, config.head_dim
    q = weights["layers.1.qkv.weight"][: heads * size]
    head = await numbers(at, "W_Q", layer=1, head=2)
    np.testing.assert_array_equal(head, q[2 * size : 3 * size].T)
    np.testing.assert_array_equal(await numbers(at, "W_Q", layer=-1, head=-1, rows="0:3"), q[-size:].T[:3])
    out = weights["layers.1.attn_out.weight"]
    some = await numbers(at, "attn.W_O", layer=1, head=1, rows="-1,0", columns="5:9,2")
    np.testing.assert_array_equal(some, out.T[size : 2 * size][[-1, 0]][:, [5, 6, 7, 8, 2]])
    rows = await numbers(at, "W_E", rows="7,9:12")
    np.testing.assert_array_equal(rows, weights["embed.weight"][[7, 9, 10, 11]])
    assert rows.shape == (4, d)


@every("bert")
async def test_vectors_have_rows_alone_each_heads_too(at: Site) -> None:
    config, weights = at.model.config, loaded(at)
    values = weights["layers.0.qkv.bias"][-config.num_heads * config.head_dim :].reshape(config.num_heads, -1)
    np.testing.assert_array_equal(await numbers(at, "b_V", layer=0, rows="1:3"), values[:, 1:3])
    np.testing.assert_array_equal(await numbers(at, "b_V", layer=0, head=1), values[1])
    gain = weights["layers.0.attn_norm.weight"]
    np.testing.assert_array_equal(await numbers(at, "blocks.0.ln1.w", rows="-2:"), gain[-2:])
    refused = error_of(await get(at, "weights/blocks.0.ln1.w", columns="0"))
    assert "is a vector and has only rows" in refused["message"]


async def test_the_same_numbers_come_as_npy_and_as_safetensors(at: Site) -> None:
    path = "/v1/models/org/tiny/weights/W_K?layer=0&head=0"
    plain = array(entry(await at.http.get(path)), "weights")
    as_npy = await at.http.get(path, headers={"Accept": "application/x-npy"})
    np.testing.assert_array_equal(np.load(io.BytesIO(as_npy.content)), plain)
    as_safetensors = await at.http.get(path, headers={"Accept": "application/vnd.safetensors"})
    np.testing.assert_array_equal(load(as_safetensors.content)["0/weights"], plain)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("W_q?layer=0", "name: layer 0 has no weight 'W_q'; similar names are"),
        ("W_Q", "set layer to a number from 0 to"),
        ("W_Q?layer=99", "layer: there is no layer 99"),
        ("W_Q?layer=0&head=99", "head: there is no head 99"),
        ("W_E?head=0", "head: embed.W_E has no heads"),
        ("W_E?rows=1,x", "rows: 'x' is none; "),
        ("W_E?rows=3:3", "rows: '3:3' chooses none of"),
        ("W_E?rows=1,1", "rows: row 1 is given twice"),
        ("W_E?columns=9999", "columns: there is no column 9999"),
        ("W_E?rows=1&rows=2", "rows: given 2 times"),
        ("W_E?colour=red", "colour"),
    ],
)
async def test_what_is_wrong_is_named(at: Site, path: str, told: str) -> None:
    answer = await at.http.get(f"/v1/models/org/tiny/weights/{path}")
    assert answer.status_code == 400, answer.text
    assert told in error_of(answer)["message"]


async def test_ranges_that_overlap_are_refused_before_they_are_added_up(at: Site) -> None:
    rows = ",".join([":"] * 8000)
    tracemalloc.start()
    try:
        answer = await at.http.get(f"/v1/models/org/tiny/weights/W_E?rows={rows}&columns=0")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "rows: row 0 is given twice in [0, 1, 2" in error_of(answer)["message"]
    assert peak < 8 * 8000 * at.model.config.vocab_size / 2, "bytes of the list of all indices"


async def test_what_is_too_large_is_refused_before_anything_runs_with_what_would_fit(at: Site, tmp_path: Path) -> None:
    engine = at.engine
    assert isinstance(engine, InlineEngine)
    d, heads, size = at.model.config.hidden_size, at.model.config.num_heads, at.model.config.head_dim
    small = {"config": engine.model_config, "max_response_bytes": 14 * d * size + 500}
    async with site(tmp_path, engine, **small) as cramped:
        for name, fits in (("W_Q?layer=0", {"layer": 0, "head": 0}), ("W_E", {"rows": f"0:{size}"})):
            answer = await cramped.http.get(f"/v1/models/org/tiny/weights/{name}")
            assert answer.status_code == 413
            refused = error_of(answer)["message"]
            count = heads * d * size if "W_Q" in name else at.model.config.vocab_size * d
            assert f"about {14 * count} bytes" in refused
            assert all(f"{key}={value}" in refused for key, value in fits.items() if key != "layer")
            assert (await get(cramped, f"weights/{name.partition('?')[0]}", **fits)).status_code == 200
        assert await cramped.metric('lightwell_capture_rejected_total{reason="answer_too_large"}') == 2


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def statuses(at: Site, *keys: str | None) -> list[tuple[int, int, bool]]:
    """Return for each key the status of the list and of a weight, and whether /v1/capabilities reports them."""
    found = []
    for key in keys:
        headers = {} if key is None else bearer(key)
        listing = await at.http.get("/v1/models/org/tiny/weights", headers=headers)
        one = await at.http.get("/v1/models/org/tiny/weights/W_E?rows=0", headers=headers)
        told = (await at.http.get("/v1/capabilities", headers=headers)).json()["routes"]
        works = told["/v1/models/{model_id}/weights"]["works"]
        found.append((listing.status_code, one.status_code, works))
    return found


async def test_without_keys_everybody_may_read_weights_unless_they_are_off(at: Site, tmp_path: Path) -> None:
    assert await statuses(at, None) == [(200, 200, True)]
    for access, told in (("off", "(--weights-access off)"), ("admin", "it has no keys, and so no admin")):
        options: dict[str, Any] = {"config": at.model.config, "weights_access": access}
        async with site(tmp_path, at.engine, **options) as closed:
            assert await statuses(closed, None) == [(403, 403, False)]
            answer: httpx.Response = await get(closed, "weights")
            assert told in error_of(answer)["message"]


async def test_with_keys_admins_alone_may_unless_it_is_open(at: Site, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(f'[alice]\nhash = "{hash_of("alice")}"\n[root]\nhash = "{hash_of("root")}"\nadmin = true\n')
    options: dict[str, Any] = {"config": at.model.config, "api_key_file": file}
    async with site(tmp_path, at.engine, **options) as guarded:
        assert await statuses(guarded, "alice", "root") == [(403, 403, False), (200, 200, True)]
        refused = error_of(await guarded.http.get("/v1/models/org/tiny/weights/W_E", headers=bearer("alice")))
        assert (refused["code"], refused["type"]) == ("admin_key_needed", "permission_error")
        assert "'alice' is not an admin key" in refused["message"]
        assert "--weights-access open" in refused["message"]
        assert (await guarded.http.get("/v1/models/org/tiny/weights")).status_code == 401
    async with site(tmp_path, at.engine, **options, weights_access="open") as open_to_all:
        assert await statuses(open_to_all, "alice", "root") == [(200, 200, True)] * 2
    async with site(tmp_path, at.engine, **options, weights_access="off") as closed:
        assert await statuses(closed, "root") == [(403, 403, False)]


def ids(at: Site, length: int) -> list[int]:
    return [random.randrange(at.model.config.vocab_size) for _ in range(length)]


SURE = 1 - 1e-6
"""Squared correlation above which the mutual information (6.9 nats and more) is inexact, since few digits of the
distance from 1 are known. Two neurons that are active in the same single sample reach it.
"""


def information(rho: np.ndarray) -> np.ndarray:
    """Return the Gaussian mutual information of pairs of that correlation, in nats."""
    found: np.ndarray = -0.5 * np.log1p(-np.minimum(np.square(rho), 1 - 1e-15))
    return found


@every(*FAMILIES)
async def test_correlations_are_those_of_the_traced_numbers(at: Site) -> None:
    inputs = [ids(at, 12), ids(at, 9)]
    body = {"input": inputs, "positions": [1, 3, 4, 7, -1]}
    point = ("encoder." if at.model.config.encoder else "") + "blocks.1.mlp.hook_post"
    told = entry(await at.post("/v1/geometry", {**body, "point": point, "num_strongest": 4}))
    traced = (await at.post("/v1/trace", {**body, "points": [point]})).json()["data"]
    samples = np.concatenate([np.array(point["data"]) for each in traced for point in each["points"].values()])
    assert told["num_samples"] == len(samples)
    varies = samples.std(0) > 0
    whole = np.atleast_2d(np.corrcoef(samples[:, varies].astype(np.float64), rowvar=False))
    rho = whole[np.triu_indices(len(whole), 1)]
    assert told["num_pairs"] == len(rho)
    assert told["num_constant_units"] == (~varies).sum()
    assert told["mean_correlation"] == pytest.approx(rho.mean(), abs=1e-6)
    assert told["root_mean_square_correlation"] == pytest.approx(math.sqrt(np.square(rho).mean()), abs=1e-6)
    unsure = (np.square(rho) > SURE).mean()
    assert told["mean_information"] == pytest.approx(information(rho).mean(), abs=1e-4 + 18 * unsure)
    assert told["baseline"]["std"] == pytest.approx(1 / math.sqrt(len(samples) - 1))
    pairs = array(told, "strongest_pairs")
    by_hand = np.array([np.corrcoef(samples[:, i], samples[:, j])[0, 1] for i, j in pairs])
    np.testing.assert_allclose(array(told, "strongest_correlations"), by_hand, atol=1e-5)
    sure, found = np.square(by_hand) < SURE, array(told, "strongest_information")
    np.testing.assert_allclose(found[sure], information(by_hand[sure]), atol=1e-4)
    assert (found[~sure] > 6.9).all()


async def test_correlations_capture_no_more_than_the_units_that_are_asked_for(at: Site) -> None:
    """Check that only the selected units are captured. In an old version the worker sent every unit, so that the whole
    point had to fit into the capture budget.
    """
    prompt = ids(at, 20)
    body = {"input": prompt, "point": "attn.hook_z", "layer": 0, "heads": [3, 1]}
    size = at.model.config.head_dim
    told = entry(await at.post("/v1/geometry", {**body, "units": [size + 2, 0, size], "num_strongest": 3}))
    assert at.engine.submitted[-1].capture_bytes == 4 * len(prompt) * 3
    traced = (await at.post("/v1/trace", {"input": prompt, "points": ["blocks.0.attn.hook_z"]})).json()["data"][0]
    z = np.array(traced["points"]["blocks.0.attn.hook_z"]["data"])
    samples = {size + 2: z[:, 1, 2], 0: z[:, 3, 0], size: z[:, 1, 0]}
    for (i, j), rho in zip(array(told, "strongest_pairs"), array(told, "strongest_correlations"), strict=True):
        assert np.corrcoef(samples[int(i)], samples[int(j)])[0, 1] == pytest.approx(rho, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"point": "blocks.0.attn.hook_what"}, "point"),
        ({"point": "blocks.0.attn.hook_pattern"}, "point"),
        ({"point": "hook_resid_post"}, "layer"),
        ({"point": "blocks.0.hook_resid_post", "layer": 1}, "layer"),
        ({"point": "hook_embed", "layer": 1}, "layer"),
        ({"heads": 0}, "heads"),
        ({"units": 10_000}, "units"),
        ({"positions": [0, 1]}, "positions"),
        ({"positions": 64}, "positions"),
        ({"num_strongest": -1}, "num_strongest"),
    ],
)
async def test_correlations_that_make_no_sense_are_refused(at: Site, change: dict[str, Any], param: str) -> None:
    body = {"input": ids(at, 8), "point": "blocks.0.hook_resid_post", **change}
    assert (await at.error("/v1/geometry", body, 400))["param"] == param


async def test_one_unit_has_no_pair_and_so_no_mean(at: Site) -> None:
    told = entry(await at.post("/v1/geometry", {"input": ids(at, 8), "point": "blocks.0.hook_resid_post", "units": 3}))
    assert told["num_pairs"] == 0
    means = ("mean_correlation", "root_mean_square_correlation", "mean_information")
    assert [told[name] for name in means] == [None] * 3


async def test_too_many_pairs_are_refused_however_few_the_samples(at: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the work is limited by pairs. In an old version the limit was samples times pairs, which allowed
    minutes of work for a large vocabulary with 8 samples.
    """
    monkeypatch.setattr("lightwell.server.dialects.inspect.correlations.MAX_PRODUCTS", 200 * 100)
    body = {"input": ids(at, 8), "point": "blocks.0.hook_resid_post"}
    error = await at.error("/v1/geometry", {**body, "units": list(range(20))}, 400)
    assert error["param"] == "units"
    fitting = int(error["message"].split("; ")[1].split()[0])
    assert 5 < fitting < 20
    told = entry(await at.post("/v1/geometry", {**body, "units": list(range(fitting))}))
    assert told["num_units"] == fitting
