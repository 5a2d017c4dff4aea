"""Weights of e4m3: the size of their rounding, products of rounded numbers, and where they are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightwell.model.batch import Batch, Span
from lightwell.model.checkpoint.folder import ModelLoadError
from lightwell.model.checkpoint.registry import read_config
from lightwell.model.config import Activation
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.kv_cache import KVCache
from lightwell.model.layers.dense_weight import activate
from lightwell.model.layers.fp8_weight import LARGEST, LEAST_CAPABILITY, Fp8Rows, Fp8Weight
from lightwell.model.layers.linear import Linear
from lightwell.model.loading.loader import load_model, resolve_quantization
from lightwell.model.network.transformer import Transformer
from tests import tiny
from tests.invariance import assert_rows_do_not_depend_on_the_batch

pytestmark = pytest.mark.skipif(
    not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm", "CPU"),
    reason="this release of torch multiplies fp8 on cards only",
)

TORCH, CPU, CARD = KernelConfig("torch"), torch.device("cpu"), torch.device("cuda", 0)
DTYPES = (torch.bfloat16, torch.float16)


def test_rounding_moves_a_number_by_a_sixteenth_of_itself_at_most() -> None:
    torch.manual_seed(0)
    rows = torch.randn(50, 300, dtype=torch.float64) * 10.0 ** torch.randint(-20, 20, (50, 1))
    rows[:, ::7] *= 10.0 ** torch.randint(-9, 0, (50, 43))  # includes exponents outside e4m3's range
    rows = rows.float().double()
    found = Fp8Rows.quantize(rows.float())
    assert found.values.dtype == torch.float8_e4m3fn
    moved = (found.to_dense().double() - rows).abs()
    bound = torch.maximum(rows.abs() / 16, found.scales.double() / 1024)
    assert (moved <= bound * (1 + 1e-6)).all()
    assert (moved > bound / 2).any(), "the bound is not far from what happens"
    assert (moved / rows.abs())[:, 1].max() < 1 / 16 + 1e-6


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40))
def test_the_largest_number_of_a_row_is_kept_and_none_grows_beyond_it(row: list[float]) -> None:
    rows = torch.tensor([row], dtype=torch.float32)
    found = Fp8Rows.quantize(rows)
    largest = rows.abs().max().double()
    dense = found.to_dense().double()
    assert found.values.float().abs().max() <= LARGEST
    assert dense.abs().max() == pytest.approx(largest.item(), rel=1e-6, abs=1e-35)
    assert ((dense == 0) | (dense.sign() == rows.double().sign())).all()


def test_a_row_of_zeros_stays_zero_and_changes_no_other() -> None:
    rows = torch.randn(3, 20)
    rows[1] = 0
    found = Fp8Rows.quantize(rows).to_dense()
    assert (found[1] == 0).all()
    assert torch.equal(found[2:], Fp8Rows.quantize(rows[2:]).to_dense())
    assert (Fp8Weight(torch.zeros(5, 20)).multiply(torch.randn(2, 20).bfloat16()) == 0).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_not_finite_is_refused_and_such_a_row_spoils_no_other(bad: float) -> None:
    weight = torch.randn(30, 40)
    weight[7, 3] = bad
    with pytest.raises(ValueError, match=r"fp8 cannot represent a weight \[30, 40\] with infinite numbers or NaN"):
        Linear(weight, quantize="fp8", kernels=TORCH)
    x = torch.randn(3, 40).bfloat16()
    layer = Linear(torch.randn(30, 40).bfloat16(), quantize="fp8", kernels=TORCH, batch_invariant=False)
    alone = layer(x)
    x[1, 5] = bad
    y = layer(x)
    assert y[1].isnan().all()
    assert torch.equal(y[::2], alone[::2])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", [None, "silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 64, 48), (70, 17, 5), (0, 64, 48)])
def test_a_product_is_that_of_the_rounded_rows_and_weight(
    rows: int, inputs: int, outputs: int, activation: Activation | None, dtype: torch.dtype
) -> None:
    torch.manual_seed(rows)
    weight, bias = (torch.randn(outputs, inputs) / 8).to(dtype), torch.randn(outputs).to(dtype)
    x = torch.randn(rows, inputs).to(dtype)
    layer = Linear(weight, bias, kernels=TORCH, batch_invariant=False, quantize="fp8", activation=activation)
    dense = Fp8Rows.quantize(weight).to_dense()
    assert torch.equal(layer.to_dense(), dense.to(dtype))
    before = Fp8Rows.quantize(x).to_dense().double() @ dense.double().T if rows else x.new_zeros(0, outputs).double()
    after = before + bias.double()
    after = after if activation is None else activate(after, activation)
    y = layer(x)
    assert y.dtype == dtype
    assert y.is_contiguous()
    torch.testing.assert_close(y.double(), after, atol=0.02, rtol=2**-7)
    torch.testing.assert_close(layer.product(x).double(), before, atol=1e-4, rtol=2**-8)
    assert layer.find_largest(x) is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_has_the_same_bits_in_every_batch_if_that_is_promised(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = Linear(
        torch.randn(50, 70).to(dtype), kernels=TORCH, batch_invariant=True, quantize="fp8", activation="gelu"
    )
    assert_rows_do_not_depend_on_the_batch(layer, torch.randn(200, 70).to(dtype))


def hidden_states(model: Transformer, prompt: list[int]) -> torch.Tensor:
    span = Span(prompt, 0, range(1, 9), model.config.num_layers)
    return model.forward(Batch([span], 8, CPU), KVCache(model.cache_config, 9, 8, model.dtype, CPU))


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < LEAST_CAPABILITY,
    reason="torch finds no CUDA device here that multiplies fp8",
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 64, 48), (5, 70, 33), (300, 512, 1040)])
def test_a_gpu_multiplies_by_the_same_weight(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    weight, x = torch.randn(outputs, inputs).to(dtype), torch.randn(rows, inputs).to(dtype)
    there, here = (Linear(w, kernels=TORCH, batch_invariant=False, quantize="fp8") for w in (weight.cuda(), weight))
    assert torch.equal(there.to_dense().cpu(), here.to_dense())
    # In float64, since not every torch multiplies such rows on a CPU.
    expected = Fp8Rows.quantize(x).to_dense().double() @ Fp8Rows.quantize(weight).to_dense().double().T
    torch.testing.assert_close(there(x.cuda()).cpu().double(), expected, atol=0.1, rtol=2**-6)


@pytest.mark.every_family
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "opt"])
def test_a_network_keeps_its_numbers_up_to_the_roundings(name: str, tmp_path: Path) -> None:
    folder = tiny.make_variant(name, tmp_path)
    config, prompt = read_config(folder), list(range(5, 45))
    plain, fp8 = (
        hidden_states(load_model(folder, config, torch.bfloat16, CPU, kernels=TORCH, quantize=quantize), prompt)
        for quantize in ("none", "fp8")
    )
    off = (plain.double() - fp8.double()).norm() / plain.double().norm()
    assert 1e-4 < off < 0.15


# ---- where it is refused


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: request.param)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA Example")


@pytest.mark.parametrize("card", [(8, 9), (9, 0), (12, 0)], indirect=True)
@pytest.mark.usefixtures("card")
def test_cards_that_multiply_fp8_take_it() -> None:
    assert resolve_quantization("fp8", torch.bfloat16, CARD) == "fp8"
    with pytest.raises(ModelLoadError, match="'fp8', which needs dtype bfloat16 or float16, not float32"):
        resolve_quantization("fp8", torch.float32, CARD)


@pytest.mark.parametrize("card", [(8, 0), (7, 5)], indirect=True)
@pytest.mark.usefixtures("card")
def test_cards_that_do_not_are_named_with_what_they_have_and_what_would_do() -> None:
    with pytest.raises(ModelLoadError, match=r"8\.9 or above\. NVIDIA Example \(cuda:0\) has .* [78]\.[05]: int8, in"):
        resolve_quantization("fp8", torch.bfloat16, CARD)
    assert resolve_quantization("int8", torch.bfloat16, CARD) == "int8"
    assert resolve_quantization("none", torch.float64, CARD) == "none"


@pytest.mark.parametrize("card", [(9, 0)], indirect=True)
@pytest.mark.parametrize(("dtype", "kernels"), [(torch.bfloat16, "torch"), (torch.float32, "auto")])
@pytest.mark.usefixtures("card")
def test_a_card_without_kernels_of_int4_refuses_it(dtype: torch.dtype, kernels: Any) -> None:
    with pytest.raises(ModelLoadError, match=r"'int4', which on a GPU needs .* bfloat16 or float16; dtype is"):
        resolve_quantization("int4", dtype, CARD, KernelConfig(kernels))


def test_a_cpu_takes_int8_instead() -> None:
    with pytest.raises(ModelLoadError, match="a GPU, and the device is cpu; int8, int4 and none are accepted there"):
        resolve_quantization("fp8", torch.bfloat16, CPU)
    assert resolve_quantization("int8", torch.bfloat16, CPU) == "int8"
    with pytest.raises(ValueError, match="do not support fp8; int8, int4 and none are accepted"):
        Linear(torch.randn(32, 32), quantize="fp8")
