"""Reasons of answers on a small random checkpoint of every family: the parts must sum to what the network gave."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from server.routes.parts.passes import ExplainedLogit
from server.routes.parts.reasons import explain
from server.routes.prompts import Prompt
from server.schemas.judgements.reasons import Explain
from tests.server.inline_engine import InlineEngine
from tests.server.routes.test_looking_at_every_family import PREDICTING, ids
from tests.server.serving import Site, build_site
from tests.tiny import CLASSIFIERS, make_classifier, make_variant

BOUNDS = {torch.float32: 1e-4, torch.float64: 1e-9}
every_dtype = pytest.mark.parametrize("dtype", BOUNDS, ids=str)


def build(folder: Path, dtype: torch.dtype, make: Callable[..., Path], name: str, **more: Any) -> Site:
    engine = InlineEngine(folder=make(name, folder / "model", **more), dtype=dtype)
    return build_site(folder, engine, config=engine.model_config)


async def reasons(at: Site, asked: ExplainedLogit, **options: Any) -> dict[str, Any]:
    (found,) = await explain(at.context, [asked], Explain(**options), time.monotonic())
    return found


async def check_sums(at: Site, asked: ExplainedLogit, bound: float) -> None:
    """Check that the parts sum to the logit, however it is split."""
    found = [await reasons(at, asked, by=by) for by in ("word", "head", "layer")]
    assert abs(found[0]["value"]) > 1e-3
    for each in found:
        assert abs(each["difference"]) < bound, each["by"]
        numbers = [part.get("value", part.get("attention", 0) + part.get("mlp", 0)) for part in each["parts"]]
        assert sum(numbers) + sum(each["rest"].values()) == pytest.approx(each["value"], abs=bound)


def prompt_of(at: Site) -> Prompt:
    config = at.context.config
    encoder = Prompt(tuple(ids(config, 17))) if config.kind == "encoder-decoder" else None
    return Prompt(tuple(ids(config)), encoder=encoder)


@every_dtype
@pytest.mark.parametrize("name", PREDICTING)
async def test_the_parts_of_a_words_logit_sum_to_it(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    at = build(tmp_path, dtype, make_variant, name)
    target, versus = random.sample(range(at.context.config.vocab_size), 2)
    prompt = prompt_of(at)
    await check_sums(at, ExplainedLogit(prompt, "words", target, versus), BOUNDS[dtype])
    await check_sums(at, ExplainedLogit(prompt, "words", target, position=7), BOUNDS[dtype])


@every_dtype
@pytest.mark.parametrize("name", CLASSIFIERS)
async def test_the_parts_of_a_labels_logit_sum_to_it(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    at = build(tmp_path, dtype, make_classifier, name, num_labels=3)
    prompt = prompt_of(at)
    await check_sums(at, ExplainedLogit(prompt, "labels", 2, 0), BOUNDS[dtype])
    await check_sums(at, ExplainedLogit(prompt, "labels", 1), BOUNDS[dtype])
