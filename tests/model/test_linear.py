"""Linear layers and what is built on them: the same numbers as torch, and rows that do not depend on the batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import Activation
from model.layers import kept_answers, packed_weight
from model.layers.linear import Linear, activate
from model.layers.mlp import Mlp
from model.layers.packed_weight import can_pack
from tests.invariance import assert_rows_do_not_depend_on_the_batch, num_threads, rounding_alone

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16)
ACTIVATIONS: tuple[Activation, ...] = ("silu", "gelu", "gelu_tanh", "relu")
# Widths of the models we serve, and some that no vector length divides.
SHAPES = (
    *((256, 768), (256, 1376), (688, 256), (768, 768), (2048, 256), (3072, 768)),
    *((100, 60), (171, 333), (1025, 17), (4100, 49), (2048, 31)),
)


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    if not can_pack(request.param, CPU):
        pytest.skip(f"oneDNN does not pack {request.param} on this processor")
    packable: torch.dtype = request.param
    return packable


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_packed_row_has_the_same_bits_in_every_batch(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    torch.manual_seed(inputs)
    layer = Linear((torch.randn(outputs, inputs) / inputs**0.5).to(dtype), torch.randn(outputs).to(dtype), packed=True)
    assert_rows_do_not_depend_on_the_batch(layer, torch.randn(1024 if inputs <= 256 else 130, inputs).to(dtype))


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_the_sum_of_a_packed_row_has_one_order_in_every_batch(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    x, weight = rounding_alone(600, inputs, outputs, dtype)
    layer = Linear(weight, packed=True)
    assert_rows_do_not_depend_on_the_batch(layer, x)


def test_the_sum_of_a_packed_row_has_one_order_where_its_weights_suit_no_convolution(dtype: torch.dtype) -> None:
    """With 4 threads and AMX oneDNN has other layouts for many of these numbers of rows: they are cut into blocks."""
    x, weight = rounding_alone(400, 1088, 192, dtype)
    layer = Linear(weight, packed=True)
    with num_threads(4):
        whole = layer(x)
        for rows in (1, 2, 31, 33, 40, 56, 80, 97, 128, 257, 384):
            assert torch.equal(layer(x[-rows:]), whole[-rows:]), f"{rows} rows"


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("outputs", [688, 172, 33])
def test_a_packed_activation_has_the_same_bits_in_every_batch(
    activation: Activation, outputs: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(outputs)
    layer = Linear(torch.randn(outputs, 64).to(dtype), packed=True, activation=activation)
    assert_rows_do_not_depend_on_the_batch(layer, torch.randn(257, 64).to(dtype))


@pytest.mark.parametrize("gate", [None, *ACTIVATIONS])
@pytest.mark.parametrize(("width", "ff"), [(256, 688), (60, 100), (64, 1100)])
def test_a_packed_mlp_row_has_the_same_bits_in_every_batch(
    gate: Activation | None, width: int, ff: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(ff)

    def linear(outputs: int, inputs: int, activation: Activation | None = None) -> Linear:
        return Linear((torch.randn(outputs, inputs) / inputs**0.5).to(dtype), packed=True, activation=activation)

    down = linear(width, ff)
    mlp = Mlp(linear(ff, width, "gelu_tanh"), down) if gate is None else Mlp(linear(2 * ff, width), down, gate)
    assert_rows_do_not_depend_on_the_batch(mlp, 3 * torch.randn(131, width).to(dtype))


@settings(max_examples=80)
@given(
    inputs=st.one_of(st.integers(2, 1500), st.sampled_from([2048, 3072, 4096, 4097])),
    outputs=st.one_of(st.integers(1, 80), st.integers(81, 900)),
    rows=st.integers(1, 140),
    row=st.integers(0, 139),
    threads=st.sampled_from([1, 2]),
    which=st.sampled_from([dtype for dtype in DTYPES if can_pack(dtype, CPU)] or [torch.float32]),
)
def test_a_packed_row_alone_equals_itself_among_others_for_any_shape(
    inputs: int, outputs: int, rows: int, row: int, threads: int, which: torch.dtype
) -> None:
    if not can_pack(which, CPU):
        pytest.skip("oneDNN does not pack on this processor")
    row %= rows
    with num_threads(threads):
        x, weight = rounding_alone(rows, inputs, outputs, which, seed=rows)
        layer = Linear(weight, torch.randn(outputs).to(which), packed=True)
        assert torch.equal(layer(x[row : row + 1]), layer(x)[row : row + 1])
        alone = Linear(weight, packed=True)
        assert torch.equal(alone(x[row : row + 1]), alone(x)[row : row + 1])


@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 9, 200])
def test_packed_and_plain_layers_agree_with_float64(
    activation: Activation | None, bias: bool, rows: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(rows)
    weight, x = (torch.randn(90, 70) / 8).to(dtype), torch.randn(rows, 70).to(dtype)
    offset = torch.randn(90).to(dtype) if bias else None
    exact = x.double() @ weight.double().T + (offset.double() if offset is not None else 0)
    exact = exact if activation is None else activate(exact, activation)
    tolerance = 2e-5 if dtype == torch.float32 else 0.02
    for packed, batch_invariant in ((True, True), (True, False), (False, True)):
        layer = Linear(weight, offset, packed=packed, batch_invariant=batch_invariant, activation=activation)
        assert layer.packed == packed
        torch.testing.assert_close(layer(x).double(), exact, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("gate", [None, *ACTIVATIONS])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("of", "packed", "tolerance"),
    [(torch.float64, False, 1e-12), (torch.float32, True, 2e-5), (torch.float32, False, 2e-5)],
)
def test_an_mlp_computes_what_its_formula_says(
    gate: Activation | None, bias: bool, of: torch.dtype, packed: bool, tolerance: float
) -> None:
    ff, width = 50, 12
    up, gates = torch.randn(2, ff, width).double() / width**0.5
    down, x = torch.randn(width, ff).double() / ff**0.5, 2 * torch.randn(5, width).double()
    offsets = [torch.randn(size).double() * bias for size in (ff, width, ff)]

    def layer(weight: torch.Tensor, offset: torch.Tensor, activation: Activation | None = None) -> Linear:
        return Linear(weight.to(of), offset.to(of) if bias else None, packed=packed, activation=activation)

    lower = layer(down, offsets[1])
    hidden = x @ up.T + offsets[0]
    if gate is None:
        mlp, hidden = Mlp(layer(up, offsets[0], "relu"), lower), hidden.clamp_min(0)
    else:
        mlp = Mlp(layer(torch.cat((gates, up)), torch.cat((offsets[2], offsets[0]))), lower, gate)
        hidden = activate(x @ gates.T + offsets[2], gate) * hidden
    exact = hidden @ down.T + offsets[1]
    torch.testing.assert_close(mlp(x.to(of)).double(), exact, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("shape", [(7, 5), (768, 2048), (4096, 256)])
def test_a_packed_weight_can_be_read_back_bit_for_bit(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = torch.randn(shape).to(dtype)
    for batch_invariant in (True, False):
        layer = Linear(weight.clone(), batch_invariant=batch_invariant)
        assert layer.packed
        assert torch.equal(layer.to_dense(), weight)


def test_a_layer_takes_no_rows_and_rows_that_are_not_contiguous(dtype: torch.dtype) -> None:
    layer = Linear(torch.randn(6, 8).to(dtype), packed=True)
    assert layer(torch.empty(0, 8, dtype=dtype)).shape == (0, 6)
    x = torch.randn(8, 10).to(dtype)
    assert torch.equal(layer(x.T), layer(x.T.contiguous()))
    wide = torch.randn(4, 20).to(dtype)
    assert torch.equal(layer(wide[:, 3:11]), layer(wide[:, 3:11].contiguous()))


@pytest.mark.parametrize("unpackable", [torch.float64, torch.float16])
def test_dtypes_that_onednn_refuses_are_computed_plainly(unpackable: torch.dtype) -> None:
    layer = Linear(torch.randn(6, 8).to(unpackable), packed=True)
    assert not layer.packed
    assert layer(torch.randn(3, 8).to(unpackable)).dtype == unpackable


def test_a_cpu_on_which_rows_depend_on_the_batch_is_told_once_with_its_remedy(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept_answers.keep_in(None)
    monkeypatch.setattr(packed_weight, "_rows_agree", lambda *_: False)  # as with AMX and no kernel that passes
    packed_weight._invariant_packing.cache_clear()
    try:
        layers = [Linear(torch.randn(6, 8).to(dtype), packed=True) for _ in range(2)]
    finally:
        packed_weight._invariant_packing.cache_clear()  # other tests ask this machine's kernels
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    assert f"this CPU's {str(dtype).removeprefix('torch.')} products depend on" in warning.getMessage()
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in warning.getMessage()
    assert all(layer(torch.randn(3, 8).to(dtype)).shape == (3, 6) for layer in layers)


def test_taking_a_layer_removes_its_tensors_so_that_originals_are_freed() -> None:
    weights = {"a.weight": torch.randn(3, 2), "a.bias": torch.randn(3), "b.weight": torch.randn(4, 2)}
    Linear.take(weights, "a", batch_invariant=True)
    assert list(weights) == ["b.weight"]
    with pytest.raises(KeyError):
        Linear.take(weights, "c", batch_invariant=True)
