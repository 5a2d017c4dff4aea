"""Drafts of next tokens: an answer has the same bits with and without them, with every feature of a request."""

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.network.transformer import Transformer
from lightwell.model.sampling.grammar.constraint import grammar_text
from lightwell.server.engine.config import AdapterFolder
from lightwell.server.engine.messages.request import AttentionCapture, EngineRequest, Intervention
from lightwell.server.engine.repetitions import Repetitions
from lightwell.server.engine.scheduling.speculation import Speculation
from tests import tiny
from tests.server.engine.driving import Answer, Load, build, generate, load, predicted, request, run
from tests.server.engine.toy_runner import sequence
from tests.tiny.adapters import make_adapter

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft asks
ROWS = AttentionCapture(pairs=((0, 1), (1, 0)))
CHANGE = Intervention(stack="decoder", layer=0, point="hook_resid_post", op="scale", value=1.5)
LOGITS = Intervention(stack="decoder", layer=None, point="logits", op="scale", value=0.5)
SCHEMA = {"type": "array", "items": {"enum": ["a long name", "another", "a third one"]}, "minItems": 9, "maxItems": 12}
FEATURES: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "filters": {"top_p": 0.9, "top_k": 40, "min_p": 0.01},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    "bias": {"logit_bias": {7: 4.0, 9: -100.0}, "min_tokens": 30},
    "logprobs": {"logprobs": 4},
    "prompt_logprobs": {"prompt_logprobs": 2, "logprobs": 0},
    "stop": {"stop_token_ids": tuple(range(3, 11))},
    "rows": {"attention": ROWS, "attention_prompt": True},
    "regex": {"grammar": grammar_text("regex", "[a-z]{40,60}")},
    "json": {"grammar": grammar_text("json", SCHEMA), "max_tokens": 90},
    "grammar_logprobs": {"grammar": grammar_text("json", SCHEMA), "logprobs": 2},
    "adapter": {"adapter": 1},
    "changed": {"interventions": (CHANGE,)},
    "changed_logits": {"interventions": (LOGITS,)},
}
TEMPERATURES = (0.0, 0.7, 1.2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_variant("llama-gqa", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Transformer:
    return load(folder)


@pytest.fixture(scope="module")
def draft(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that agrees with the other one on most tokens."""
    path = tmp_path_factory.mktemp("draft") / "model"
    shutil.copytree(folder, path)
    weights = load_file(path / "model.safetensors")
    scale = weights["model.norm.weight"]
    weights["model.norm.weight"] = scale * (
        1 + 0.35 * torch.randn(scale.shape, generator=torch.Generator().manual_seed(1))
    )
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    return path


@pytest.fixture(scope="module")
def adapters(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[AdapterFolder, ...]:
    path = tmp_path_factory.mktemp("adapter")
    make_adapter(folder, path, 1)
    return (AdapterFolder(1, path),)


def asked(uid: int, feature: str, temperature: float) -> EngineRequest:
    options = dict(FEATURES[feature])
    outside = {name: options.pop(name) for name in ("adapter", "interventions") if name in options}
    prompt = [0, *(3 + (uid // 3 * 7 + i * i) % (tiny.VOCAB_SIZE - 3) for i in range(24))]
    task = generate(options.pop("max_tokens", 48), seed=uid, temperature=temperature, **options)
    return replace(request(uid, prompt, task), **outside)


def check_features(drafted: Mapping[str, Sequence[Answer]]) -> None:
    """Check that in at least half of a feature's answers a draft was accepted, and in half one was rejected."""
    for feature, own in drafted.items():
        assert sum(answer.num_accepted > 0 for answer in own) >= len(own) / 2, feature
        assert sum(answer.num_rejected > 0 for answer in own) >= len(own) / 2, feature


@pytest.mark.parametrize("rounds", [1, pytest.param(120, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("source", ["ngram", "draft"])
def test_answers_have_the_same_bits_with_drafts(
    model: Transformer, folder: Path, draft: Path, adapters: tuple[AdapterFolder, ...], rounds: int, source: Any
) -> None:
    num_preemptions = num_hits = 0
    drafted: dict[str, list[Answer]] = {feature: [] for feature in FEATURES}
    for part in range(rounds):
        kinds = [(feature, temperature) for feature in FEATURES for temperature in TEMPERATURES]
        requests = [asked(100 * part + i, *kind) for i, kind in enumerate(kinds)]
        expected = run(build(model, folder=folder, adapters=adapters), requests)
        requests = [predicted(each, expected[each.uid]) for each in requests]
        engine = build(
            model,
            folder=folder,
            adapters=adapters,
            speculation=source,
            draft_model=draft,
            num_blocks=random.choice([30, 60, 200]) if part else 40,
            max_num_seqs=random.randint(1, 16) if part else 16,
        )
        answers = run(engine, requests, arrivals=[random.randrange(60) for _ in requests])
        assert answers == expected
        for each, (feature, _) in zip(requests, kinds, strict=True):
            drafted[feature].append(answers[each.uid])
        stats = engine.stats()
        assert stats.drafts_accepted_total >= sum(answer.num_accepted for answer in answers.values())
        num_preemptions += stats.num_preemptions_total
        again = run(engine, requests)  # now prefixes are cached, also of generated tokens
        assert again == expected
        num_hits += engine.stats().prefix_cache_hits_total
    check_features(drafted)
    assert num_preemptions > 0
    assert num_hits > 0


def test_a_request_may_refuse_drafts(model: Transformer) -> None:
    task = generate(60, ignore_eos=True)
    engine = build(model, speculation="ngram")
    with_drafts = run(engine, [request(1, [5, 6, 7] * 5, task)])
    assert engine.stats().drafts_accepted_total > 0
    without = build(model, speculation="ngram")
    plain = replace(task, sampling=replace(task.sampling, speculation=False))
    assert run(without, [request(1, [5, 6, 7] * 5, plain)]) == with_drafts
    assert without.stats().drafts_accepted_total + without.stats().drafts_rejected_total == 0


def test_drafts_are_off_where_they_would_change_bits(model_of: Load, folder: Path) -> None:
    recurrent, torch_kernels = model_of("lfm2"), load(folder, kernels=KernelConfig("torch"))
    for network, problem in ((recurrent, "recurrent layers"), (torch_kernels, "--batch-invariant")):
        assert build(network, speculation="auto").info.speculation == "off"
        with pytest.raises(ModelLoadError, match=f"--speculation ngram: .*{problem}"):
            build(network, speculation="ngram")


def test_a_text_that_repeats_itself_is_predicted() -> None:
    text = list(range(100, 120))
    found = Repetitions([*text, 1, 2, *text[5:8]])
    assert found.predict(3) == text[8:11]
    found.take([*text, 1, 2, *text[5:8], 108, 7])
    assert found.predict(3) == []
    assert Repetitions([3, 4, 3, 4, 3]).predict(5) == [4, 3, 4, 3, 4]
    found = Repetitions(text, prediction=[7, 8, 9])
    assert found.predict(2) == [7, 8]
    found.take([*text, 7])
    assert found.predict(2) == [8, 9]


def test_the_number_of_drafts_follows_accuracy_and_cost() -> None:
    text = list(range(100, 140))

    def count(num_right: int, row_seconds: float | None, num_texts: int = 1) -> int:
        seq = sequence(1, [*text, 1, 2, 3], generate(90))
        speculation = Speculation("auto")
        if row_seconds is not None:
            speculation.note(0.01 * num_texts + 4 * row_seconds, num_texts, 4, 0.01 * num_texts)
        for token in text[:num_right]:
            speculation.drafts(seq, 50, num_texts)
            seq.token_ids.append(token)
        return len(speculation.drafts(seq, 50, num_texts))

    assert count(2, 0.0005) == 0
    assert count(30, 0.0005) > 8
    assert 0 < count(7, 0.004) < count(7, 0.0005)
    assert count(30, 0.009) == 0


def test_a_draft_model_must_fit(model: Transformer, folder: Path, tmp_path: Path) -> None:
    other = tiny.make_variant("llama-gqa", tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelLoadError, match="vocabulary is not the model's"):
        build(model, folder=folder, speculation="draft", draft_model=other)
    recurrent = tiny.make_variant("lfm2", tmp_path / "lfm2")
    with pytest.raises(ModelLoadError, match="recurrent layers"):
        build(model, folder=folder, speculation="draft", draft_model=recurrent)
