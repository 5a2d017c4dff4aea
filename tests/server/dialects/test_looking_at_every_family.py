"""Inspection requests over HTTP on a small random checkpoint of every family: parts must sum to their total.

The numbers of a pass are checked elsewhere; these tests check that each route's arithmetic is right for every shape of
network: grouped heads, caps, biases by distance, windows, norms before and after, parallel blocks, cross attention.
"""

import json
import random
from typing import Any

import numpy as np
import pytest
import torch

from lightwell.model.checkpoint.weight_files import load_weights
from lightwell.model.config import ModelConfig
from lightwell.server.engine.messages.request import Part
from tests import reference
from tests.parity import ROWS
from tests.reference.contributions import Contributions
from tests.reference.stack import Weights
from tests.server.dialects.conftest import every_family
from tests.server.dialects.looks import array
from tests.server.dialects.routes import refuses
from tests.server.inline_engine import InlineEngine
from tests.server.serving import Site, build_site
from tests.tiny import ENCODERS, MASKED_LMS

GENERATING = tuple(name for name in ROWS if name not in ENCODERS)
SUMMED = tuple(name for name in GENERATING if name != "gemma3n")
"""Families with logits that come from one residual stream."""
PREDICTING = tuple(name for name in ROWS if name in (*SUMMED, *MASKED_LMS))
LENGTH = 20
"""Tokens: longer than the windows."""
POINTS = ("q", "k", "v", "rot_q", "rot_k", "attn_scores", "pattern", "z", "result")
"""Points of an attention from which its steps are read."""


def ids(config: ModelConfig, length: int = LENGTH) -> list[int]:
    """Draw any token ids, one of them twice."""
    drawn = [random.randrange(config.vocab_size) for _ in range(length)]
    return [*drawn[:-1], drawn[length // 2]]


def reading(config: ModelConfig) -> dict[str, Any]:
    """Return the input fields of a request: the encoder's input is shorter than the decoder's."""
    if config.kind == "encoder-decoder":
        return {"input": ids(config, LENGTH - 3), "decoder_input": ids(config)}
    return {"input": ids(config)}


def parts(config: ModelConfig) -> tuple[Part, ...]:
    return ("encoder", "decoder", "cross") if config.kind == "encoder-decoder" else (config.kind,)


def exactly(family: Site, body: dict[str, Any]) -> tuple[reference.Trace, Weights]:
    """Return the pass over these inputs by the formulas, in float64, and the network's weights."""
    assert isinstance(family.engine, InlineEngine)
    config = family.model.config
    weights = load_weights(family.engine.folder, config, torch.float64)
    if config.kind == "encoder-decoder":
        return reference.run(config, weights, body["decoder_input"], body["input"]), weights
    return reference.run(config, weights, body["input"]), weights


async def ask(family: Site, route: str, **body: Any) -> dict[str, Any]:
    answer = await family.post(f"/v1/{route}", body)
    assert answer.status_code == 200, answer.text
    (entry,) = answer.json()["data"]
    return dict(entry)


@every_family(*ROWS)
async def test_the_steps_of_a_head_are_those_of_the_formulas(family: Site) -> None:
    body = reading(family.model.config)
    trace, weights = exactly(family, body)
    for part in parts(family.model.config):
        own = Contributions(trace, weights, part)
        first, *_, last = own.config.attention_layers
        for layer, query in ((first, -1), (last, random.randrange(LENGTH - 3))):
            head = random.randrange(own.config.num_heads)
            entry = await ask(family, "explain", **body, part=part, layer=layer, head=head, query_position=query)
            expected = steps(own, layer, head, query)
            assert entry["kv_head"] == head * own.config.at(layer).num_kv_heads // own.config.num_heads
            assert entry["arrays"].keys() == expected.keys()
            for name, numbers in expected.items():
                assert np.allclose(array(entry, name), numbers, rtol=1e-3, atol=2e-4, equal_nan=True), (part, name)
            assert max(entry["differences"].values()) < 2e-4, (part, entry["differences"])


def steps(own: Contributions, layer: int, head: int, query: int) -> dict[str, Any]:
    """Return the arrays of /v1/explain by name; masked scores are NaN."""
    config, kv_head = own.config, head * own.config.at(layer).num_kv_heads // own.config.num_heads
    module, output = ("cross_attn", "cross_out") if own.part == "cross" else ("attn", "attn_out")
    points = {name: own.point(f"{module}.hook_{name}", layer).numpy() for name in POINTS}
    q, k, v = points["rot_q"][query, head], points["rot_k"][:, kv_head], points["v"][:, kv_head]
    scores, pattern = points["attn_scores"][head, query], points["pattern"][head, query]
    seen, scaled = np.isfinite(scores), k @ q * config.attention_scale
    cap = config.attn_logit_softcap
    capped = scaled if cap is None else cap * np.tanh(scaled / cap)
    sinks = own.weights.get(f"{own.prefix}layers.{layer}.sinks.weight")
    largest = scores.max() if sinks is None else max(scores.max(), float(sinks[head]))
    found = {
        "q_projected": points["q"][query, head],
        "k_projected": points["k"][:, kv_head],
        **{"q": q, "k": k, "products": k * q, "dots": k @ q, "scaled": scaled},
        "scores": np.where(seen, scores, np.nan),
        "exponentials": np.exp(scores - largest),
        **{"weights": pattern, "v": v, "weighted_v": pattern[:, None] * v},
        "z": points["z"][query, head],
        "output": points["result"][query, head],
    }
    if cap is not None:
        found["capped"] = capped
    if (config.position_bias is not None or config.alibi) and own.part != "cross":
        found["position_bias"] = np.where(seen, scores - capped, 0)
    if config.attention_gate and own.part != "cross":
        found["gate"] = own.point("attn.hook_gate", layer)[query, head].numpy()
    bias = own.weights.get(f"{own.prefix}layers.{layer}.{output}.bias")
    return found if bias is None else {**found, "output_bias": bias.numpy()}


@every_family("llama-gqa", "t5", "mpnet")
async def test_an_intervention_shows_in_the_one_step_that_it_changes(family: Site) -> None:
    body = {**reading(family.model.config), "layer": 0, "head": 1}
    softened = {"point": "attn.hook_attn_scores", "layer": 0, "op": "temperature", "value": 0.5}
    silenced = {"point": "attn.hook_z", "layer": 0, "head": 1, "op": "zero"}
    for change, step in ((softened, "scores"), (silenced, "z")):
        differences = (await ask(family, "explain", **body, interventions=[change]))["differences"]
        assert {name for name, far in differences.items() if far > 1e-4} == {step}


@every_family("llama-gqa", "mistral", "t5", "mpnet")
async def test_temperature_zero_empties_keys_and_masks_none(family: Site) -> None:
    """Check that temperature 0 sets all scores but one to minus infinity, and does not change the parts of scores."""
    cold = {"point": "attn.hook_attn_scores", "layer": 0, "op": "temperature", "value": 0}
    body = {**reading(family.model.config), "layer": 0, "head": 1, "query_position": 8}
    plain, changed = await ask(family, "explain", **body), await ask(family, "explain", **body, interventions=[cold])
    for name in plain["arrays"].keys() & {"dots", "scaled", "position_bias"}:
        assert np.allclose(array(changed, name), array(plain, name), atol=1e-5)
    largest = int(array(plain, "weights").argmax())
    assert array(changed, "weights").tolist() == [float(key == largest) for key in changed["key_positions"]]
    assert changed["differences"].pop("scores") is None
    assert max(changed["differences"].values()) < 2e-4


@every_family(*PREDICTING)
async def test_the_last_layer_of_the_lens_says_what_the_model_says_next(family: Site) -> None:
    config = family.model.config
    body = reading(config)
    lens = await ask(family, "lens", **body, top_k=6, positions=[3, -1])
    assert lens["layers"] == list(range(config.num_layers + 1))
    for column, position in enumerate((3, -1)):
        said = await ask(family, "next", **body, position=position, num_tokens=6)
        tokens = said["temperatures"][0]["tokens"]
        assert array(lens, "ids")[-1, column].tolist() == [token["token_id"] for token in tokens]
        expected = [token["probability"] for token in tokens]
        assert array(lens, "probabilities")[-1, column].tolist() == pytest.approx(expected, rel=1e-3, abs=1e-7)
        assert array(lens, "entropy")[-1, column] == pytest.approx(
            said["temperatures"][0]["entropy"], rel=1e-3, abs=1e-6
        )


@every_family("bert", "distilbert")
async def test_an_encoder_tells_what_may_stand_at_the_first_masked_place(family: Site) -> None:
    assert isinstance(family.engine, InlineEngine)
    at = build_site(family.engine.folder, family.engine, config=family.model.config)  # with its own tokenizer
    body = {"input": "there was a [MASK] who [MASK] in a wood"}
    filled, named = await ask(at, "next", **body, full=True), await ask(at, "next", **body, position=-1)
    trace, _ = exactly(at, {"input": filled["token_ids"]})
    mask, last = filled["tokens"].index("[MASK]"), len(filled["tokens"]) - 1
    assert (filled["position"], named["position"]) == (mask, last)
    assert filled["tokens"].count("[MASK]") == 2
    assert np.allclose(array(filled, "logits"), trace.logits[mask], atol=1e-4)
    tokens = filled["temperatures"][0]["tokens"]
    assert [token["token_id"] for token in tokens] == trace.logits[mask].topk(10).indices.tolist()
    lens = await ask(at, "lens", **body, positions=mask, top_k=10)
    assert lens["top_tokens"][-1][0] == [token["token"] for token in tokens]
    await refuses(at, "/v1/next", {"input": "there was a wolf"}, "does not contain '[MASK]'", param="position")
    assert (await at.error("/v1/contributions", {**body, "target": 5}, 400))["param"] == "target"


@every_family(*ROWS)
async def test_a_trajectory_ends_where_the_last_block_does(family: Site) -> None:
    config = family.model.config
    body = reading(config)
    for part in parts(config):
        if part == "cross":
            continue
        entry = await ask(family, "trajectory", **body, part=part, positions=[2, -1], compare_positions=[2])
        name = f"{part}.hook_resid_post" if config.kind == "encoder-decoder" else "hook_resid_post"
        traced = await family.post("/v1/trace", {**body, "points": [name], "positions": [2, -1], "layers": -1})
        (point,) = traced.json()["data"][0]["points"].values()
        assert np.allclose(array(entry, "norms")[:, -1], np.linalg.norm(point["data"], axis=-1), rtol=1e-4)
        assert np.allclose(array(entry, "cosine_to_others")[0, :, 0], 1, atol=1e-5)


OVERFLOW = {"point": "blocks.0.hook_resid_post", "positions": 3, "op": "scale", "value": 3e38}
"""Intervention that makes the residual stream of one position infinite, and later values NaN."""


@every_family("llama-gqa")
@pytest.mark.parametrize(
    ("route", "fields", "says"),
    [
        ("next", {}, "logits of input 0 at position 5"),
        ("lens", {"positions": [1, 4]}, "logits of input 0 in state 2 at position 4"),
        ("rollout", {}, "patterns of input 0 in layer 1"),
        ("rollout", {"method": "flow"}, "patterns of input 0 in layer 1"),
        ("geometry", {"point": "hook_resid_post", "layer": 1}, "numbers of input 0 at blocks.1.hook_resid_post"),
    ],
)
async def test_what_cannot_be_made_of_an_overflow_is_refused(
    family: Site, route: str, fields: dict[str, Any], says: str
) -> None:
    """Check against an old failure: the lens ranked NaN first, the geometry reported it as constant, and the flow of
    the rollout was 0.
    """
    body = {"input": ids(family.model.config, 6), **fields}
    error = await family.error(f"/v1/{route}", {**body, "interventions": [OVERFLOW]}, 400)
    assert (error["param"], error["code"]) == ("interventions", "not_finite")
    assert says in error["message"]
    assert (await family.post(f"/v1/{route}", body)).status_code == 200


@every_family("llama-gqa")
@pytest.mark.parametrize(
    ("route", "fields"),
    [
        ("trajectory", {"positions": "all", "compare_positions": "all"}),
        ("heads", {}),
        ("explain", {"layer": 1, "head": 0}),
        ("contributions", {"target": 5, "query_positions": "all"}),
    ],
)
async def test_numbers_that_overflowed_are_null(family: Site, route: str, fields: dict[str, Any]) -> None:
    body = {"input": ids(family.model.config, 6), **fields, "interventions": [OVERFLOW]}
    answer = await family.post(f"/v1/{route}", body)
    assert answer.status_code == 200
    told = json.loads(answer.content, parse_constant=pytest.fail)["data"][0]  # NaN is no JSON
    assert any("null" in json.dumps(each["data"]) for each in told["arrays"].values())


def measured(patterns: Any) -> dict[str, Any]:
    """Return the measures [layer, head] of patterns [layer, head, query, key] that do not depend on the tokens."""
    n = patterns.shape[-1]
    distance = np.abs(np.arange(n)[:, None] - np.arange(n))
    safe = np.where(patterns > 0, patterns, 1)
    return {
        "previous_token": np.diagonal(patterns, -1, 2, 3).mean(-1),
        "self": np.diagonal(patterns, 0, 2, 3).mean(-1),
        "first_token": patterns[..., 1:, 0].mean(-1),
        "entropy": -(patterns * np.log(safe)).sum(-1).mean(-1),
        "mean_distance": (patterns * distance).sum(-1).mean(-1),
    }


def induction(patterns: Any, tokens: list[int]) -> Any:
    """Return the attention weight on the tokens after earlier copies of the query's token, `[layer, head]`: the mean
    over the queries with such copies.
    """
    found = []
    for query, token in enumerate(tokens):
        followers = [key + 1 for key in range(query) if tokens[key] == token]
        if followers:
            found.append(patterns[:, :, query, followers].sum(-1))
    return np.mean(found, axis=0)


def assert_measures(entry: dict[str, Any], expected: dict[str, Any]) -> None:
    scores = dict(zip(entry["measures"], np.moveaxis(array(entry, "scores"), -1, 0), strict=True))
    assert scores.keys() == expected.keys()
    for name, numbers in expected.items():
        assert np.allclose(scores[name], numbers, atol=1e-4), name


async def patterns_of(family: Site, body: dict[str, Any], part: Part) -> Any:
    answer = await family.post("/v1/attention", {**body, "part": part})
    return np.array(answer.json()["data"][0]["attention"])


@every_family(*ROWS)
async def test_scores_of_heads_are_those_of_their_patterns(family: Site) -> None:
    config = family.model.config
    body = reading(config)
    for part in parts(config):
        if part == "cross":
            continue
        patterns = await patterns_of(family, body, part)
        tokens = body["decoder_input" if part == "decoder" and "decoder_input" in body else "input"]
        expected = {**measured(patterns), "induction": induction(patterns, tokens)}
        assert_measures(await ask(family, "heads", **body, part=part), expected)
        if config.recurrence is not None:
            await refuses(family, "/v1/rollout", {**body, "part": part}, "attention only in layers")
            continue
        rolled = await ask(family, "rollout", **body, part=part)
        mixed = np.eye(len(tokens))
        for pattern in patterns.mean(1):
            both = pattern + np.eye(len(tokens))
            mixed = both / both.sum(-1, keepdims=True) @ mixed
        assert np.allclose(array(rolled, "rollout")[0], mixed, atol=1e-5)


@every_family(*ROWS)
async def test_random_tokens_written_twice_show_induction(family: Site) -> None:
    """Compare with TransformerLens's score: the mean of the diagonal at distance `repeat_length - 1`."""
    config, half = family.model.config, 5
    for part in parts(config):
        if part == "cross":
            continue
        entry = await ask(family, "heads", part=part, repeat_length=half, num_sequences=2, seed=random.randrange(2**31))
        assert (entry["repeat_length"], entry["num_sequences"]) == (half, 2)
        scores = []
        for read in family.engine.submitted[-2:]:
            tokens = read.encoder_token_ids if part == "encoder" and config.encoder else read.prompt_token_ids
            assert tokens[-half:] == tokens[-2 * half : -half]
            body = {"input": list(read.prompt_token_ids)}
            if config.encoder:
                body = {"input": list(read.encoder_token_ids), "decoder_input": list(read.prompt_token_ids) or [0]}
            patterns = await patterns_of(family, body, part)
            diagonal = np.diagonal(patterns, 1 - half, 2, 3).mean(-1)
            scores.append({**measured(patterns), "induction": diagonal})
        assert_measures(entry, {name: np.mean([each[name] for each in scores], axis=0) for name in scores[0]})
