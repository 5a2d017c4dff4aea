"""POST /v1/heads and /v1/rollout: scores of all heads' patterns, and patterns multiplied through the layers."""

import io
from pathlib import Path

import numpy as np
import pytest

from tests.server.dialects.looks import HEADS, IDS, LAYERS, TEXT, array, ask, at_site, engine_of
from tests.server.dialects.routes import refuses

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
    monkeypatch.setattr("server.dialects.inspect.rollout.kernel_levels", tuple)
    async with at_site(tmp_path, engine_of()) as at:
        error = await at.error("/v1/rollout", {"input": TEXT, "method": "flow"}, 400)
        assert at.engine.submitted == []
        assert (await at.post("/v1/rollout", {"input": TEXT})).status_code == 200
    assert (error["param"], error["code"]) == ("method", "not_supported_by_machine")


async def test_a_flow_that_would_take_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.dialects.inspect.rollout.MAX_FLOW_WORK", 100)
    async with at_site(tmp_path, engine_of()) as at:
        await refuses(at, "/v1/rollout", {"input": TEXT, "method": "flow"}, param="method", code="too_much_work")
        assert at.engine.submitted == []
