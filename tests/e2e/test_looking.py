"""Inspection requests to the default model over a running server: each route once, and what must add up, adds up."""

import json
import random
import urllib.error
import urllib.request
from typing import Any

import numpy as np
import pytest

from tests.support.processes import Server

TEXT = "Once upon a time there was a king who had a daughter, and the king said to the daughter"


def post(server: Server, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        server.url + path, json.dumps(body).encode(), {"content-type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def ask(server: Server, route: str, **body: Any) -> dict[str, Any]:
    status, answer = post(server, f"/v1/{route}", {"input": TEXT, **body})
    assert status == 200, answer
    (entry,) = answer["data"]
    return dict(entry)


def array(entry: dict[str, Any], name: str) -> Any:
    return np.array(entry["arrays"][name]["data"], float)


def test_the_next_token_is_the_one_that_is_generated(server: Server) -> None:
    entry = ask(server, "next", temperatures=[0, 1, 2], num_tokens=5, top_p=0.9)
    status, completion = post(
        server, "/v1/completions", {"prompt": TEXT, "max_tokens": 1, "temperature": 0, "logprobs": 5}
    )
    assert status == 200
    greedy, plain, hot = entry["temperatures"]
    assert greedy["tokens"][0]["token"] == completion["choices"][0]["text"]
    (top,) = completion["choices"][0]["logprobs"]["top_logprobs"]
    expected = sorted(np.exp(list(top.values())), reverse=True)[:5]
    assert [token["probability"] for token in plain["tokens"]] == pytest.approx(expected, rel=1e-4)
    assert plain["entropy"] < hot["entropy"]


def test_the_lens_ends_with_the_model(server: Server) -> None:
    said = ask(server, "next", num_tokens=3)["temperatures"][0]["tokens"]
    lens = ask(server, "lens", positions=-1, top_k=3, target=said[1]["token_id"])
    assert lens["top_tokens"][-1][0] == [token["token"] for token in said]
    assert array(lens, "target_ranks")[-1, 0] == 2
    assert array(lens, "target_probabilities")[-1, 0] == pytest.approx(said[1]["probability"], rel=1e-4)


def test_an_intervention_changes_what_comes_next_and_nothing_else(server: Server) -> None:
    before = ask(server, "next")
    silenced = ask(server, "next", interventions=[{"point": "hook_mlp_out", "layer": "all", "op": "zero"}])
    assert ask(server, "next") == before
    assert silenced["temperatures"][0]["tokens"] != before["temperatures"][0]["tokens"]


def test_the_steps_of_a_head_are_the_servers(server: Server) -> None:
    entry = ask(server, "explain", layer=random.randrange(6), head=random.randrange(8), query_position=-2)
    assert max(entry["differences"].values()) < 1e-4
    assert array(entry, "weights").sum() == pytest.approx(1, abs=1e-5)


def test_the_parts_of_a_logit_sum_to_it(server: Server) -> None:
    entry = ask(server, "contributions", target=" king", versus=" queen", query_positions=[3, -1])
    assert entry["difference"] < 1e-4
    assert np.allclose(array(entry, "components").sum(-1), entry["logits"], atol=1e-4)
    heads = [i for i, name in enumerate(entry["component_names"]) if ".head." in name]
    assert np.allclose(
        array(entry, "attributions").sum(-1).reshape(-1, 2).T, array(entry, "components")[:, heads], atol=1e-4
    )


def test_a_trained_model_has_a_previous_token_head(server: Server) -> None:
    """Check that a head scores high on a story and on noise alike, and that the trajectory of the residual stream
    moves away from the embedding.
    """
    story, noise = ask(server, "heads"), ask(server, "heads", input=None)
    for entry in (story, noise):
        assert entry["strongest"]["previous_token"][0]["score"] > 0.4
    way = ask(server, "trajectory", positions="all", compare_positions=[0])
    assert (array(way, "cosine_to_start")[:, -1] < 0.9).all()


def test_rollout_shares_sum_to_one_and_flows_are_no_less(server: Server) -> None:
    rolled = array(ask(server, "rollout"), "rollout")[0, -1]
    flows = array(ask(server, "rollout", method="flow"), "flow")[0, 0]
    assert rolled.sum() == pytest.approx(1, abs=1e-5)
    # Rollout adds up, over all paths, products of weights; each path alone carries its smallest: flow is never below.
    assert (flows >= rolled - 1e-6).all()


def test_what_cannot_be_is_refused_with_what_can(server: Server) -> None:
    status, answer = post(server, "/v1/lens", {"input": TEXT, "target": "kingdom come"})
    assert (status, answer["error"]["param"]) == (400, "target")
    status, answer = post(server, "/v1/explain", {"input": TEXT, "layer": 6, "head": 0})
    assert (status, answer["error"]["param"]) == (400, "layer")
