"""Reasons of answers on a small random checkpoint of every family: the parts must sum to the network's output."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lightwell.server.dialects.judgements.pairs import labelled
from lightwell.server.dialects.parts.passes import ExplainedLogit
from lightwell.server.dialects.parts.reasons import explain
from lightwell.server.generation.prompts.prompt import Prompt, packed
from lightwell.server.schemas.judgements.reasons import Explain
from tests.server.dialects.conftest import always_some
from tests.server.dialects.test_looking_at_every_family import PREDICTING, ids
from tests.server.inline_engine import InlineEngine
from tests.server.serving import Site, build_site
from tests.tiny import CLASSIFIERS, ENCODERS, make_classifier, make_variant, theirs

BOUNDS = {torch.float32: 1e-4, torch.float64: 1e-9}
every_dtype = pytest.mark.parametrize(
    "dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.nightly)], ids=str
)


def build(folder: Path, dtype: torch.dtype, make: Callable[..., Path], name: str, **more: Any) -> Site:
    engine = InlineEngine(folder=make(name, folder / "model", **more), dtype=dtype)
    return build_site(folder / "model", engine, config=engine.model_config)


async def reasons(at: Site, asked: ExplainedLogit, **options: Any) -> dict[str, Any]:
    (found,) = await explain(at.model, [asked], Explain.model_validate(options))
    return found


async def check_sums(
    at: Site, asked: ExplainedLogit, bound: float, ways: Sequence[str] = ("word", "head", "layer")
) -> None:
    """Check that the parts sum to the logit for the given ways to split it."""
    found = [await reasons(at, asked, by=by) for by in ways]
    assert max(abs(part["value"]) for part in found[0]["parts"]) > 1e-3
    for each in found:
        assert abs(each["difference"]) < bound, each["by"]
        numbers = [part.get("value", part.get("attention", 0) + part.get("mlp", 0)) for part in each["parts"]]
        assert sum(numbers) + sum(each["rest"].values()) == pytest.approx(each["value"], abs=bound)


def prompt_of(at: Site) -> Prompt:
    config = at.model.config
    encoder = Prompt(packed(ids(config, 17))) if config.kind == "encoder-decoder" else None
    return Prompt(packed(ids(config)), encoder=encoder)


@every_dtype
@pytest.mark.parametrize("name", always_some(PREDICTING))
async def test_the_parts_of_a_words_logit_sum_to_it(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    at = build(tmp_path, dtype, make_variant, name)
    target, versus = random.sample(range(at.model.config.vocab_size), 2)
    prompt = prompt_of(at)
    await check_sums(at, ExplainedLogit(prompt, "words", target, versus), BOUNDS[dtype])
    await check_sums(at, ExplainedLogit(prompt, "words", target, position=7), BOUNDS[dtype], ["word"])


@every_dtype
@pytest.mark.parametrize("name", CLASSIFIERS)
async def test_the_parts_of_a_labels_logit_sum_to_it(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    at = build(tmp_path, dtype, make_classifier, name, num_labels=3)
    prompt = labelled(at.model, prompt_of(at))
    await check_sums(at, ExplainedLogit(prompt, "labels", 2, 0), BOUNDS[dtype])
    await check_sums(at, ExplainedLogit(replace(prompt, second_segment=9), "labels", 1), BOUNDS[dtype], ["word"])


async def test_a_head_may_read_the_mean_of_all_states(tmp_path: Path) -> None:
    at = build(tmp_path, torch.float64, make_classifier, "modernbert", classifier_pooling="mean")
    asked = ExplainedLogit(prompt_of(at), "labels", 1, 0)
    await check_sums(at, asked, 1e-9)
    assert (await reasons(at, asked))["positions"] == tuple(range(20))


# --- taken out


def masked(at: Site, taken: Sequence[int], prompt: Prompt) -> dict[str, torch.Tensor]:
    """Return the arguments of transformers: the attention mask is 0 at removed tokens, and no position changes."""
    length = len(prompt.ids)
    mask = torch.tensor([[int(position not in taken) for position in range(length)]])
    found = {"input_ids": torch.tensor([prompt.ids]), "attention_mask": mask}
    return found | ({"position_ids": torch.arange(length)[None]} if at.model.config.kind == "decoder" else {})


@pytest.mark.parametrize("name", ["llama-gqa", "gemma3", "gpt2", "gpt_oss", "bert", "distilbert", "modernbert"])
async def test_words_are_taken_out_as_by_an_attention_mask(name: str, tmp_path: Path) -> None:
    labels = name in ENCODERS
    at = build(tmp_path, torch.float32, make_classifier if labels else make_variant, name)
    prompt = prompt_of(at)
    target, versus = (1, 0) if labels else (7, 9)
    asked = ExplainedLogit(prompt, "labels" if labels else "words", target, versus)
    found = await reasons(at, asked, by="head" if labels else "word", verify=4)
    network = theirs(tmp_path / "model", torch.float32)
    check_taken_out(found, 4)
    for row in found["verify"]:
        with torch.no_grad():
            logits = network(**masked(at, [word["position"] for word in row["words"]], prompt)).logits[0]
        one = logits if labels else logits[-1]
        assert row["measured"] == pytest.approx(float(one[target] - one[versus]), abs=1e-4)


async def test_words_are_taken_out_of_both_stacks(tmp_path: Path) -> None:
    at = build(tmp_path, torch.float32, make_variant, "bart")
    prompt = prompt_of(at)
    assert prompt.encoder is not None
    found = await reasons(at, ExplainedLogit(prompt, "words", 7, 9), verify=16)
    network = theirs(tmp_path / "model", torch.float32)
    check_taken_out(found, 16)
    for row in found["verify"]:
        masks = {"encoder": torch.ones(1, 17), "decoder": torch.ones(1, 20)}
        for word in row["words"]:
            masks[word["stack"]][0, word["position"]] = 0
        with torch.no_grad():
            logits = network(
                input_ids=torch.tensor([prompt.encoder.ids]),
                decoder_input_ids=torch.tensor([prompt.ids]),
                attention_mask=masks["encoder"],
                decoder_attention_mask=masks["decoder"],
            ).logits[0, -1]
        assert row["measured"] == pytest.approx(float(logits[7] - logits[9]), abs=1e-4)
    assert {word["stack"] for word in found["verify"][-1]["words"]} == {"encoder", "decoder"}


@pytest.mark.parametrize(("name", "make"), [("llama-gqa", make_variant), ("bert", make_classifier)])
async def test_an_embedding_is_set_to_the_mean_of_the_table(
    name: str, make: Callable[..., Path], tmp_path: Path
) -> None:
    at = build(tmp_path, torch.float32, make, name)
    prompt = prompt_of(at)
    found = await reasons(
        at, ExplainedLogit(prompt, "words" if make is make_variant else "labels", 1, 0), verify=2, take_out="embedding"
    )
    network = theirs(tmp_path / "model", torch.float32)
    table = network.get_input_embeddings()
    for row in found["verify"]:
        vectors = table(torch.tensor([prompt.ids])).detach().clone()
        for word in row["words"]:
            vectors[0, word["position"]] = table.weight.mean(0)
        with torch.no_grad():
            logits = network(inputs_embeds=vectors).logits
        one = logits[0, -1] if make is make_variant else logits[0]
        assert row["measured"] == pytest.approx(float(one[1] - one[0]), abs=1e-4)


def check_taken_out(found: dict[str, Any], count: int) -> None:
    """Check that the words with the largest parts are removed, first one by one and then together, and check the
    predicted values.
    """
    alone, together = found["verify"][:-1], found["verify"][-1]
    assert len(alone) == count
    assert together["words"] == [row["words"][0] for row in alone]
    parts = [found["value"] - row["predicted"] for row in alone]
    assert [abs(part) for part in parts] == sorted((abs(part) for part in parts), reverse=True)
    assert together["predicted"] == pytest.approx(found["value"] - sum(parts))
    if found["by"] == "word":
        of_words = {(part.get("stack"), part["position"]): part["value"] for part in found["parts"]}
        assert parts == pytest.approx(
            [of_words[row["words"][0].get("stack"), row["words"][0]["position"]] for row in alone]
        )


@pytest.mark.parametrize("name", ["llama-gqa", "qwen3_5", "bart"])
async def test_several_words_of_one_pass_have_the_reasons_that_each_has_alone(name: str, tmp_path: Path) -> None:
    at = build(tmp_path, torch.float64, make_variant, name)
    prompt = prompt_of(at)
    asked = [ExplainedLogit(prompt, "words", 3 + i, 9, position=position) for i, position in enumerate((8, 2, 19))]
    together = await explain(at.model, asked, Explain.model_validate({}))
    for one, found in zip(asked, together, strict=True):
        alone = await reasons(at, one)
        assert found["value"] == pytest.approx(alone["value"], abs=1e-9)
        assert abs(found["difference"]) < 1e-9
        for mine, other in zip(found["parts"], alone["parts"], strict=True):
            assert mine["value"] == pytest.approx(other["value"], abs=1e-9)
