"""The looks over HTTP into a small random checkpoint of every family: what belongs together must add up.

The numbers of a pass are proved elsewhere; here is proved that each route's arithmetic is right for every shape of
network: grouped heads, caps, biases by distance, windows, norms before and behind, parallel blocks, cross attention.
"""

import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from model.checkpoint import load_weights
from model.config import ModelConfig
from server.engine.request import Part
from tests import reference
from tests.reference.contributions import Contributions
from tests.reference.stack import Weights
from tests.server.inline_engine import InlineEngine
from tests.server.serving import Site, site
from tests.tiny import make_variant

DECODERS = ("llama-gqa", "mistral", "qwen3", "gemma2", "gemma3", "olmo2", "gpt2", "gpt_neox", "opt", "opt-post")
ENCODERS = ("bert", "mpnet", "modernbert")
GENERATING = (*DECODERS, "t5", "bart")
EVERY = (*GENERATING, *ENCODERS)
"""One for each thing that these routes' arithmetic must mind."""
LENGTH = 14
"""Longer than the windows."""


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, InlineEngine]:
    """Each family's engine, made when it is first asked for."""

    class Made(dict[str, InlineEngine]):
        def __missing__(self, name: str) -> InlineEngine:
            self[name] = InlineEngine(folder=make_variant(name, tmp_path_factory.mktemp(name)))
            return self[name]

    return Made()


@pytest.fixture
async def at(request: pytest.FixtureRequest, engines: dict[str, InlineEngine], tmp_path: Path) -> AsyncIterator[Site]:
    engine = engines[request.param]
    async with site(tmp_path, engine, config=engine.model_config) as built:
        yield built


def every(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("at", names, indirect=True)


def ids(config: ModelConfig, length: int = LENGTH) -> list[int]:
    return [random.randrange(config.vocab_size) for _ in range(length)]


def reading(config: ModelConfig) -> dict[str, Any]:
    """The input fields of a request: what the encoder reads is shorter than what the decoder does."""
    if config.kind == "encoder-decoder":
        return {"input": ids(config, LENGTH - 3), "decoder_input": ids(config)}
    return {"input": ids(config)}


def parts(config: ModelConfig) -> tuple[Part, ...]:
    return ("encoder", "decoder", "cross") if config.kind == "encoder-decoder" else (config.kind,)


def exactly(at: Site, body: dict[str, Any]) -> tuple[reference.Trace, Weights]:
    """The pass over these inputs as the formulas have it, in float64; and the network's weights."""
    assert isinstance(at.engine, InlineEngine)
    config = at.context.config
    weights = load_weights(at.engine.folder, config, torch.float64)
    if config.kind == "encoder-decoder":
        return reference.run(config, weights, body["decoder_input"], body["input"]), weights
    return reference.run(config, weights, body["input"]), weights


async def ask(at: Site, route: str, **body: Any) -> dict[str, Any]:
    answer = await at.post(f"/v1/{route}", body)
    assert answer.status_code == 200, answer.text
    (entry,) = answer.json()["data"]
    return dict(entry)


def array(entry: dict[str, Any], name: str) -> Any:
    return np.array(entry["arrays"][name]["data"], float)


@every(*EVERY)
async def test_the_steps_of_a_head_are_the_networks(at: Site) -> None:
    config = at.context.config
    body = reading(config)
    for part in parts(config):
        heads = (config.encoder or config).num_heads if part == "encoder" else config.num_heads
        layer, head = random.choice([0, -1]), random.randrange(heads)
        query = random.randrange(LENGTH - 3)
        entry = await ask(at, "explain", **body, part=part, layer=layer, head=head, query_position=query)
        assert max(entry["differences"].values()) < 2e-4, (part, entry["differences"])
        assert entry["differences"]["pattern"] < 1e-5
        assert np.allclose(array(entry, "weighted_v").sum(0), array(entry, "z"), atol=1e-5)


@every("llama-gqa", "t5", "mpnet")
async def test_an_intervention_shows_in_the_one_step_that_it_changes(at: Site) -> None:
    body = {**reading(at.context.config), "layer": 0, "head": 1}
    softened = {"point": "attn.hook_attn_scores", "layer": 0, "op": "temperature", "value": 0.5}
    silenced = {"point": "attn.hook_z", "layer": 0, "head": 1, "op": "zero"}
    for change, step in ((softened, "scores"), (silenced, "z")):
        differences = (await ask(at, "explain", **body, interventions=[change]))["differences"]
        assert {name for name, far in differences.items() if far > 1e-4} == {step}


@every("llama-gqa", "mistral", "t5", "mpnet")
async def test_temperature_zero_empties_keys_and_masks_none(at: Site) -> None:
    """All but one score is minus infinity then, as if those keys were masked; what leads to the scores is not."""
    cold = {"point": "attn.hook_attn_scores", "layer": 0, "op": "temperature", "value": 0}
    body = {**reading(at.context.config), "layer": 0, "head": 1, "query_position": 8}
    plain, changed = await ask(at, "explain", **body), await ask(at, "explain", **body, interventions=[cold])
    for name in plain["arrays"].keys() & {"dots", "scaled", "position_bias"}:
        assert np.allclose(array(changed, name), array(plain, name), atol=1e-5)
    largest = int(array(plain, "weights").argmax())
    assert array(changed, "weights").tolist() == [float(key == largest) for key in changed["key_positions"]]
    assert changed["differences"].pop("scores") is None
    assert max(changed["differences"].values()) < 2e-4


@every(*GENERATING)
async def test_the_parts_of_a_logit_sum_to_it(at: Site) -> None:
    config = at.context.config
    body = {**reading(config), "target": random.randrange(config.vocab_size)}
    versus = random.randrange(config.vocab_size)
    for part in parts(config):
        if part == "encoder":
            continue
        entry = await ask(at, "contributions", **body, part=part, versus=versus, query_positions=[5, -1])
        assert entry["difference"] < 2e-4
        components = dict(zip(entry["component_names"], array(entry, "components").T, strict=True))
        assert np.allclose(sum(components.values()), entry["logits"], atol=1e-4)
        stack = "decoder." if config.kind == "encoder-decoder" else ""
        module = "cross_attn" if part == "cross" else "attn"
        by_head = array(entry, "attributions").sum(-1)
        for layer, head in np.ndindex(by_head.shape[:2]):
            assert np.allclose(
                by_head[layer, head], components[f"{stack}blocks.{layer}.{module}.head.{head}"], atol=1e-4
            )


@every(*EVERY)
async def test_what_each_key_adds_is_what_the_formulas_say(at: Site) -> None:
    """Every query, key and head of every layer: the length of pattern * v W_O, and its product with the logit."""
    config = at.context.config
    body = reading(config)
    trace, weights = exactly(at, body)
    for part in parts(config):
        tokens = random.sample(range(config.vocab_size), 2) if config.has_head and part != "encoder" else []
        asked = dict(zip(("target", "versus"), tokens, strict=False))
        entry = await ask(at, "contributions", **body, part=part, query_positions="all", **asked)
        expected = Contributions(trace, weights, part)
        for layer in entry["layers"]:
            norms = expected.vectors(layer).norm(dim=-1).numpy()
            assert norms.max() > 0.01
            assert np.allclose(array(entry, "norms")[layer], norms, rtol=1e-3, atol=1e-4), (part, layer)
            if tokens:
                target, versus = (expected.logits(layer, token).numpy() for token in tokens)
                assert np.allclose(array(entry, "attributions")[layer], target - versus, rtol=1e-3, atol=1e-4)


@every(*GENERATING)
async def test_the_last_layer_of_the_lens_says_what_the_model_says_next(at: Site) -> None:
    config = at.context.config
    body = reading(config)
    lens = await ask(at, "lens", **body, top_k=6, positions=[3, -1])
    assert lens["layers"] == list(range(config.num_layers + 1))
    for column, position in enumerate((3, -1)):
        said = await ask(at, "next", **body, position=position, num_tokens=6)
        tokens = said["temperatures"][0]["tokens"]
        assert array(lens, "ids")[-1, column].tolist() == [token["token_id"] for token in tokens]
        expected = [token["probability"] for token in tokens]
        assert array(lens, "probabilities")[-1, column].tolist() == pytest.approx(expected, rel=1e-3, abs=1e-7)
        assert array(lens, "entropy")[-1, column] == pytest.approx(
            said["temperatures"][0]["entropy"], rel=1e-3, abs=1e-6
        )


@every(*ENCODERS)
async def test_an_encoder_says_why_it_predicts_nothing(at: Site) -> None:
    body = reading(at.context.config)
    for route in ("next", "lens"):
        assert "encoder" in (await at.error(f"/v1/{route}", body, 400))["message"]
    assert (await at.error("/v1/contributions", {**body, "target": 5}, 400))["param"] == "target"


@every(*EVERY)
async def test_scores_of_heads_are_those_of_their_patterns(at: Site) -> None:
    config = at.context.config
    body = reading(config)
    for part in parts(config):
        if part == "cross":
            continue
        entry = await ask(at, "heads", **body, part=part)
        shown = await at.post("/v1/attention", {**body, "part": part})
        patterns = np.array(shown.json()["data"][0]["attention"])
        scores = dict(zip(entry["measures"], np.moveaxis(array(entry, "scores"), -1, 0), strict=True))
        n = patterns.shape[-1]
        distance = np.abs(np.arange(n)[:, None] - np.arange(n))
        assert np.allclose(scores["self"], np.diagonal(patterns, 0, 2, 3).mean(-1), atol=1e-5)
        assert np.allclose(scores["previous_token"], np.diagonal(patterns, -1, 2, 3).mean(-1), atol=1e-5)
        assert np.allclose(scores["mean_distance"], (patterns * distance).sum(-1).mean(-1), atol=1e-4)
        safe = np.where(patterns > 0, patterns, 1)
        assert np.allclose(scores["entropy"], -(patterns * np.log(safe)).sum(-1).mean(-1), atol=1e-4)
        rolled = await ask(at, "rollout", **body, part=part)
        mixed = np.eye(n)
        for pattern in patterns.mean(1):
            mixed = (pattern + np.eye(n)) / 2 @ mixed
        assert np.allclose(array(rolled, "rollout")[0], mixed, atol=1e-5)


@every(*EVERY)
async def test_a_trajectory_ends_where_the_last_block_does(at: Site) -> None:
    config = at.context.config
    body = reading(config)
    for part in parts(config):
        if part == "cross":
            continue
        entry = await ask(at, "trajectory", **body, part=part, positions=[2, -1], compare_positions=[2])
        name = f"{part}.hook_resid_post" if config.kind == "encoder-decoder" else "hook_resid_post"
        traced = await at.post("/v1/trace", {**body, "points": [name], "positions": [2, -1], "layers": -1})
        (point,) = traced.json()["data"][0]["points"].values()
        assert np.allclose(array(entry, "norms")[:, -1], np.linalg.norm(point["data"], axis=-1), rtol=1e-4)
        assert np.allclose(array(entry, "cosine_to_others")[0, :, 0], 1, atol=1e-5)


@every(*EVERY)
async def test_random_tokens_show_induction_in_any_model(at: Site) -> None:
    for part in parts(at.context.config):
        if part == "cross":
            continue
        entry = await ask(at, "heads", part=part, repeat_length=5, num_sequences=2, seed=random.randrange(2**31))
        assert np.isfinite(array(entry, "scores")).all()
        assert (entry["repeat_length"], entry["num_sequences"]) == (5, 2)


OVERFLOW = {"point": "blocks.0.hook_resid_post", "positions": 3, "op": "scale", "value": 3e38}
"""The stream of one position is infinite from then on, and what is made of it is no number."""


@every("llama-gqa")
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
    at: Site, route: str, fields: dict[str, Any], says: str
) -> None:
    """NaN was ranked first by the lens, called constant by the geometry, and let nothing flow."""
    body = {"input": ids(at.context.config, 6), **fields}
    error = await at.error(f"/v1/{route}", {**body, "interventions": [OVERFLOW]}, 400)
    assert (error["param"], error["code"]) == ("interventions", "not_finite")
    assert says in error["message"]
    assert (await at.post(f"/v1/{route}", body)).status_code == 200


@every("llama-gqa")
@pytest.mark.parametrize(
    ("route", "fields"),
    [
        ("trajectory", {"positions": "all", "compare_positions": "all"}),
        ("heads", {}),
        ("explain", {"layer": 1, "head": 0}),
        ("contributions", {"target": 5, "query_positions": "all"}),
    ],
)
async def test_numbers_that_overflowed_are_null(at: Site, route: str, fields: dict[str, Any]) -> None:
    body = {"input": ids(at.context.config, 6), **fields, "interventions": [OVERFLOW]}
    answer = await at.post(f"/v1/{route}", body)
    assert answer.status_code == 200
    told = json.loads(answer.content, parse_constant=pytest.fail)["data"][0]  # NaN is no JSON
    assert any("null" in json.dumps(each["data"]) for each in told["arrays"].values())
