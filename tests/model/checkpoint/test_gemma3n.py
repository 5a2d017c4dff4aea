"""Gemma 3n: its sizes of each layer, and the mlps with mostly closed gates."""

from pathlib import Path

import torch

from lightwell.model.layers.mlp import without_small
from tests.model.checkpoint.test_families import read, sizes_of


def test_one_size_of_mlps_is_that_of_each_layer(tmp_path: Path) -> None:
    values = {**sizes_of("Gemma3nForCausalLM"), "architectures": ["Gemma3nForCausalLM"], "intermediate_size": 100}
    assert read(tmp_path, values) == read(tmp_path, {**values, "intermediate_size": [100] * 6})
    sizes = [100, 100, 84, 100, 100, 52]
    different = read(tmp_path, {**values, "intermediate_size": sizes})
    assert [different.at(layer).intermediate_size for layer in range(6)] == sizes


def test_a_gate_lets_the_share_through_that_is_asked_for() -> None:
    x = torch.randn(3, 20_000) * torch.tensor([[0.1], [1.0], [7.0]]) + torch.tensor([[3.0], [0.0], [-50.0]])
    for share in (0.3, 0.95):
        left = without_small(x, share)
        assert ((left > 0).float().mean(-1) - (1 - share)).abs().max() < 0.02
        assert torch.equal(left.argmax(-1), x.argmax(-1))
