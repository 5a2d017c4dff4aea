"""The card's products: against float64, and the bits of a row by itself and in batches of any size."""

import math

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed (the extra test-gpu)")

from lightwell.model.kernels.cuda import matmul as kernels
from lightwell.model.kernels.cuda.matmul import FEW_ROWS, TILES, WIDE_TILES, choose_tile, matmul, piece_length
from tests.invariance import rounding_alone
from tests.model.kernels.cuda.card import DEVICE, each_dtype, fresh_draw, normal

SHAPES = ((1, 1, 1), (3, 45, 100), (35, 70, 64))
BATCHES = ((40, 40, 72), (100, 40, 72), (100, 33, 1100), (100, 200, 2100))
"""Rows, outputs and inputs of the nightly tests."""


@pytest.fixture
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut products with over 128 inputs into pieces."""
    monkeypatch.setattr(kernels, "LEAST_PIECE", 64)


def num_pieces(num_outputs: int, num_inputs: int) -> int:
    return math.ceil(num_inputs / piece_length(num_outputs, num_inputs))


def assert_near(ours: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Assert that a product is off by one rounding to its dtype, and in float32 by 1e-5 of its terms' magnitudes."""
    exact, terms = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
    if bias is not None:
        exact, terms = exact + bias.double(), terms + bias.double().abs()
    rounding = 0.0 if ours.dtype == torch.float32 else torch.finfo(ours.dtype).eps / 2 * 1.001
    assert ours.dtype == x.dtype
    assert ((ours.double() - exact).abs() <= rounding * exact.abs() + 1e-5 * terms).all()


def almost_zero(rows: int, inputs: int, outputs: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    """Return x and a weight with a product of 0 except for rounding, within float16's range."""
    x, weight = rounding_alone(rows, inputs, outputs, torch.float32, seed)
    return x.clamp(-6e4, 6e4).to(DEVICE, dtype), weight.to(DEVICE, dtype)


@each_dtype
@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs"),
    [(18, 33, 200), *(pytest.param(*shape, marks=pytest.mark.nightly) for shape in SHAPES)],
)
def test_a_product_is_the_exact_one_rounded_once(rows: int, outputs: int, inputs: int, dtype: torch.dtype) -> None:
    rng = fresh_draw()
    x, weight = normal(rows, inputs, dtype=dtype), normal(outputs, inputs, dtype=dtype)
    bias = rng.choice((None, normal(outputs, dtype=dtype, scale=10)))
    assert_near(matmul(x, weight, bias), x, weight, bias)


@each_dtype
@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs"),
    [(40, 33, 200), *(pytest.param(*shape, marks=pytest.mark.nightly) for shape in BATCHES)],
)
def test_a_row_has_the_same_bits_alone_and_anywhere_in_any_batch(
    rows: int, outputs: int, inputs: int, dtype: torch.dtype
) -> None:
    rng = fresh_draw()
    x, weight = almost_zero(rows, inputs, outputs, dtype, rng.randrange(1 << 30))
    bias = rng.choice((None, normal(outputs, dtype=dtype, scale=1e-3)))
    whole = matmul(x, weight, bias)
    for count in (1, 33, rng.randint(2, rows)):
        chosen = rng.sample(range(len(x)), count)
        assert torch.equal(matmul(x[chosen], weight, bias), whole[chosen]), f"{count} rows"


@each_dtype
@pytest.mark.usefixtures("_small_pieces")
def test_all_tiles_sum_in_one_order(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare each tile, of all pieces and of one each."""
    rng = fresh_draw()
    outputs, inputs, rows = 40, rng.randint(130, 200), 20
    assert num_pieces(outputs, inputs) > 1
    x, weight = almost_zero(rows, inputs, outputs, dtype, rng.randrange(1 << 30))
    found = []
    for tile in WIDE_TILES if dtype == torch.float32 else TILES:
        monkeypatch.setattr(kernels, "choose_tile", lambda *_, tile=tile: tile)
        for few in (FEW_ROWS, 0):
            monkeypatch.setattr(kernels, "FEW_ROWS", few)
            if few or tile.sums_pieces:
                found.append(matmul(x, weight))
    assert all(torch.equal(each, found[0]) for each in found)
    assert len(found) > 4


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter's, of infinity - infinity
def test_rows_that_are_no_numbers_change_no_other_row() -> None:
    fresh_draw()
    x, weight = normal(50, 80, dtype=torch.bfloat16), normal(40, 80, dtype=torch.bfloat16)
    whole = matmul(x, weight)
    spoilt = x.clone()
    spoilt[[0, 17, 49]] = torch.tensor([[math.nan], [math.inf], [math.nan]], dtype=x.dtype, device=DEVICE)
    ours = matmul(spoilt, weight)
    others = [i for i in range(50) if i not in (0, 17, 49)]
    assert torch.equal(ours[others], whole[others])
    assert not ours[[0, 17, 49]].isfinite().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_slices_of_wider_rows_give_the_same_bits(dtype: torch.dtype) -> None:
    fresh_draw()
    wide, weight = normal(9, 200, dtype=dtype), normal(20, 96, dtype=dtype)
    for x in (wide[:, :96], wide[:, 5:101], wide[::2, 16:112], wide[1:, ::2][:, :96], wide.flatten()[3:99].view(1, 96)):
        assert torch.equal(matmul(x, weight), matmul(x.clone(), weight))
    apart = normal(20 * 96 + 1, dtype=dtype)[1:].view(20, 96)
    assert torch.equal(matmul(wide[:, :96], apart), matmul(wide[:, :96], apart.clone()))


def test_the_order_of_sums_does_not_depend_on_rows_and_tiles_fill_a_card() -> None:
    for outputs, inputs in ((4096, 4096), (2048, 2048), (1024, 14336), (768, 768), (128256, 4096), (4096, 14336)):
        length, pieces = piece_length(outputs, inputs), num_pieces(outputs, inputs)
        assert length % 128 == 0
        assert (pieces - 1) * length < inputs <= pieces * length
        for rows in (1, 8, 16, 64, 100, 256, 257, 8192):
            tile = choose_tile(rows, outputs, pieces, torch.bfloat16)
            programs = tile.count(rows, outputs) * (pieces if rows <= FEW_ROWS else 1)
            assert programs >= 96 or tile == TILES[-1]
            assert tile.height < max(2 * rows, 32)
            assert pieces == 1 or rows <= FEW_ROWS or tile.sums_pieces
    assert choose_tile(8192, 4096, 1, torch.float16) == TILES[0]
    assert [num_pieces(*shape) for shape in ((4096, 14336), (2048, 2048), (1024, 4096))] == [1, 2, 3]


def test_empty_products_and_what_does_not_fit() -> None:
    x, weight, bias = (normal(*shape, dtype=torch.float32) for shape in ((2, 16), (3, 16), (3,)))
    assert matmul(x[:0], weight).shape == (0, 3)
    assert torch.equal(matmul(x[:, :0], weight[:, :0], bias), bias.expand(2, 3))
    for wrong, arguments in {
        "weight": (x, weight[:, 1:]),
        "bias": (x, weight, bias[1:]),
        "float64": (x.double(), weight),
        "bfloat16": (x, weight.bfloat16()),
    }.items():
        with pytest.raises(ValueError, match=wrong):
            matmul(*arguments)
