"""Heads that label a whole input, of every family that has one, give the numbers of transformers, the same bits in any
batch.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.config import ModelConfig
from lightwell.server.engine.messages.request import ClassifyTask, EmbedTask, EngineRequest
from tests import tiny
from tests.server.engine.driving import Load, alone, assert_same, build, everything, load, request, run

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in tiny.CLASSIFIERS},
    "modernbert-mean": ("modernbert", {"classifier_pooling": "mean", "num_labels": 1}),
    "modernbert-biases": ("modernbert-biases", {"id2label": {0: "no", 1: "maybe", 2: "yes"}}),
    "llama-one": ("llama", {"num_labels": 1}),
    "bert-five": ("bert", {"num_labels": 5}),
}
"""Names of tiny.VARIANTS with options of config.json."""
LENGTHS = (5, 40, 17, 80, 33)


def make(name: str, path: Path) -> Path:
    variant, options = VARIANTS[name]
    return tiny.make_classifier(variant, path, **options)


def crowd_of(config: ModelConfig) -> list[EngineRequest]:
    """Return requests with random prompts; if the model has token types, every second request is a pair of texts."""
    prompts = [torch.randint(5, tiny.VOCAB_SIZE, (length,)).tolist() for length in LENGTHS]
    crowd = [request(uid, prompt, ClassifyTask()) for uid, prompt in enumerate(prompts)]
    if config.num_token_types < 2:
        return crowd
    return [paired(each, len(each.prompt_token_ids) // 2) if each.uid % 2 else each for each in crowd]


def paired(whole: EngineRequest, start: int) -> EngineRequest:
    return replace(whole, second_segment=start)


def theirs(network: Any, each: EngineRequest) -> np.ndarray:
    ids = torch.tensor([each.prompt_token_ids])
    given: dict[str, Any] = {"input_ids": ids}
    if each.second_segment is not None:
        given["token_type_ids"] = (torch.arange(ids.shape[1]) >= each.second_segment).long()[None]
    with torch.no_grad():
        logits: np.ndarray = network(**given).logits[0].numpy()
    return logits


@pytest.mark.parametrize(
    ("name", "dtype", "bound"),
    [
        *((name, torch.float32, 2e-5) for name in VARIANTS),
        ("bert", torch.bfloat16, 0.3),
        ("gemma3", torch.bfloat16, 0.3),
        ("llama-one", torch.bfloat16, 0.3),
        ("modernbert-mean", torch.float64, 1e-5),
    ],
)
def test_every_head_gives_the_numbers_of_transformers_in_any_batch(
    name: str, dtype: torch.dtype, bound: float, tmp_path: Path
) -> None:
    folder = make(name, tmp_path)
    model, network = load(folder, dtype, batch_invariant=True), tiny.theirs(folder, torch.float64)
    crowd = crowd_of(model.config)
    found = run(build(model, max_num_batched_tokens=64), crowd, arrivals=[0, 0, 0, 1, 2])
    for each in crowd:
        logits, expected = found[each.uid].array("logits"), theirs(network, each)
        assert logits.dtype == (np.float64 if dtype == torch.float64 else np.float32)
        assert logits.shape == expected.shape
        assert abs(logits - expected).max() <= bound * max(1, abs(expected).max())
    assert_same(found, alone(model, crowd))


def test_a_second_text_changes_the_numbers_and_those_of_no_other_request(tmp_path: Path) -> None:
    model = load(make("bert", tmp_path))
    prompt = torch.randint(5, tiny.VOCAB_SIZE, (30,)).tolist()
    one = request(0, prompt, ClassifyTask())
    found = run(build(model), [one, paired(replace(one, uid=1), 15), paired(replace(one, uid=2), 16)])
    numbers = [found[uid].array("logits") for uid in range(3)]
    assert all(abs(numbers[i] - numbers[i - 1]).max() > 1e-3 for i in range(3))
    assert np.array_equal(run(build(model), [one])[0].array("logits"), numbers[0])


def test_types_of_tokens_reach_whatever_is_asked_of_a_pair(tmp_path: Path) -> None:
    folder = make("bert", tmp_path)
    network = tiny.theirs(folder, torch.float32)
    pair = paired(request(0, range(5, 35), EmbedTask(pooling="mean", normalize=False)), 12)
    trace = replace(pair, uid=1, task=everything(load(folder).config))
    found = run(build(load(folder)), [pair, trace])
    types = (torch.arange(30) >= 12).long()[None]
    with torch.no_grad():
        states = network.bert(input_ids=torch.tensor([pair.prompt_token_ids]), token_type_ids=types)[0][0].numpy()
    last = found[1].array("blocks.1.hook_resid_post")
    assert abs(found[0].array("embedding") - states.mean(0)).max() <= 1e-5
    assert abs(last - states).max() <= 1e-4
    assert len(np.unique(found[1].array("hook_token_type_embed"), axis=0)) == 2


def test_what_a_prompt_begins_with_is_computed_once_for_all_that_follow(tmp_path: Path) -> None:
    model = load(make("qwen3", tmp_path))
    begin = torch.randint(5, tiny.VOCAB_SIZE, (40,)).tolist()
    crowd = [request(uid, [*begin, uid + 5, 9], ClassifyTask()) for uid in range(4)]
    engine = build(model)
    found = run(engine, crowd[:1]) | run(engine, crowd[1:])
    assert engine.stats().prefix_cache_hits_total >= 3 * 40
    assert_same(found, alone(model, crowd))


def test_a_network_without_such_a_head_refuses(model_of: Load) -> None:
    with pytest.raises(ValueError, match="BertForMaskedLM has no classification head"):
        run(build(model_of("bert")), [request(0, [5, 6], ClassifyTask())])


def test_a_decoder_reads_the_last_token_that_is_no_padding(tmp_path: Path) -> None:
    folder = tiny.make_classifier("llama", tmp_path, pad_token_id=1)
    model, network = load(folder), tiny.theirs(folder, torch.float32)
    whole = request(0, [7, 1, 9, 30, 1, 1], ClassifyTask())
    read = model.config.labelled_ids(whole.prompt_token_ids)
    found = run(build(model), [replace(whole, prompt_token_ids=tuple(read))])
    assert abs(found[0].array("logits") - theirs(network, whole)).max() <= 1e-5
    assert model.config.labelled_ids([1, 1]) == [1]


def test_a_head_that_the_files_lack_is_none(tmp_path: Path) -> None:
    folder = make("bert", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if not k.startswith("classifier")}, folder / "model.safetensors")
    assert read_config(folder).classifier is None
    assert load(folder).classifier is None


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"id2label": {"0": "no", "2": "yes"}}, "id2label"),
        ({"id2label": None, "num_labels": -1}, "num_labels"),
        ({"problem_type": "ranking"}, "problem_type"),
        ({"classifier_pooling": "max"}, "classifier_pooling"),
    ],
)
def test_heads_that_make_no_sense_are_refused_by_name(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    folder = make("modernbert", tmp_path)
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**written, **changes}), encoding="utf-8")
    with pytest.raises(ModelLoadError, match=named):
        read_config(folder)
