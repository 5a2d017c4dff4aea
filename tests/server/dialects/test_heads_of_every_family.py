"""Head scores of every family: scores of the patterns, and induction on repeated random tokens."""

import random
from typing import Any

import numpy as np

from server.engine.request import Part
from tests.parity import ROWS
from tests.server.dialects.conftest import every_family
from tests.server.dialects.routes import refuses
from tests.server.dialects.test_looking_at_every_family import array, ask, parts, reading
from tests.server.serving import Site


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
    config = family.context.config
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
    config, half = family.context.config, 5
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
