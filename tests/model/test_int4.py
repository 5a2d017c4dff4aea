"""Weights of 4 bits that are made on load: the numbers they represent, and the network that has these numbers."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightwell.model.analysis.live_weights import LiveWeights
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.checkpoint.weight_files import load_weights
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.kernels.group_quantized import GroupedWeight
from lightwell.model.kernels.int8 import Int8BlockedWeight
from lightwell.model.layers.linear import Linear
from lightwell.model.loading.loader import load_model
from lightwell.model.quantized import GroupedRows
from tests import tiny
from tests.invariance import assert_rows_do_not_depend_on_the_batch

DTYPES = (torch.float32, torch.bfloat16)


@given(inputs=st.integers(1, 12), outputs=st.integers(1, 70), seed=st.integers(0, 1 << 30))
def test_numbers_move_by_two_steps_at_most_and_by_less_than_without_a_choice_of_scales(
    inputs: int, outputs: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, 16 * inputs, generator=generator) * torch.rand(outputs, 1, generator=generator)
    weight[0] = 0
    rows = GroupedRows.quantize(weight)
    group = 32 if inputs % 2 == 0 else 16
    assert rows.group == group
    moved = (rows.to_dense() - weight).view(outputs, -1, group)
    assert (moved.abs() <= 2.01 * rows.scales.float().abs()[:, :, None]).all()
    groups = weight.view(outputs, -1, group)
    largest = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    plain = (largest / -8).half().float()
    codes = (groups / torch.where(plain == 0, 1, plain)).round().clamp(-8, 7)
    assert (moved.square().sum(2) <= 1.001 * (codes * plain - groups).square().sum(2)).all()


@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan, 1e30])
def test_what_it_cannot_hold_is_refused(number: float) -> None:
    weight = torch.randn(70, 64)
    weight[3, 5] = number
    with pytest.raises(ValueError, match=r"int4 cannot represent a weight \[70, 64\]"):
        Linear(weight, quantize="int4")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_product_is_that_of_the_rounded_weight_in_any_batch(dtype: torch.dtype) -> None:
    weight, x = (torch.randn(90, 96) / 8).to(dtype), torch.randn(300, 96).to(dtype)
    layer, plain = (Linear(weight, quantize="int4", kernels=KernelConfig(kind)) for kind in ("auto", "torch"))
    assert isinstance(layer.weight, GroupedWeight)
    assert torch.equal(layer.to_dense(), GroupedRows.quantize(weight).to_dense().to(dtype))
    assert torch.equal(layer.to_dense(), plain.to_dense())
    torch.testing.assert_close(layer(x), plain(x), atol=1e-5 if dtype == torch.float32 else 0.05, rtol=1e-2)
    assert_rows_do_not_depend_on_the_batch(layer, x)


def test_inputs_that_make_no_groups_are_kept_in_8_bits() -> None:
    assert isinstance(Linear(torch.randn(64, 40), quantize="int4").weight, Int8BlockedWeight)


def test_a_network_has_the_rounded_numbers(tmp_path: Path) -> None:
    folder = tiny.make("llama", tmp_path, hidden_size=64, intermediate_size=96, tie_word_embeddings=False)
    config, cpu = read_config(folder), torch.device("cpu")
    live = LiveWeights(load_model(folder, config, torch.float32, cpu, quantize="int4"))
    weights = load_weights(folder, config, torch.float32)
    for name in ("layers.0.qkv.weight", "layers.1.down.weight", "head.weight"):
        found = live(name)
        assert found is not None
        assert torch.equal(found, GroupedRows.quantize(weights[name]).to_dense())
    table = live("embed.weight")
    assert table is not None
    assert torch.equal(table, weights["embed.weight"])
