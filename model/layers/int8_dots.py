"""Products of whole numbers of 8 bits, compiled by numba: exact, so that every way of making them has the same bits.

On tiles of the matrix unit where there are some (`tiles`, AMX), else by AVX-512's dot products of bytes, else plainly.

Axes: R rows, K inputs, N outputs. Arrays come flat, and everything lies in tiles of 1 KB, since lines of a tile that
lie far apart displace each other in the first cache:

- Rows [R / 16][K / 64][16][64], filled up with whatever numbers.
- Weights [N / 32][K / 64][2][16][16][4], filled up with zeros: for 32 outputs two tiles, with four inputs side by side
  for each output, as x86's products of bytes want them.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated,unreachable"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba
import numpy as np

from model.layers.attention_kernels import COMPILE
from model.layers.int8_vectors import (
    HAS_BYTE_DOTS,
    add_dots,
    four_bytes,
    integers,
    load_integers,
    store_integers,
    sum_of_integers,
    without_sign,
)
from model.layers.tiles import (
    TILE_ROWS,
    clear,
    fetch,
    give_up,
    has_byte_tiles,
    multiply_bytes,
    read,
    shapes,
    use,
    write,
)

BLOCK = 32
"""Outputs that are computed together."""

WIDTH = 64
"""Inputs of a row of a tile."""

TILE = TILE_ROWS * WIDTH

GROUP = 4
"""Inputs that lie side by side for each output."""

_ALL_128 = 0x80808080
"""Four bytes."""

_AHEAD = 8192
"""Bytes by which weights are asked for before they are used, into the first cache: from 4,096 on a single row takes a
quarter less time.
"""

_SHAPES = shapes([TILE_ROWS] * 8)
"""Sums 0 to 3, rows 4 and 5, weights 6 and 7. Fewer rows take no less time: weights are what is waited for."""


@numba.njit(inline="always")
def filled_up(size, multiple):
    """To a multiple."""
    return (size + multiple - 1) // multiple * multiple


@numba.njit(inline="always")
def row_at(r, width):
    """Where the first 64 numbers of row r begin; the next 64 are a tile further. width: inputs, filled up."""
    return r // TILE_ROWS * TILE_ROWS * width + r % TILE_ROWS * WIDTH


@numba.njit(**COMPILE)
def _multiply_tiles(rows, first, num_rows, width, weights, block, sums, s):
    """`tile_dots` of up to 32 rows, into sums from s on."""
    x, second, at = first * width, (first + TILE_ROWS) * width, block * BLOCK * width
    is_first, both = first == 0, num_rows > TILE_ROWS
    clear(0)
    clear(1)
    clear(2)
    clear(3)
    for _ in range(0, width, WIDTH):
        read(4, rows, x, WIDTH)
        if is_first:  # later rows find the block in a cache
            fetch(weights, at + _AHEAD, WIDTH)
        read(6, weights, at, WIDTH)
        multiply_bytes(0, 4, 6)
        if is_first:
            fetch(weights, at + _AHEAD + TILE, WIDTH)
        read(7, weights, at + TILE, WIDTH)
        multiply_bytes(1, 4, 7)
        if both:
            read(5, rows, second, WIDTH)
            multiply_bytes(2, 5, 6)
            multiply_bytes(3, 5, 7)
        at += 2 * TILE
        x += TILE
        second += TILE
    write(0, sums, s, 4 * BLOCK)
    write(1, sums, s + TILE_ROWS, 4 * BLOCK)
    if both:
        write(2, sums, s + TILE_ROWS * BLOCK, 4 * BLOCK)
        write(3, sums, s + TILE_ROWS * BLOCK + TILE_ROWS, 4 * BLOCK)


@numba.njit(**COMPILE)
def tile_dots(rows, first, num_rows, width, weights, block, sums):
    """sums [num_rows, 32] int32 = rows from `first` on, a multiple of 16, times one block of the weights.

    rows and weights: int8, as at the top; width: inputs, filled up; sums has room for whole tiles of rows. Needs
    `has_byte_tiles`, and `ready`.
    """
    for r in range(0, num_rows, 2 * TILE_ROWS):
        num = min(2 * TILE_ROWS, num_rows - r)
        _multiply_tiles(rows, first + r, num, width, weights, block, sums, r * BLOCK)


@numba.njit(inline="always")
def _start(rows, x, width):
    """What takes back, from a row's sums, the 128 that `byte_dots` adds to weights."""
    total = integers(0)
    for i in range(x, x + width * TILE_ROWS, TILE):
        total = add_dots(total, integers(_ALL_128), load_integers(rows, i))
    start = integers(-sum_of_integers(total))
    return start, start


@numba.njit(inline="always")
def _add(totals, weights, x):
    """The products of four numbers of a row with the weights of 32 outputs, added to two vectors."""
    return add_dots(totals[0], weights[0], x), add_dots(totals[1], weights[1], x)


@numba.njit(inline="always")
def _store(sums, r, totals):
    store_integers(sums, r * BLOCK, totals[0])
    store_integers(sums, r * BLOCK + TILE_ROWS, totals[1])


@numba.njit(**COMPILE)
def byte_dots(rows, first, num_rows, width, weights, block, sums):
    """What `tile_dots` does, four rows at a time. Needs `HAS_BYTE_DOTS`."""
    for i in range(0, num_rows, 4):
        last, is_first, more = num_rows - 1, first + i == 0, i + 2 < num_rows
        j, k, m = min(i + 1, last), min(i + 2, last), min(i + 3, last)
        xi, xj = row_at(first + i, width), row_at(first + j, width)
        xk, xm = row_at(first + k, width), row_at(first + m, width)
        a, b, c, d = _start(rows, xi, width), _start(rows, xj, width), _start(rows, xk, width), _start(rows, xm, width)
        at = block * BLOCK * width
        for tile in range(0, width * TILE_ROWS, TILE):
            if is_first:  # later rows find the block in a cache
                fetch(weights, at + _AHEAD, WIDTH)
                fetch(weights, at + _AHEAD + TILE, WIDTH)
            for x in range(0, WIDTH, GROUP):
                line = at + x * TILE_ROWS
                w = without_sign(load_integers(weights, line)), without_sign(load_integers(weights, line + TILE))
                a = _add(a, w, four_bytes(rows, xi + tile + x))
                b = _add(b, w, four_bytes(rows, xj + tile + x))
                if more:
                    c = _add(c, w, four_bytes(rows, xk + tile + x))
                    d = _add(d, w, four_bytes(rows, xm + tile + x))
            at += 2 * TILE
        if more:
            _store(sums, m, d)
            _store(sums, k, c)
        _store(sums, j, b)
        _store(sums, i, a)


@numba.njit(**COMPILE)
def plain_dots(rows, first, num_rows, width, weights, block, sums):
    """What `tile_dots` does, on any CPU."""
    for r in range(num_rows):
        for n in range(BLOCK):
            at = block * BLOCK * width + n // TILE_ROWS * TILE + n % TILE_ROWS * GROUP
            total = np.int32(0)
            for k in range(width):
                x = rows[row_at(first + r, width) + k // WIDTH * TILE + k % WIDTH]
                w = weights[at + k // WIDTH * 2 * TILE + k % WIDTH // GROUP * WIDTH + k % GROUP]
                total += np.int32(x) * np.int32(w)
            sums[r * BLOCK + n] = total


HAS_FAST_DOTS = has_byte_tiles() or HAS_BYTE_DOTS
"""Whether this CPU has what makes these products fast."""

dots = tile_dots if has_byte_tiles() else byte_dots if HAS_BYTE_DOTS else plain_dots


@numba.njit(**COMPILE)
def _take_tiles():
    use(_SHAPES)


@numba.njit(**COMPILE)
def _give_up_tiles():
    give_up()


@numba.njit(**COMPILE)
def _do_nothing():
    pass


ready, done = (_take_tiles, _give_up_tiles) if has_byte_tiles() else (_do_nothing, _do_nothing)
"""To be called by a thread before and after `dots` that nothing else comes in between."""
