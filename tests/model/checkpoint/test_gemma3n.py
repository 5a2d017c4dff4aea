"""Gemma 3n: its sizes of each layer, the refused options, and the mlps with mostly closed gates."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.checkpoint.folder import ModelLoadError
from model.checkpoint.registry import read_config
from model.checkpoint.weight_files import load_weights
from model.layers.mlp import without_small
from tests import tiny
from tests.model.checkpoint.test_families import read


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_variant("gemma3n", tmp_path_factory.mktemp("gemma3n"))


def values_of(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return values


def test_the_text_part_of_one_with_images_is_the_network(folder: Path, tmp_path: Path) -> None:
    outer = {"architectures": ["Gemma3nForConditionalGeneration"], "text_config": values_of(folder)}
    whole, alone = read(tmp_path, outer), read_config(folder)
    renamed = {
        key.replace("model.", "model.language_model.", 1): tensor
        for key, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file({**renamed, "model.vision_tower.x.weight": torch.ones(1)}, tmp_path / "model.safetensors")
    expected, found = load_weights(folder, alone, torch.float32), load_weights(tmp_path, whole, torch.float32)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_one_size_of_mlps_is_that_of_each_layer(folder: Path, tmp_path: Path) -> None:
    values = {**values_of(folder), "intermediate_size": 100}
    assert read(tmp_path, values) == read(tmp_path, {**values, "intermediate_size": [100] * 4})
    different = read(tmp_path, {**values, "intermediate_size": [100, 100, 84, 100]})
    assert [different.at(layer).intermediate_size for layer in range(4)] == [100, 100, 84, 100]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"altup_num_inputs": 3}, "altup_num_inputs is 3; only 4 is supported"),
        ({"altup_active_idx": 1}, "altup_active_idx is 1; only 0 is supported"),
        ({"intermediate_size": [100]}, "a positive integer, or a list of 4, is expected"),
        ({"activation_sparsity_pattern": [0.5, 0.5, 0.5, 1.0]}, "a list of 4 numbers from 0 to below 1 is expected"),
        ({"num_kv_shared_layers": 3}, "num_kv_shared_layers is 3; earlier layers of each kind"),
    ],
)
def test_what_is_not_built_is_refused_by_name(
    folder: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelLoadError, match=message):
        read(tmp_path, {**values_of(folder), **change})


def test_a_gate_lets_the_share_through_that_is_asked_for() -> None:
    x = torch.randn(3, 20_000) * torch.tensor([[0.1], [1.0], [7.0]]) + torch.tensor([[3.0], [0.0], [-50.0]])
    for share in (0.3, 0.95):
        left = without_small(x, share)
        assert ((left > 0).float().mean(-1) - (1 - share)).abs().max() < 0.02
        assert torch.equal(left.argmax(-1), x.argmax(-1))
