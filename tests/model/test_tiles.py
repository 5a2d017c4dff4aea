"""The matrix unit's instructions against the order of sums that Intel's manual gives."""

import numba
import numpy as np
import pytest

from model.layers.tiles import TILE_INPUTS, TILE_ROWS, clear, give_up, has_tiles, multiply, read, shapes, use, write

pytestmark = pytest.mark.skipif(not has_tiles(), reason="this CPU has no tiles")


def _as_bfloat16(x: np.ndarray) -> np.ndarray:
    """float32, cut off after the bits that bfloat16 has."""
    return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def _upper_halves(x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("rows", [1, 3, TILE_ROWS])
def test_multiply_adds_a_chain_of_even_inputs_and_one_of_odd_inputs(rows: int) -> None:
    @numba.njit
    def product(x, w, sizes, num_inputs, out):  # type: ignore[no-untyped-def]
        use(sizes)
        clear(0)
        for j in range(0, num_inputs, TILE_INPUTS):
            read(1, x, j, 2 * num_inputs)
            read(2, w, TILE_ROWS * j, 64)
            multiply(0, 1, 2)
        write(0, out, 0, 64)
        give_up()

    rng = np.random.default_rng()
    num_inputs = 3 * TILE_INPUTS
    scales = np.exp2(rng.integers(-9, 9, num_inputs)).astype(np.float32)  # so that the order of a sum shows
    x = _as_bfloat16(rng.standard_normal((rows, num_inputs), np.float32) * scales)
    w = _as_bfloat16(rng.standard_normal((num_inputs, TILE_ROWS), np.float32))
    pairs = w.reshape(num_inputs // 2, 2, TILE_ROWS).transpose(0, 2, 1)
    out = np.empty((rows, TILE_ROWS), np.float32)
    sizes = shapes([rows, rows, *[TILE_ROWS] * 6])
    product(_upper_halves(x), _upper_halves(np.ascontiguousarray(pairs)), sizes, num_inputs, out)

    expected = np.zeros((rows, TILE_ROWS), np.float32)
    for j in range(0, num_inputs, TILE_INPUTS):
        chains = []
        for first in (j, j + 1):
            chain = np.zeros_like(expected)
            for i in range(first, j + TILE_INPUTS, 2):  # float64 holds the product and the sum, so this rounds once
                chain = (chain + x[:, i : i + 1].astype(np.float64) * w[i].astype(np.float64)).astype(np.float32)
            chains.append(chain)
        expected += chains[0] + chains[1]
    np.testing.assert_array_equal(out, expected)
