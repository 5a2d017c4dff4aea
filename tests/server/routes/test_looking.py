"""POST /v1/next, /v1/lens, /v1/explain, /v1/contributions, /v1/trajectory, /v1/heads and /v1/rollout.

Against a small network in numpy whose points all belong to one pass, so that what must add up can be added up.
"""

import asyncio
import random
import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from fastapi import Request
from safetensors.numpy import load as load_safetensors
from starlette.types import Message

from server.errors import QueueFull
from server.routes.looking import Look
from server.sse import ClientGone
from server.tensors import Format
from tests.server.serving import Site, site, tiny_config
from tests.server.tiny_network import HEADS, LAYERS, NetworkEngine, TinyNetwork, network_config

TEXT = "abcab"
IDS = list(TEXT.encode())
VARIANTS: dict[str, dict[str, Any]] = {
    "rmsnorm": {},
    "layernorm": {"norm": "layernorm"},
    "capped": {"attn_logit_softcap": 1.2, "final_logit_softcap": 2.5},
}
ROUTES = ("next", "lens", "explain", "contributions", "trajectory", "heads", "rollout")
NEEDED: dict[str, dict[str, Any]] = {"explain": {"layer": 0, "head": 0}}


def engine_of(variant: str = "rmsnorm") -> NetworkEngine:
    config = network_config(tiny_config(), **VARIANTS[variant])
    return NetworkEngine(network=TinyNetwork(config, seed=random.randrange(2**31)))


def at_site(folder: Path, engine: NetworkEngine, **settings: Any) -> Any:
    return site(folder, engine, config=engine.network.config, **settings)


async def ask(at: Site, route: str, **body: Any) -> dict[str, Any]:
    answer = await at.post(f"/v1/{route}", {"input": TEXT, **NEEDED.get(route, {}), **body})
    assert answer.status_code == 200, answer.text
    (entry,) = answer.json()["data"]
    return dict(entry)


def array(entry: dict[str, Any], name: str) -> Any:
    told = entry["arrays"][name]
    value = np.array(told["data"], float)
    assert list(value.shape) == told["shape"]
    assert len(told["axes"]) == value.ndim
    return value


def softmax(logits: Any) -> Any:
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()


# ---- next


async def test_next_tells_the_likeliest_tokens_at_every_temperature(tmp_path: Path) -> None:
    engine = engine_of()
    async with at_site(tmp_path, engine) as at:
        entry = await ask(at, "next", temperatures=[0, 0.5, 2], num_tokens=3, top_k=2)
    logits = engine.network.points(IDS)["logits"][-1]
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
        assert sum(kept) == pytest.approx(1)
        assert kept[0] / kept[1] == pytest.approx(p[likeliest[0]] / p[likeliest[1]], rel=1e-4)


async def test_next_gives_the_whole_vocabulary_when_asked(tmp_path: Path) -> None:
    engine = engine_of()
    async with at_site(tmp_path, engine) as at:
        body = {"input": TEXT, "temperatures": [1, 3], "full": True, "position": 1}
        answer = await at.post("/v1/next", body, headers={"accept": "application/vnd.safetensors"})
    tensors = load_safetensors(answer.content)
    logits = engine.network.points(IDS)["logits"][1]
    assert np.allclose(tensors["0/logits"], logits, rtol=1e-5, atol=1e-6)
    for row, temperature in zip(tensors["0/probabilities"], (1, 3), strict=True):
        assert np.allclose(row, softmax(logits / temperature), atol=1e-6)
    assert np.allclose(tensors["0/kept"], tensors["0/probabilities"])


async def test_a_logit_of_minus_infinity_is_a_token_that_cannot_come(tmp_path: Path) -> None:
    """A checkpoint may rule out tokens so; it is no overflow."""
    engine = engine_of()
    engine.network.head_bias[5:] = -np.inf
    async with at_site(tmp_path, engine) as at:
        entry = await ask(at, "next", num_tokens=6, temperatures=[0, 1], top_k=3, full=True)
    for each in entry["temperatures"]:
        assert each["tokens"][5] == {**each["tokens"][5], "logit": None, "probability": 0, "kept_probability": 0}
        assert sum(token["probability"] for token in each["tokens"]) == pytest.approx(1)
    assert entry["arrays"]["logits"]["data"][5:8] == [None] * 3


# ---- lens


async def test_the_last_layer_of_the_lens_is_the_model_itself(tmp_path: Path) -> None:
    engine = engine_of("layernorm")
    async with at_site(tmp_path, engine) as at:
        entry = await ask(at, "lens", top_k=4, target=104)
        last = await ask(at, "next", num_tokens=4)
    assert entry["layers"] == [0, 1, 2]
    assert entry["positions"] == list(range(len(IDS)))
    assert [token["token_id"] for token in last["temperatures"][0]["tokens"]] == array(entry, "ids")[-1, -1].tolist()
    expected = [token["probability"] for token in last["temperatures"][0]["tokens"]]
    assert array(entry, "probabilities")[-1, -1].tolist() == pytest.approx(expected, rel=1e-4)
    assert [token["token"] for token in last["temperatures"][0]["tokens"]] == entry["top_tokens"][-1][-1]
    p = softmax(engine.network.points(IDS)["logits"][-1])
    assert entry["target"] == {"token_id": 104, "token": "h"}
    assert array(entry, "target_probabilities")[-1, -1] == pytest.approx(p[104], rel=1e-4)
    assert array(entry, "target_ranks")[-1, -1] == 1 + (p > p[104]).sum()


async def test_a_target_is_a_text_that_is_one_token(tmp_path: Path) -> None:
    async with at_site(tmp_path, engine_of()) as at:
        entry = await ask(at, "lens", target="h", layers=-1, positions=-1)
        two = await at.error("/v1/lens", {"input": TEXT, "target": "hi"}, 400)
        none = await at.error("/v1/lens", {"input": TEXT, "target": ""}, 400)
        beyond = await at.error("/v1/contributions", {"input": TEXT, "target": 999}, 400)
    assert entry["target"]["token_id"] == 104
    assert (two["param"], two["code"]) == ("target", "not_one_token")
    assert "2 tokens" in two["message"]
    assert none["param"] == beyond["param"] == "target"


# ---- explain


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


# ---- contributions


@pytest.mark.parametrize("variant", VARIANTS)
async def test_the_parts_of_a_logit_sum_to_it(variant: str, tmp_path: Path) -> None:
    engine = engine_of(variant)
    async with at_site(tmp_path, engine) as at:
        entry = await ask(at, "contributions", target="h", query_positions=[1, -1])
    logits = engine.network.points(IDS)["logits"][[1, -1], 104]
    cap = engine.network.config.final_logit_softcap
    summed = array(entry, "components").sum(-1)
    assert len(entry["component_names"]) == 1 + LAYERS * (HEADS + 2) + 1
    assert np.allclose(summed, entry["logits"], rtol=1e-5)
    assert np.allclose(summed if cap is None else cap * np.tanh(summed / cap), logits, atol=1e-5)
    assert entry["difference"] < 1e-5
    # What the words add through a head sums to what the head adds.
    through_heads = array(entry, "attributions").sum(-1)
    for layer in range(LAYERS):
        for head in range(HEADS):
            column = entry["component_names"].index(f"blocks.{layer}.attn.head.{head}")
            assert np.allclose(through_heads[layer, head], array(entry, "components")[:, column], atol=1e-5)


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


# ---- trajectory


async def test_a_trajectory_is_measured_from_the_stream(tmp_path: Path) -> None:
    engine = engine_of()
    async with at_site(tmp_path, engine) as at:
        entry = await ask(at, "trajectory", positions=[-1, 0], compare_positions=[2, 0])
    points = engine.network.points(IDS)
    states = [points["hook_embed"], *(points[f"blocks.{i}.hook_resid_post"] for i in range(LAYERS))]
    for i, position in enumerate([4, 0]):
        for state, x in enumerate(states):
            assert array(entry, "norms")[i, state] == pytest.approx(np.linalg.norm(x[position]), rel=1e-5)
            for j, other in enumerate([2, 0]):
                expected = x[position] @ x[other] / np.linalg.norm(x[position]) / np.linalg.norm(x[other])
                assert array(entry, "cosine_to_others")[i, state, j] == pytest.approx(expected, abs=1e-5)
    assert array(entry, "cosine_to_start")[:, 0].tolist() == pytest.approx([1, 1])
    assert entry["positions"] == [4, 0]


# ---- heads


async def test_heads_of_a_text_are_means_over_its_pattern(tmp_path: Path) -> None:
    engine = engine_of()
    async with at_site(tmp_path, engine) as at:
        entry = await ask(at, "heads")
    scores = dict(zip(entry["measures"], np.moveaxis(array(entry, "scores"), -1, 0), strict=True))
    for layer in range(LAYERS):
        pattern = engine.network.points(IDS)[f"blocks.{layer}.attn.hook_pattern"]
        assert np.allclose(scores["previous_token"][layer], np.diagonal(pattern, -1, 1, 2).mean(-1), atol=1e-5)
        assert np.allclose(scores["self"][layer], np.diagonal(pattern, 0, 1, 2).mean(-1), atol=1e-5)
        assert np.allclose(scores["first_token"][layer], pattern[:, 1:, 0].mean(-1), atol=1e-5)
        # "abcab": the second a followed by b, so its query looks for position 1; the second b for position 2
        assert np.allclose(scores["induction"][layer], (pattern[:, 3, 1] + pattern[:, 4, 2]) / 2, atol=1e-5)
    best = entry["strongest"]["entropy"][0]
    assert scores["entropy"][best["layer"], best["head"]] == scores["entropy"].max()


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
        too_long = await at.error("/v1/heads", {"repeat_length": 40}, 400)
    sent = [submitted.prompt_token_ids for submitted in engine.submitted[:3]]
    induction = np.zeros((LAYERS, HEADS))
    for ids in sent:
        assert ids[:6] == ids[6:]
        for layer in range(LAYERS):
            pattern = engine.network.points(ids)[f"blocks.{layer}.attn.hook_pattern"]
            induction[layer] += np.diagonal(pattern, 1 - 6, 1, 2).mean(-1) / 3
    assert len(set(sent)) == 3
    assert np.allclose(array(entry, "scores")[..., entry["measures"].index("induction")], induction, atol=1e-5)
    assert entry["arrays"] == again["arrays"]
    assert "tokens" not in entry
    assert (too_long["param"], "32" in too_long["message"]) == ("repeat_length", True)


# ---- rollout and flow


async def test_rollout_and_flow_start_from_the_heads_mean(tmp_path: Path) -> None:
    engine = engine_of()
    async with at_site(tmp_path, engine) as at:
        rolled = await ask(at, "rollout", layers="all")
        flowed = await ask(at, "rollout", method="flow")
    points = engine.network.points(IDS)
    expected = np.eye(len(IDS))
    for layer in range(LAYERS):
        expected = (points[f"blocks.{layer}.attn.hook_pattern"].mean(0) + np.eye(len(IDS))) / 2 @ expected
        assert np.allclose(array(rolled, "rollout")[layer], expected, atol=1e-5)
    assert (flowed["layers"], flowed["query_positions"]) == ([LAYERS - 1], [len(IDS) - 1])
    flow = array(flowed, "flow")[0, 0]
    # Never less than the best single path, never more than what the input's own edges hold.
    assert (flow > array(rolled, "rollout")[-1, -1] / len(IDS) ** LAYERS).all()
    assert np.allclose(array(flowed, "normalized")[0, 0], flow / flow.sum(), atol=1e-6)


async def test_a_flow_that_would_take_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.routes.rollout.MAX_FLOW_WORK", 100)
    async with at_site(tmp_path, engine_of()) as at:
        error = await at.error("/v1/rollout", {"input": TEXT, "method": "flow"}, 400)
        assert at.engine.submitted == []
    assert (error["param"], error["code"]) == ("method", "too_much_work")


# ---- what all of them share


@pytest.mark.parametrize("route", ROUTES)
async def test_many_inputs_come_in_order_and_in_any_format(route: str, tmp_path: Path) -> None:
    async with at_site(tmp_path, engine_of()) as at:
        body = {"input": ["ab", "abcd"], **NEEDED.get(route, {})}
        answer = (await at.post(f"/v1/{route}", body)).json()
        binary = await at.post(f"/v1/{route}", body, headers={"accept": "application/vnd.safetensors"})
        lines = await at.post(f"/v1/{route}", body, headers={"accept": "application/x-ndjson"})
    assert [len(entry["tokens"]) for entry in answer["data"]] == [2, 4]
    assert answer["usage"]["prompt_tokens"] == 6
    assert binary.status_code == lines.status_code == 200
    tensors = load_safetensors(binary.content)
    assert set(tensors) == {f"{i}/{name}" for i, entry in enumerate(answer["data"]) for name in entry["arrays"]}
    for name, value in tensors.items():
        index, _, key = name.partition("/")
        told = np.array(answer["data"][int(index)]["arrays"][key]["data"], float)
        assert np.array_equal(
            np.where(np.isfinite(value), value, np.nan).astype("f4"), told.astype("f4"), equal_nan=True
        )


@pytest.mark.parametrize("route", ROUTES)
async def test_a_full_budget_is_429_and_too_large_an_answer_413(route: str, tmp_path: Path) -> None:
    engine = engine_of()
    body = {"input": "a" * 60, "full": True} if route == "next" else {"input": "a" * 60, **NEEDED.get(route, {})}
    async with at_site(tmp_path, engine, max_response_bytes=20) as at:
        too_large = await at.error(f"/v1/{route}", body, 413)
        assert engine.submitted == []
    assert too_large["code"] == "answer_too_large"
    engine.refuse = QueueFull("full", code="capture_budget_full", retry_after=1)
    async with at_site(tmp_path, engine) as at:
        full = await at.post(f"/v1/{route}", body)
    assert (full.status_code, full.headers["retry-after"]) == (429, "1")


@pytest.mark.parametrize("route", sorted(set(ROUTES) - {"lens"}))
async def test_inputs_that_capture_too_much_together_are_413_before_any_runs(route: str, tmp_path: Path) -> None:
    """Each of them fits; but what is taken from the first lies in memory until the last is there."""
    engine = engine_of()
    body = {"input": ["a" * 60] * 12, **NEEDED.get(route, {})}
    async with at_site(tmp_path, engine) as at:
        assert (await at.post(f"/v1/{route}", body)).status_code == 200
        budget = 2 * max(each.capture_bytes for each in engine.submitted)
    engine.submitted.clear()
    async with at_site(tmp_path, engine, max_capture_bytes=budget) as at:
        error = await at.error(f"/v1/{route}", body, 413)
        assert engine.submitted == []
        assert await at.metric('lightwell_capture_rejected_total{reason="answer_too_large"}') == 1
    assert error["code"] == "capture_too_large"


@pytest.mark.parametrize("route", ["explain", "contributions"])
async def test_what_is_asked_of_the_weights_counts_before_anything_runs(route: str, tmp_path: Path) -> None:
    """It was asked for, and refused, when the passes over the inputs were done."""
    engine = engine_of()
    body = {"input": TEXT, **NEEDED.get(route, {})}
    async with at_site(tmp_path, engine) as at:
        assert (await at.post(f"/v1/{route}", body)).status_code == 200
    num_bytes = sum(each.capture_bytes for each in engine.submitted)
    engine.submitted.clear()
    async with at_site(tmp_path, engine, max_capture_bytes=num_bytes - 1) as at:
        error = await at.error(f"/v1/{route}", body, 413)
        assert engine.submitted == []
    async with at_site(tmp_path, engine, max_capture_bytes=num_bytes) as at:
        assert (await at.post(f"/v1/{route}", body)).status_code == 200
    assert f"would capture {num_bytes} bytes" in error["message"]


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        ("next", {"position": 5}, "position"),
        ("next", {"temperatures": []}, "temperatures"),
        ("next", {"temperatures": [-1]}, "temperatures"),
        ("lens", {"layers": LAYERS + 1}, "layers"),
        ("lens", {"positions": [9]}, "positions"),
        ("explain", {"layer": LAYERS}, "layer"),
        ("explain", {"head": -HEADS - 1}, "head"),
        ("explain", {"query_position": 5}, "query_position"),
        ("explain", {"part": "cross"}, "part"),
        ("contributions", {"heads": []}, "heads"),
        ("contributions", {"key_positions": 7}, "key_positions"),
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
        error = await at.error(f"/v1/{route}", {"input": TEXT, **NEEDED.get(route, {}), **fields}, 400)
        assert at.engine.submitted == []
    assert error["param"] == param


# ---- computing


PATIENCE = 60.0


class Watched:
    """A look whose client leaves when `leaves` is set; `endless` is what it computes."""

    def __init__(self) -> None:
        self.leaves = asyncio.Event()
        self.has_begun = threading.Event()
        self.has_ended = threading.Event()
        request = Request({"type": "http"}, self.receive)
        self.look = Look(cast("Any", None), request, cast("Any", None), Format.JSON, [], 0.0)

    async def receive(self) -> Message:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    def endless(self) -> None:
        self.has_begun.set()
        try:
            while not self.has_ended.wait(0.001):
                self.look.check()
        finally:
            self.has_ended.set()


async def test_looks_that_take_long_hold_up_nobody_elses_prompt_and_end_when_their_clients_leave() -> None:
    watched = [Watched() for _ in range(40)]
    running = [asyncio.create_task(each.look.compute(each.endless)) for each in watched]
    try:
        await asyncio.wait_for(asyncio.to_thread(watched[0].has_begun.wait), PATIENCE)
        assert not all(each.has_begun.is_set() for each in watched)  # the others wait: there are not so many threads
    finally:
        for each in watched:
            each.leaves.set()
    assert all(isinstance(end, ClientGone) for end in await asyncio.gather(*running, return_exceptions=True))
    for each in watched:
        assert not each.has_begun.is_set() or await asyncio.to_thread(each.has_ended.wait, PATIENCE)
    assert await asyncio.wait_for(Watched().look.compute(lambda: "a free thread"), PATIENCE) == "a free thread"
