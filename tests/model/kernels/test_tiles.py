"""Products on the tiles of AMX, which are software here (`emulated_tiles.h`): in the order of Intel's manual, and the
same for a row whatever other rows are in the batch.

Axes: R rows, K inputs, N outputs.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lightwell.model.kernels import build, library
from lightwell.model.kernels.int8 import Int8BlockedWeight
from lightwell.model.kernels.products import DOT, BlockedWeight
from tests.model.kernels import emulated_tiles
from tests.model.kernels.everywhere import assert_same_bits
from tests.model.kernels.levels import at_level

pytestmark = pytest.mark.skipif(
    build.architecture() != "x86_64" or not library.levels(), reason="tiles are tried on x86-64"
)
SHAPES = ((1, 1), (70, 5), (64, 64), (130, 101), (77, 600))
"""Outputs and inputs: blocks and steps of tiles, whole and with remainders."""

FILES = ("product_bfloat16.cpp", "product_int8.cpp", "chains.cpp")
"""The files with products on tiles; the others, which take most of a minute to compile, call the same functions."""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiles") / "kernels.so"
    emulated_tiles.build_library(path, only=FILES)
    return path


@contextmanager
def loaded(kernels: Path) -> Iterator[None]:
    """Use the library with emulated tiles in place of the one that is loaded; none of its tiles may be in use
    afterwards.
    """
    there = ctypes.CDLL(str(kernels))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "_library", lambda: there)
        patch.setattr(library, "levels", lambda: (emulated_tiles.LEVEL,))
        with at_level(emulated_tiles.LEVEL):
            yield
    assert there.emulated_tiles_in_use() == 0


@pytest.fixture
def tiles(kernels: Path) -> Iterator[None]:
    with loaded(kernels):
        yield


def draw(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def multiply_plainly(x: Tensor, weight: Tensor) -> Tensor:
    """Compute the product in the manual's order: of each 32 inputs the even ones are one chain of multiply-adds from
    0, the odd ones another, and both together are added to the sum. float64 holds a product, and with a float32
    added it has more digits than rounding to float32 needs.
    """
    steps = -(-x.shape[1] // 32)
    filled = [torch.nn.functional.pad(each.double(), (0, 32 * steps - x.shape[1])) for each in (x, weight)]
    x, weight = (each.view(len(each), steps, 16, 2) for each in filled)
    sums = torch.zeros(len(x), len(weight))
    for step in range(steps):
        chains = torch.zeros(2, len(x), len(weight))
        for pair in range(16):
            products = x[:, None, step, pair] * weight[None, :, step, pair]
            chains = (products.movedim(-1, 0) + chains.double()).float()
        sums += chains[0] + chains[1]
    return sums.bfloat16()


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_products_have_the_bits_that_the_manual_describes(outputs: int, inputs: int) -> None:
    x, weight = draw(35, inputs), draw(outputs, inputs)
    found = BlockedWeight(weight, DOT).multiply(x)
    assert_same_bits((found,), (multiply_plainly(x, weight),))


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_a_row_has_the_same_bits_alone_and_among_others(outputs: int, inputs: int) -> None:
    x, weight = draw(130, inputs), BlockedWeight(draw(outputs, inputs), DOT)
    x[3, inputs // 2] = torch.nan  # NaN affects no other row, and memory from an earlier product affects none
    BlockedWeight(draw(1, 640), DOT).multiply(torch.full((130, 640), torch.nan, dtype=torch.bfloat16))
    whole = weight.multiply(x)
    assert whole[3].isnan().all()
    for rows in (1, 2, 15, 16, 17, 31, 32, 33, 48, 130):
        for threads in (1, 2, 3):
            library.set_num_threads(threads)
            for some in (x[:rows], x[-rows:]):
                first = 0 if some.data_ptr() == x.data_ptr() else len(x) - rows
                assert_same_bits((weight.multiply(some),), (whole[first : first + rows],))


@pytest.mark.usefixtures("tiles")
def test_numbers_below_the_normal_ones_are_zeros() -> None:
    tiny, small = 2.0**-130, 2.0**-70
    weight = BlockedWeight(torch.tensor([[1.0, 0.0], [0.0, small]]).bfloat16(), DOT)
    y = weight.multiply(torch.tensor([[tiny, small]]).bfloat16())
    assert y.tolist() == [[0, 0]]


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_int8_products_have_the_bits_of_other_levels(dtype: torch.dtype, *, rounds: bool, kernels: Path) -> None:
    values, scales = torch.randint(-128, 128, (77, 333), dtype=torch.int8), torch.rand(77) / 64
    weight = Int8BlockedWeight(values, scales, int8_activations=rounds)
    x, bias = torch.randn(40, 333).to(dtype), torch.randn(77).to(dtype)
    wanted = weight.multiply(x, bias, "silu")
    with loaded(kernels):
        for rows in (1, 2, 15, 16, 17, 33, 40):
            library.set_num_threads(rows % 3 + 1)
            assert_same_bits((weight.multiply(x[-rows:], bias, "silu"),), (wanted[-rows:],))
