"""Linear layers and layers built on them: the same numbers as torch, and rows that do not depend on the batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import Activation
from model.kernels.choice import KernelConfig
from model.layers.dense_weight import activate
from model.layers.linear import Linear
from model.layers.mlp import Mlp
from tests.invariance import assert_rows_do_not_depend_on_the_batch, num_threads, rounding_alone
from tests.support.examples import examples

DTYPES = (torch.float32, torch.bfloat16)
ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu", "gelu_tanh", "relu")
# Widths of the models we serve, and some that no vector length divides.
SHAPES = (
    *((256, 768), (256, 1376), (688, 256), (768, 768), (2048, 256), (3072, 768)),
    *((100, 60), (171, 333), (1025, 17), (4100, 49), (2048, 31)),
)


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    of: torch.dtype = request.param
    return of


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_native_row_has_the_same_bits_in_every_batch(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    torch.manual_seed(inputs)
    layer = Linear((torch.randn(outputs, inputs) / inputs**0.5).to(dtype), torch.randn(outputs).to(dtype))
    assert_rows_do_not_depend_on_the_batch(layer, torch.randn(1024 if inputs <= 256 else 130, inputs).to(dtype))


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_the_sum_of_a_native_row_has_one_order_in_every_batch(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    x, weight = rounding_alone(600, inputs, outputs, dtype)
    layer = Linear(weight)
    assert_rows_do_not_depend_on_the_batch(layer, x)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("outputs", [688, 172, 33])
def test_a_native_activation_has_the_same_bits_in_every_batch(
    activation: Activation, outputs: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(outputs)
    layer = Linear(torch.randn(outputs, 64).to(dtype), activation=activation)
    assert_rows_do_not_depend_on_the_batch(layer, torch.randn(257, 64).to(dtype))


@pytest.mark.parametrize("gate", [None, *ACTIVATIONS])
@pytest.mark.parametrize(("width", "ff"), [(256, 688), (60, 100), (64, 1100)])
def test_a_native_mlp_row_has_the_same_bits_in_every_batch(
    gate: Activation | None, width: int, ff: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(ff)

    def linear(outputs: int, inputs: int, activation: Activation | None = None) -> Linear:
        return Linear((torch.randn(outputs, inputs) / inputs**0.5).to(dtype), activation=activation)

    down = linear(width, ff)
    mlp = Mlp(linear(ff, width, "gelu_tanh"), down) if gate is None else Mlp(linear(2 * ff, width), down, gate)
    assert_rows_do_not_depend_on_the_batch(
        lambda x: mlp.down(mlp.apply_gate(mlp.up(x))), 3 * torch.randn(131, width).to(dtype)
    )


@settings(max_examples=examples(80))
@given(
    inputs=st.one_of(st.integers(2, 1500), st.sampled_from([2048, 3072, 4096, 4097])),
    outputs=st.one_of(st.integers(1, 80), st.integers(81, 900)),
    rows=st.integers(1, 140),
    row=st.integers(0, 139),
    threads=st.sampled_from([1, 2]),
    which=st.sampled_from(DTYPES),
)
def test_a_native_row_alone_equals_itself_among_others_for_any_shape(
    inputs: int, outputs: int, rows: int, row: int, threads: int, which: torch.dtype
) -> None:
    row %= rows
    with num_threads(threads):
        x, weight = rounding_alone(rows, inputs, outputs, which, seed=rows)
        layer = Linear(weight, torch.randn(outputs).to(which))
        assert torch.equal(layer(x[row : row + 1]), layer(x)[row : row + 1])
        alone = Linear(weight)
        assert torch.equal(alone(x[row : row + 1]), alone(x)[row : row + 1])


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 9, 200])
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


@pytest.mark.parametrize("gate", [None, *ACTIVATIONS])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("of", "native", "tolerance"),
    [(torch.float64, False, 1e-12), (torch.float32, True, 2e-5), (torch.float32, False, 2e-5)],
)
def test_an_mlp_computes_what_its_formula_says(
    gate: Activation | None, bias: bool, of: torch.dtype, native: bool, tolerance: float
) -> None:
    ff, width = 50, 12
    up, gates = torch.randn(2, ff, width).double() / width**0.5
    down, x = torch.randn(width, ff).double() / ff**0.5, 2 * torch.randn(5, width).double()
    offsets = [torch.randn(size).double() * bias for size in (ff, width, ff)]

    def layer(weight: torch.Tensor, offset: torch.Tensor, activation: Activation | None = None) -> Linear:
        return Linear(
            weight.to(of),
            offset.to(of) if bias else None,
            kernels=KernelConfig("auto" if native else "torch"),
            activation=activation,
        )

    lower = layer(down, offsets[1])
    hidden = x @ up.T + offsets[0]
    if gate is None:
        mlp, hidden = Mlp(layer(up, offsets[0], "relu"), lower), hidden.clamp_min(0)
    else:
        mlp = Mlp(layer(torch.cat((gates, up)), torch.cat((offsets[2], offsets[0]))), lower, gate)
        hidden = activate(x @ gates.T + offsets[2], gate) * hidden
    exact = hidden @ down.T + offsets[1]
    torch.testing.assert_close(
        mlp.down(mlp.apply_gate(mlp.up(x.to(of)))).double(), exact, atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize("shape", [(7, 5), (768, 2048), (4096, 256)])
def test_a_native_weight_can_be_read_back_bit_for_bit(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = torch.randn(shape).to(dtype)
    for batch_invariant in (True, False):
        layer = Linear(weight.clone(), batch_invariant=batch_invariant)
        assert layer.native
        assert torch.equal(layer.to_dense(), weight)


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
