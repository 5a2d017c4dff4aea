"""Products of float32 with weights that bfloat16 holds: precise, the same in any batch, in half the memory."""

import pytest
import torch

from model.layers.linear import Linear
from model.layers.narrow_weight import NarrowWeight, can_narrow
from model.layers.packed_weight import NO_POST_OP
from model.layers.tile_weight import why_no_tiles
from model.layers.token_table import TokenTable
from tests.invariance import assert_rows_do_not_depend_on_the_batch, rounding_alone
from tests.network import CPU

pytestmark = pytest.mark.skipif(why_no_tiles(torch.float32, CPU) is not None, reason="this CPU has no tiles")

SHAPES = [(64, 32), (256, 688), (50, 71), (1376, 256), (97, 2080)]


def narrow(outputs: int, inputs: int) -> torch.Tensor:
    return torch.randn(outputs, inputs).bfloat16().float()


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_products_are_as_precise_as_float32_is(outputs: int, inputs: int) -> None:
    weight, bias, x = narrow(outputs, inputs), torch.randn(outputs), torch.randn(90, inputs)
    y = NarrowWeight(weight).multiply(x, bias, NO_POST_OP)
    exact = x.double() @ weight.double().T + bias
    # What any order of float32 products and sums keeps: each is off by 2**-24 of all that is added up, at most.
    bound = 2 * inputs * 2.0**-24 * (x.double().abs() @ weight.double().abs().T + bias.abs())
    assert ((y - exact).abs() <= bound).all()


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_a_row_does_not_depend_on_the_batch(outputs: int, inputs: int) -> None:
    x, weight = rounding_alone(300, inputs, outputs, torch.float32)
    packed = NarrowWeight(weight.bfloat16().float())
    assert_rows_do_not_depend_on_the_batch(lambda rows: packed.multiply(rows, None, NO_POST_OP), x)


def test_no_rows_give_no_rows() -> None:
    assert NarrowWeight(narrow(64, 32)).multiply(torch.empty(0, 32), None, NO_POST_OP).shape == (0, 64)


def test_the_weight_comes_back_in_half_the_memory() -> None:
    weight = narrow(1000, 320)
    packed = NarrowWeight(weight)
    assert torch.equal(packed.to_dense(), weight)
    assert packed.memory.nbytes <= weight.nbytes // 2 * 1.05


def test_a_layer_takes_only_weights_that_bfloat16_holds() -> None:
    weight = narrow(600, 64)
    assert Linear(weight).narrow is not None
    weight[-1, -1] += 2.0**-20
    assert not can_narrow(weight)
    assert Linear(weight).narrow is None
    assert Linear(narrow(600, 64), activation="gelu").narrow is None
    assert Linear(narrow(600, 64).bfloat16()).narrow is None


def test_a_table_reads_its_rows_from_a_narrow_head() -> None:
    weight = narrow(70_000, 64)  # 18 MB
    table = TokenTable(weight, Linear(weight))
    ids = torch.tensor([0, 69_999, 64, 63, 12_345])
    assert torch.equal(table(ids), weight[ids])
    assert torch.equal(table.to_dense(), weight)
    assert table(ids).data_ptr() != weight.data_ptr()
