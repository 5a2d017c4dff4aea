"""Which layers multiply by the card's own kernel, and their results."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")

from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.kernels.cuda.matmul import matmul
from lightwell.model.layers.dense_weight import DenseWeight
from lightwell.model.layers.fp8_weight import LEAST_CAPABILITY
from lightwell.model.layers.linear import Linear
from tests.model.kernels.cuda.card import DEVICE, fresh_draw, normal

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
