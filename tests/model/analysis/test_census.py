"""Censuses of published networks, and of every table of weights we have."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lightwell.model.analysis.census import Census, take_census
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.weight_files import load_weights
from tests import tiny

GPT2_SIZES = {
    "small": (768, 12, 12, 124_439_808),
    "medium": (1024, 24, 16, 354_823_168),
    "large": (1280, 36, 20, 774_030_080),
    "xl": (1600, 48, 25, 1_557_611_200),
}
"""Width, layers, heads, and the total of the released checkpoint (each parameter once): `params` in KerasHub's
keras_hub/src/models/gpt2/gpt2_presets.py (github.com/keras-team/keras-hub).
"""


def census_of(folder: Path, **config: Any) -> Census:
    (folder / "config.json").write_text(json.dumps(config))
    return take_census(read_config(folder))


def gpt2(folder: Path, width: int, layers: int, heads: int, **more: Any) -> Census:
    shape = {"n_embd": width, "n_layer": layers, "n_head": heads, **more}
    return census_of(folder, architectures=["GPT2LMHeadModel"], model_type="gpt2", vocab_size=50257, **shape)


def parameters(census: Census, component: str) -> int:
    return sum(row.parameters for row in census.component(component))


@pytest.mark.parametrize("size", GPT2_SIZES)
def test_gpt2_has_as_many_parameters_as_its_checkpoint(size: str, tmp_path: Path) -> None:
    width, layers, heads, expected = GPT2_SIZES[size]
    census = gpt2(tmp_path, width, layers, heads)
    assert census.total == expected
    assert census.tied


def test_gpt3_adds_up_to_what_3blue1brown_counts_and_to_what_is_really_there(tmp_path: Path) -> None:
    # Shape: Brown et al. 2020, arXiv:2005.14165, table 2.1. The rows, and 27,938 matrices in all: 3Blue1Brown, "How
    # large language models work", chapter 5 to 7; no biases, norms and positions, the unembedding apart.
    census = gpt2(tmp_path, 12288, 96, 96, n_positions=2048)
    expected = {
        "embedding": 617_558_016, "query": 14_495_514_624, "key": 14_495_514_624, "value": 14_495_514_624,
        "output": 14_495_514_624, "up": 57_982_058_496, "down": 57_982_058_496, "unembedding": 617_558_016,
    }  # fmt: skip
    assert {name: parameters(census, name) for name in expected} == expected
    assert census.matrices_untied == sum(expected.values()) == 175_181_291_520
    assert census.num_matrices == 27_938
    assert parameters(census, "positions") == 25_165_824
    assert census.total == 174_604_259_328
    (query,) = census.component("query")
    assert (query.shape, query.count) == ((128, 12288), 96 * 96)


def test_an_untied_grouped_gated_network_by_hand(tmp_path: Path) -> None:
    census = census_of(
        tmp_path, architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=100, hidden_size=16,
        intermediate_size=24, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        max_position_embeddings=32, rms_norm_eps=1e-5, tie_word_embeddings=False, hidden_act="silu",
    )  # fmt: skip
    expected = {
        "embedding": 1600, "query": 3 * 4 * 8 * 16, "key": 3 * 2 * 8 * 16, "value": 3 * 2 * 8 * 16,
        "output": 3 * 16 * 32, "gate": 3 * 24 * 16, "up": 3 * 24 * 16, "down": 3 * 16 * 24, "unembedding": 1600,
        "norms": 7 * 16, "biases": 0, "positions": 0,
    }  # fmt: skip
    assert {name: parameters(census, name) for name in expected} == expected
    assert census.total == sum(expected.values())
    assert census.matrices_untied == census.total - 7 * 16
    assert not census.tied


@pytest.mark.parametrize("writer", ["transformers 4", "transformers 5"])
@pytest.mark.parametrize(("tied", "has_own_head"), [(True, False), (False, False), (False, True)])
def test_a_t5_has_its_head_once_or_twice_as_its_files_do(
    writer: str, tied: bool, has_own_head: bool, tmp_path: Path
) -> None:
    """Check configs of transformers 5 too. They set tied weights for every T5, and transformers 5 saves the head of
    a model with untied weights.
    """
    folder = tiny.make("t5", tmp_path, tie_word_embeddings=tied)
    weights = load_file(folder / "model.safetensors")
    if has_own_head:
        weights["lm_head.weight"] = torch.randn_like(weights["shared.weight"])
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if writer == "transformers 4":
        written = json.loads((folder / "config.json").read_text())
        del written["scale_decoder_outputs"]
        (folder / "config.json").write_text(json.dumps({**written, "tie_word_embeddings": tied}))
    theirs = tiny.theirs(folder, torch.float32)
    config = read_config(folder)
    assert take_census(config).total == sum(parameter.numel() for parameter in set(theirs.parameters()))
    assert take_census(config).tied is not has_own_head
    assert {row.stack for row in take_census(config).rows} == {"shared", "encoder", "decoder"}
    loaded = load_weights(folder, config, torch.float32)
    head = loaded["head.weight"] if has_own_head else loaded["embed.weight"]
    assert torch.equal(head, theirs.lm_head.weight)
    assert config.logit_scale == (config.hidden_size**-0.5 if tied else 1.0)


def test_a_t5_without_files_is_counted_as_its_config_says(tmp_path: Path) -> None:
    for name, tied in (("tied", True), ("own", False)):
        folder = tiny.make("t5", tmp_path / name, tie_word_embeddings=False)
        (folder / "model.safetensors").unlink()
        written = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**written, "tie_word_embeddings": tied}))
        assert take_census(read_config(folder)).tied is tied


@pytest.mark.parametrize("name", tiny.VARIANTS)
def test_every_family_has_as_many_parameters_as_transformers_says(name: str, tmp_path: Path) -> None:
    folder = tiny.make_variant(name, tmp_path)
    theirs = tiny.theirs(folder, torch.float32)
    left_out = ["pooler."]  # the pooler reads the hidden states; none of the requested points depends on it
    left_out += ["embed_positions."] if name == "marian" else []  # computed, though transformers calls it a parameter
    distinct = {id(each): each for key, each in theirs.named_parameters() if not any(part in key for part in left_out)}
    # The bias of BART's and Marian's logits, and the factors of Gemma 4's stream, are numbers of the checkpoint, though
    # transformers calls them buffers.
    held = [each for key, each in theirs.named_buffers() if key.endswith(("final_logits_bias", "layer_scalar"))]
    assert take_census(read_config(folder)).total == sum(each.numel() for each in (*distinct.values(), *held))
