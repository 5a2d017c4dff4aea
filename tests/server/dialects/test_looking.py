"""The routes that explain a pass: formats, budgets and errors, and the numbers of heads, next, lens and trajectory."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as load_safetensors

from lightwell.server.http.errors import QueueFull
from tests.server.dialects.looks import HEADS, IDS, LAYERS, NEEDED, TEXT, array, ask, at_site, engine_of
from tests.server.dialects.routes import refuses
from tests.server.fake_client import traced
from tests.server.serving import Site, site, tiny_config

ROUTES = ("next", "lens", "explain", "contributions", "trajectory", "heads", "rollout")
MEASURED = (*ROUTES, "attention", "trace")


# --- inputs and answers ---


@pytest.mark.parametrize("route", ROUTES)
async def test_many_inputs_come_in_order_and_in_any_format(route: str, tmp_path: Path) -> None:
    async with at_site(tmp_path, engine_of()) as at:
        body = {"input": ["ab", "abcd"], **NEEDED.get(route, {})}
        answer = (await at.post(f"/v1/{route}", body)).json()
        binary = await at.post(f"/v1/{route}", body, headers={"accept": "application/vnd.safetensors"})
        lines = await at.post(f"/v1/{route}", body, headers={"accept": "application/x-ndjson"})
    assert [len(entry["tokens"]) for entry in answer["data"]] == [2, 4]
    assert answer["usage"]["prompt_tokens"] == 6
    tensors = load_safetensors(binary.content)
    assert set(tensors) == {f"{i}/{name}" for i, entry in enumerate(answer["data"]) for name in entry["arrays"]}
    for name, value in tensors.items():
        index, _, key = name.partition("/")
        told = np.array(answer["data"][int(index)]["arrays"][key]["data"], float)
        assert np.array_equal(
            np.where(np.isfinite(value), value, np.nan).astype("f4"), told.astype("f4"), equal_nan=True
        )
    first, second = answer.pop("data")
    assert entries_of(lines.text) == [{**answer, **first}, second]


def entries_of(ndjson: str) -> list[dict[str, Any]]:
    """Return the entries in the form of the JSON answer, from one line per entry and one line per array."""
    entries: list[dict[str, Any]] = []
    for line in map(json.loads, ndjson.splitlines()):
        if "array" in line:
            entries[line.pop("index")]["arrays"][line.pop("array")] = line
        else:
            entries.append({**line, "arrays": {}})
    return entries


@pytest.mark.parametrize("route", MEASURED)
async def test_a_full_budget_is_429_and_too_large_an_answer_413(route: str, tmp_path: Path) -> None:
    engine = engine_of()
    body = {"input": "a" * 60, "full": True} if route == "next" else {"input": "a" * 60, **NEEDED.get(route, {})}
    async with at_site(tmp_path, engine, max_response_bytes=20) as at:
        await refuses(at, f"/v1/{route}", body, code="answer_too_large", status=413)
        assert engine.submitted == []
        assert await at.metric('lightwell_capture_rejected_total{reason="answer_too_large"}') == 1
    engine.refuse = QueueFull("full", code="capture_budget_full", retry_after=1)
    async with at_site(tmp_path, engine) as at:
        full = await at.post(f"/v1/{route}", body)
        assert await at.metric('lightwell_capture_rejected_total{reason="budget_full"}') == 1
    assert (full.status_code, full.headers["retry-after"]) == (429, "1")


@pytest.mark.parametrize("route", sorted(set(ROUTES) - {"lens"}))
async def test_inputs_that_capture_too_much_together_are_413_before_any_runs(route: str, tmp_path: Path) -> None:
    """Send inputs that fit one by one, but not together: all captures stay in memory until the last input has run."""
    engine = engine_of()
    body = {"input": ["a" * 60] * 12, **NEEDED.get(route, {})}
    async with at_site(tmp_path, engine) as at:
        assert (await at.post(f"/v1/{route}", body)).status_code == 200
        budget = 2 * max(each.capture_bytes for each in engine.submitted)
    engine.submitted.clear()
    async with at_site(tmp_path, engine, max_capture_bytes=budget) as at:
        await refuses(at, f"/v1/{route}", body, code="capture_too_large", status=413)
        assert engine.submitted == []
        assert await at.metric('lightwell_capture_rejected_total{reason="answer_too_large"}') == 1


@pytest.mark.parametrize("route", ["explain", "contributions"])
async def test_what_is_asked_of_the_weights_counts_before_anything_runs(route: str, tmp_path: Path) -> None:
    """Check that the request is rejected before the passes over its inputs; an old version rejected it after them."""
    engine = engine_of()
    body = {"input": TEXT, **NEEDED.get(route, {})}
    async with at_site(tmp_path, engine) as at:
        assert (await at.post(f"/v1/{route}", body)).status_code == 200
    num_bytes = sum(each.capture_bytes for each in engine.submitted)
    engine.submitted.clear()
    async with at_site(tmp_path, engine, max_capture_bytes=num_bytes - 1) as at:
        await refuses(at, f"/v1/{route}", body, f"would capture {num_bytes} bytes", status=413)
        assert engine.submitted == []
    async with at_site(tmp_path, engine, max_capture_bytes=num_bytes) as at:
        assert (await at.post(f"/v1/{route}", body)).status_code == 200


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        ("next", {"position": 5}, "position"),
        ("next", {"temperatures": []}, "temperatures"),
        ("next", {"temperatures": [1, -1]}, "temperatures[1]"),
        ("lens", {"layers": LAYERS + 1}, "layers"),
        ("lens", {"positions": [9]}, "positions"),
        ("explain", {"layer": LAYERS}, "layer"),
        ("explain", {"head": -HEADS - 1}, "head"),
        ("explain", {"query_position": 5}, "query_position"),
        ("explain", {"part": "cross"}, "part"),
        ("contributions", {"heads": []}, "heads"),
        ("contributions", {"key_positions": 7}, "key_positions"),
        ("contributions", {"versus": "h"}, "versus"),
        ("trajectory", {"positions": -6}, "positions"),
        ("trajectory", {"compare_positions": 6}, "compare_positions"),
        ("heads", {"layers": [LAYERS]}, "layers"),
        ("heads", {"repeat_length": 4}, "repeat_length"),
        ("rollout", {"part": "encoder"}, "part"),
        ("rollout", {"query_positions": 6}, "query_positions"),
    ],
)
async def test_what_the_model_or_the_input_lacks_is_400(
    route: str, fields: dict[str, Any], param: str, tmp_path: Path
) -> None:
    async with at_site(tmp_path, engine_of()) as at:
        await refuses(at, f"/v1/{route}", {"input": TEXT, **NEEDED.get(route, {}), **fields}, param=param)
        assert at.engine.submitted == []


# --- heads ---


async def test_the_strongest_heads_of_a_measure_are_named(tmp_path: Path) -> None:
    async with at_site(tmp_path, engine_of()) as at:
        entry = await ask(at, "heads")
    entropies = array(entry, "scores")[..., entry["measures"].index("entropy")]
    best = entry["strongest"]["entropy"][0]
    assert entropies[best["layer"], best["head"]] == entropies.max()


async def test_a_text_without_repetition_has_no_induction_score(tmp_path: Path) -> None:
    async with at_site(tmp_path, engine_of()) as at:
        entry = await ask(at, "heads", input="xyz", layers=0, heads=1)
    assert entry["arrays"]["scores"]["data"][0][0][-1] is None
    assert entry["strongest"]["induction"] == []


async def test_without_an_input_random_tokens_are_written_twice(tmp_path: Path) -> None:
    engine = engine_of()
    async with at_site(tmp_path, engine) as at:
        entry = await ask(at, "heads", input=None, repeat_length=6, num_sequences=3, seed=5)
        again = await ask(at, "heads", input=None, repeat_length=6, num_sequences=3, seed=5)
        await refuses(at, "/v1/heads", {"repeat_length": 40}, "32", param="repeat_length")
    assert len({submitted.prompt_token_ids for submitted in engine.submitted[:3]}) == 3
    assert entry["arrays"] == again["arrays"]
    assert "tokens" not in entry


# --- rollout and flow ---


async def test_a_rollout_takes_the_mean_of_the_heads_asked_for(tmp_path: Path) -> None:
    async with at_site(tmp_path, engine_of()) as at:
        patterns = np.array((await at.post("/v1/attention", {"input": TEXT})).json()["data"][0]["attention"])
        some = await ask(at, "rollout", layers="all", heads=[-1, 1])
        flowed = await ask(at, "rollout", method="flow", layers=0, heads=2)
        default = await ask(at, "rollout", method="flow")
        await refuses(at, "/v1/rollout", {"input": TEXT, "heads": HEADS}, str(HEADS), param="heads")
    below, above = ((pattern[[HEADS - 1, 1]].mean(0) + np.eye(len(IDS))) / 2 for pattern in patterns)
    assert (some["heads"], flowed["heads"]) == ([HEADS - 1, 1], [2])
    assert np.allclose(array(some, "rollout"), [below, above @ below], atol=1e-5)
    flow = (patterns[0][2] + np.eye(len(IDS)))[-1] / 2
    assert np.allclose(array(flowed, "flow")[0, 0], flow, atol=1e-5)
    assert np.allclose(array(flowed, "normalized")[0, 0], flow / flow.sum(), atol=1e-6)
    assert (default["layers"], default["query_positions"]) == ([LAYERS - 1], [len(IDS) - 1])


async def test_a_rollout_is_one_npy_array_and_a_flow_is_not(tmp_path: Path) -> None:
    npy = {"accept": "application/x-npy"}
    async with at_site(tmp_path, engine_of()) as at:
        told = await ask(at, "rollout", layers="all")
        alone = await at.post("/v1/rollout", {"input": TEXT, "layers": "all"}, headers=npy)
        two = await at.post("/v1/rollout", {"input": [TEXT, TEXT]}, headers=npy)
        flow = await at.post("/v1/rollout", {"input": TEXT, "method": "flow"}, headers=npy)
    assert alone.headers["content-type"] == "application/x-npy"
    loaded = np.load(io.BytesIO(alone.content))
    assert (loaded.dtype, loaded.shape) == (np.float32, (LAYERS, len(IDS), len(IDS)))
    assert np.array_equal(loaded, array(told, "rollout").astype("f4"))
    assert (two.status_code, flow.status_code) == (400, 400)


async def test_a_flow_is_refused_where_there_are_no_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightwell.server.dialects.inspect.rollout.kernel_levels", tuple)
    async with at_site(tmp_path, engine_of()) as at:
        error = await at.error("/v1/rollout", {"input": TEXT, "method": "flow"}, 400)
        assert at.engine.submitted == []
        assert (await at.post("/v1/rollout", {"input": TEXT})).status_code == 200
    assert (error["param"], error["code"]) == ("method", "not_supported_by_machine")


async def test_a_flow_that_would_take_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightwell.server.dialects.inspect.rollout.MAX_FLOW_WORK", 100)
    async with at_site(tmp_path, engine_of()) as at:
        await refuses(at, "/v1/rollout", {"input": TEXT, "method": "flow"}, param="method", code="too_much_work")
        assert at.engine.submitted == []


# --- next ---


def softmax(logits: Any) -> Any:
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()


async def test_next_tells_the_likeliest_tokens_at_every_temperature(tmp_path: Path) -> None:
    async with at_site(tmp_path, engine_of()) as at:
        entry = await ask(at, "next", temperatures=[0, 0.5, 2], num_tokens=3, top_k=2, full=True)
    logits = array(entry, "logits")
    likeliest = np.argsort(-logits)[:3]
    greedy, cold, hot = entry["temperatures"]
    assert entry["position"] == len(IDS) - 1
    assert [token["token_id"] for token in hot["tokens"]] == likeliest.tolist()
    assert [token["probability"] for token in greedy["tokens"]] == [1, 0, 0]
    assert greedy["entropy"] == 0 < cold["entropy"] < hot["entropy"]
    for each, temperature in ((cold, 0.5), (hot, 2)):
        p = softmax(logits / temperature)
        assert each["entropy"] == pytest.approx(-(p * np.log(p)).sum(), rel=1e-5)
        assert [token["probability"] for token in each["tokens"]] == pytest.approx(p[likeliest].tolist(), rel=1e-4)
        kept = [token["kept_probability"] for token in each["tokens"]]
        assert (each["num_kept"], kept[2]) == (2, 0)
        assert list(each["num_passed"].items()) == [("top_k", 2), ("min_p", 2), ("top_p", 2)]
        assert sum(kept) == pytest.approx(1)
        assert kept[0] / kept[1] == pytest.approx(p[likeliest[0]] / p[likeliest[1]], rel=1e-4)


async def test_next_bounds_inputs_times_temperatures_times_the_vocabulary(tmp_path: Path) -> None:
    body = {"input": ["a"] * 2048, "temperatures": [i / 64 for i in range(64)], "num_tokens": 0, "top_p": 0.9}
    async with site(tmp_path, config=replace(tiny_config(), vocab_size=49_152), max_num_queued_requests=4096) as at:
        error = await at.error("/v1/next", body, 400)
        assert (error["param"], error["code"]) == ("temperatures", "too_much_work")
        assert f"{64 * 2048 * 49_152} probabilities" in error["message"]
        assert "at most 536870912 are accepted" in error["message"]
        assert at.engine.submitted == []


async def test_next_gives_the_whole_vocabulary_when_asked(tmp_path: Path) -> None:
    async with at_site(tmp_path, engine_of()) as at:
        body = {"input": TEXT, "temperatures": [1, 3], "full": True, "position": 1}
        answer = await at.post("/v1/next", body, headers={"accept": "application/vnd.safetensors"})
        (point,) = (await ask(at, "trace", points=["logits"], positions=1))["points"].values()
    tensors = load_safetensors(answer.content)
    logits = np.array(point["data"][0])
    assert np.allclose(tensors["0/logits"], logits, rtol=1e-5, atol=1e-6)
    for row, temperature in zip(tensors["0/probabilities"], (1, 3), strict=True):
        assert np.allclose(row, softmax(logits / temperature), atol=1e-6)
    assert np.allclose(tensors["0/kept"], tensors["0/probabilities"])


async def test_a_logit_of_minus_infinity_is_a_token_that_cannot_come(
    plain: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Suppress tokens as a checkpoint may do: their logits of minus infinity are no overflow."""

    def ruled_out(*given: Any) -> np.ndarray:
        logits = traced(*given) % 7
        logits[..., 5:] = -np.inf
        return logits

    monkeypatch.setattr("tests.server.fake_client.traced", ruled_out)
    entry = await ask(plain, "next", num_tokens=6, temperatures=[0, 1], top_k=3, full=True)
    for each in entry["temperatures"]:
        assert each["tokens"][5] == {**each["tokens"][5], "logit": None, "probability": 0, "kept_probability": 0}
        assert sum(token["probability"] for token in each["tokens"]) == pytest.approx(1)
    assert entry["arrays"]["logits"]["data"][5:8] == [None] * 3


# --- lens ---


async def test_the_lens_ranks_its_target(tmp_path: Path) -> None:
    async with at_site(tmp_path, engine_of()) as at:
        entry = await ask(at, "lens", top_k=4, target=104)
        last = await ask(at, "next", full=True)
    assert entry["layers"] == [0, 1, 2]
    assert entry["positions"] == list(range(len(IDS)))
    p = softmax(array(last, "logits"))
    assert entry["target"] == {"token_id": 104, "token": "h"}
    assert array(entry, "target_probabilities")[-1, -1] == pytest.approx(p[104], rel=1e-4)
    assert array(entry, "target_ranks")[-1, -1] == 1 + (p > p[104]).sum()


async def test_the_lens_names_each_token_of_many_positions(tmp_path: Path) -> None:
    async with at_site(tmp_path, engine_of()) as at:
        entry = (await at.post("/v1/lens", {"input": "ab" * 30, "top_k": 3})).json()["data"][0]
        names = [
            at.model.tokenizer.token_strings(row) for row in array(entry, "ids").astype(int).reshape(-1, 3).tolist()
        ]
    assert [row for of_layer in entry["top_tokens"] for row in of_layer] == names
    assert [len(of_layer) for of_layer in entry["top_tokens"]] == [60] * 3


async def test_a_target_is_a_text_that_is_one_token(tmp_path: Path) -> None:
    async with at_site(tmp_path, engine_of()) as at:
        entry = await ask(at, "lens", target="h", layers=-1, positions=-1)
        await refuses(at, "/v1/lens", {"input": TEXT, "target": "hi"}, "2 tokens", param="target", code="not_one_token")
        none = await at.error("/v1/lens", {"input": TEXT, "target": ""}, 400)
        beyond = await at.error("/v1/contributions", {"input": TEXT, "target": 999}, 400)
    assert entry["target"]["token_id"] == 104
    assert none["param"] == beyond["param"] == "target"


# --- trajectory ---


async def test_a_trajectory_is_measured_from_the_stream(tmp_path: Path) -> None:
    async with at_site(tmp_path, engine_of()) as at:
        entry = await ask(at, "trajectory", positions=[-1, 0], compare_positions=[2, 0])
        points = (await ask(at, "trace", points=["hook_embed", "hook_resid_post"]))["points"]
    names = ["hook_embed", *(f"blocks.{i}.hook_resid_post" for i in range(LAYERS))]
    states = [np.array(points[name]["data"]) for name in names]
    for i, position in enumerate([4, 0]):
        for state, x in enumerate(states):
            assert array(entry, "norms")[i, state] == pytest.approx(np.linalg.norm(x[position]), rel=1e-5)
            for j, other in enumerate([2, 0]):
                expected = x[position] @ x[other] / np.linalg.norm(x[position]) / np.linalg.norm(x[other])
                assert array(entry, "cosine_to_others")[i, state, j] == pytest.approx(expected, abs=1e-5)
    assert array(entry, "cosine_to_start")[:, 0].tolist() == pytest.approx([1, 1])
    assert entry["positions"] == [4, 0]
