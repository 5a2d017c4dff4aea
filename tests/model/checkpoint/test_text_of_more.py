"""Checkpoints that read more than text: their text model computes the same as transformers' larger model for text."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.weight_files import load_weights
from lightwell.model.loading.loader import load_model
from tests import tiny
from tests.model.checkpoint.test_families import read
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


GEMMAS = [
    ("gemma3", "Gemma3", "language_model.model."),
    *(
        (name, name[:6].title(), "model.language_model.")
        for name in ("gemma3", "gemma4", "gemma4-e2b", "gemma4-experts")
    ),
    ("gemma3n", "Gemma3n", "model.language_model."),
]


@pytest.mark.every_family
@pytest.mark.parametrize(("name", "stem", "prefix"), GEMMAS)
def test_the_text_part_of_a_gemma_with_images_is_the_gemma(name: str, stem: str, prefix: str, tmp_path: Path) -> None:
    text = tiny.make_variant(name, tmp_path / "text")
    outer = {
        "architectures": [f"{stem}ForConditionalGeneration"],
        "text_config": json.loads((text / "config.json").read_text(encoding="utf-8")),
        "eos_token_id": [1, 2],
    }
    whole, alone = read(tmp_path, outer), read_config(text)
    assert whole.eos_token_ids == (1, 2)
    outside = ("architecture", "eos_token_ids", "bos_token_id", "pad_token_id")
    assert replace(whole, **{name: getattr(alone, name) for name in outside}) == alone
    tensors = load_file(text / "model.safetensors")
    renamed = {key.replace("model.", prefix, 1): tensor for key, tensor in tensors.items()}
    strangers = [f"{prefix.partition('language_model.')[0]}vision_tower.x.weight"]
    if stem == "Gemma4":
        layer = f"model.language_model.layers.{alone.num_layers - 1}"
        strangers += ["model.embed_audio.x.weight", f"{layer}.self_attn.v_proj.weight"]
    save_file({**renamed, **{key: torch.ones(1) for key in strangers}}, tmp_path / "model.safetensors")
    expected, found = load_weights(text, alone, torch.float32), load_weights(tmp_path, whole, torch.float32)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in expected.items())
