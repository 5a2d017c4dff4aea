"""Which layers multiply by the card's own kernel, and their results."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")

from model.config import Activation
from model.kernels.choice import KernelConfig
from model.kernels.cuda.matmul import matmul
from model.layers.dense_weight import DenseWeight
from model.layers.fp8_weight import LEAST_CAPABILITY
from model.layers.linear import Linear
from tests.model.kernels.cuda.card import DEVICE, DTYPES, fresh_draw, normal

TRITON = KernelConfig("triton")


def test_products_whose_rows_ignore_the_batch_are_the_cards() -> None:
    weight = normal(6, 8, dtype=torch.bfloat16)
    own = Linear(weight, kernels=TRITON).weight
    assert isinstance(own, DenseWeight)
    assert own.product is matmul
    others = (
        Linear(weight, kernels=TRITON, batch_invariant=False),
        Linear(weight.double(), kernels=TRITON),
        Linear(weight, kernels=KernelConfig("torch")),
        Linear(weight.cpu(), kernels=TRITON, quantize="int8"),
    )
    for layer in others:
        assert isinstance(layer.weight, DenseWeight)
        assert layer.weight.product is not matmul


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_a_layer_computes_its_formula(activation: Activation | None, dtype: torch.dtype) -> None:
    fresh_draw()
    weight, bias, x = normal(30, 50, dtype=dtype), normal(30, dtype=dtype), normal(7, 50, dtype=dtype)
    layer = Linear(weight, bias, kernels=TRITON, activation=activation)
    exact = x.double() @ weight.double().T
    before = exact + bias.double()
    after = torch.nn.functional.gelu(before) if activation else before
    eps = torch.finfo(dtype).eps
    for ours, formula in ((layer(x), after), (layer.before_activation(x), before), (layer.product(x), exact)):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours.double(), formula, atol=1e-4 + 4 * eps, rtol=2 * eps)
    assert torch.equal(layer.to_dense(), weight)
    assert layer.find_largest(x) is None


@pytest.mark.skipif(DEVICE.type == "cuda" and torch.cuda.get_device_capability() < LEAST_CAPABILITY, reason="no fp8")
@pytest.mark.skipif(
    not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_mm", DEVICE.type.upper()),
    reason="this release of torch multiplies fp8 on cards only",
)
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 64, 48), (5, 70, 33), (0, 64, 48)])
def test_fp8_has_the_bits_that_torch_gives_it(rows: int, inputs: int, outputs: int) -> None:
    fresh_draw()
    weight, x = normal(outputs, inputs, dtype=torch.bfloat16), normal(rows, inputs, dtype=torch.bfloat16)
    ours, plain = (
        Linear(weight, kernels=kernels, quantize="fp8", batch_invariant=False, activation="silu")
        for kernels in (TRITON, KernelConfig("torch"))
    )
    assert torch.equal(ours(x), plain(x))
