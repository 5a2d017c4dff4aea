"""Checkpoints that read more than text: their text model computes the same as transformers' larger model for text."""

import json
import random
from pathlib import Path

import pytest
import torch
import transformers

from model.checkpoint.folder import ModelLoadError
from model.checkpoint.registry import read_config
from model.checkpoint.weight_files import load_weights
from model.loading.loader import load_model
from tests import tiny
from tests.network import CPU, logits_alone

PICTURES = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "out_hidden_size": 48,
    "num_position_embeddings": 16, "patch_size": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a tiny Qwen3.5 that reads pictures too, around the text model of the other tests."""
    text = tiny.make_variant("qwen3_5", tmp_path_factory.mktemp("text"))
    config = transformers.AutoConfig.from_pretrained(text)
    whole = transformers.Qwen3_5ForConditionalGeneration(
        transformers.Qwen3_5Config(text_config=config.to_dict(), vision_config=PICTURES, tie_word_embeddings=False)
    )
    own = transformers.Qwen3_5ForCausalLM.from_pretrained(text)
    whole.model.language_model.load_state_dict(own.model.state_dict())
    whole.lm_head.load_state_dict(own.lm_head.state_dict())
    path = tmp_path_factory.mktemp("whole")
    whole.save_pretrained(path)
    return path


def test_the_text_model_of_one_that_reads_pictures_is_served(folder: Path) -> None:
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert written["architectures"] == ["Qwen3_5ForConditionalGeneration"]
    config = read_config(folder)
    assert (config.num_layers, config.tie_word_embeddings) == (5, False)
    ids = [random.randrange(5, tiny.VOCAB_SIZE) for _ in range(40)]
    with torch.no_grad():
        expected = tiny.theirs(folder, torch.float32)(torch.tensor([ids])).logits[0]
    found = logits_alone(load_model(folder, config, torch.float32, CPU), ids, chunk=9)
    assert (found - expected).abs().max() <= 1e-4


def test_its_other_parts_are_left_out_and_none_of_its_own(folder: Path, tmp_path: Path) -> None:
    loaded = load_weights(folder, read_config(folder), torch.float32)
    text = tiny.make_variant("qwen3_5", tmp_path)
    expected = load_weights(text, read_config(text), torch.float32)
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_the_larger_one_says_whether_its_head_is_tied(folder: Path, tmp_path: Path) -> None:
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for outer, inner in ((True, False), (False, True)):
        written["tie_word_embeddings"], written["text_config"]["tie_word_embeddings"] = outer, inner
        (tmp_path / "config.json").write_text(json.dumps(written), encoding="utf-8")
        assert read_config(tmp_path).tie_word_embeddings is outer


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer_types": ["linear_attention"] * 5}, "at least one layer with full_attention is expected"),
        (
            {"layer_types": ["full_attention"]},
            r"a list of 5, each one of linear_attention, full_attention, is expected",
        ),
        ({"linear_num_key_heads": 3}, r"a divisor of linear_num_value_heads \(4\) is expected"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; only 'silu'"),
    ],
)
def test_options_of_its_text_model_that_are_not_built_are_refused(
    folder: Path, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    written["text_config"] |= change
    (tmp_path / "config.json").write_text(json.dumps(written), encoding="utf-8")
    with pytest.raises(ModelLoadError, match=message):
        read_config(tmp_path)
