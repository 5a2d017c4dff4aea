"""Linear layers: the same numbers as torch, and rows that do not depend on the batch."""

import pytest
import torch

from lightwell.model.config import Activation
from lightwell.model.kernels.choice import KernelConfig
from lightwell.model.layers.dense_weight import activate
from lightwell.model.layers.linear import Linear
from tests.invariance import assert_rows_do_not_depend_on_the_batch, rounding_alone

DTYPES = (torch.float32, torch.bfloat16)
ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu", "gelu_tanh", "relu")


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    of: torch.dtype = request.param
    return of


@pytest.mark.parametrize(
    ("inputs", "outputs", "activation"),
    [(256, 1376, "silu"), (688, 256, "gelu"), (171, 333, "gelu_tanh"), (2048, 31, "relu")],
)
def test_a_native_row_has_the_same_bits_in_every_batch(
    inputs: int, outputs: int, activation: Activation, dtype: torch.dtype
) -> None:
    x, weight = rounding_alone(300, inputs, outputs, dtype)
    assert_rows_do_not_depend_on_the_batch(Linear(weight), x)
    assert_rows_do_not_depend_on_the_batch(Linear(weight, torch.randn(outputs).to(dtype), activation=activation), x)


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 200])
def test_native_and_plain_layers_agree_with_float64(
    activation: Activation | None, bias: bool, rows: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(rows)
    weight, x = (torch.randn(90, 70) / 8).to(dtype), torch.randn(rows, 70).to(dtype)
    offset = torch.randn(90).to(dtype) if bias else None
    exact = x.double() @ weight.double().T + (offset.double() if offset is not None else 0)
    exact = exact if activation is None else activate(exact, activation)
    tolerance = 2e-5 if dtype == torch.float32 else 0.02
    for native, batch_invariant in ((True, True), (True, False), (False, True)):
        layer = Linear(
            weight,
            offset,
            kernels=KernelConfig("auto" if native else "torch"),
            batch_invariant=batch_invariant,
            activation=activation,
        )
        assert layer.native == native
        torch.testing.assert_close(layer(x).double(), exact, atol=tolerance, rtol=tolerance)


def test_a_layer_takes_no_rows_and_rows_that_are_not_contiguous(dtype: torch.dtype) -> None:
    layer = Linear(torch.randn(6, 8).to(dtype))
    assert layer(torch.empty(0, 8, dtype=dtype)).shape == (0, 6)
    x = torch.randn(8, 10).to(dtype)
    assert torch.equal(layer(x.T), layer(x.T.contiguous()))
    wide = torch.randn(4, 20).to(dtype)
    assert torch.equal(layer(wide[:, 3:11]), layer(wide[:, 3:11].contiguous()))


@pytest.mark.parametrize("other", [torch.float64, torch.float16])
def test_dtypes_that_our_kernels_do_not_take_are_computed_plainly(other: torch.dtype) -> None:
    layer = Linear(torch.randn(6, 8).to(other))
    assert not layer.native
    assert layer(torch.randn(3, 8).to(other)).dtype == other
