"""POST /v1/next, /v1/lens and /v1/trajectory: the next token, and the residual stream of each layer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as load_safetensors

from tests.server.dialects.looks import IDS, LAYERS, TEXT, array, ask, at_site, engine_of
from tests.server.dialects.routes import refuses
from tests.server.fake_client import traced
from tests.server.serving import Site, site, tiny_config

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
            at.context.tokenizer.token_strings(row) for row in array(entry, "ids").astype(int).reshape(-1, 3).tolist()
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
