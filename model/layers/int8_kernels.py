"""Products of rows with int8 weights on a CPU, compiled by numba: in whole numbers, so that no order of a sum shows.

A row of activations becomes whole numbers of 15 bits (bfloat16) or 23 (float32) with one scale for all of them, each
of them two or three digits in base 256. Digits and weights are multiplied and added up exactly, by `int8_dots`; the
scales, the bias and the activation follow in float32, element by element. So an element depends on its own row alone,
whoever adds up its whole numbers, and however.

What is lost of a number is at most 2**-16 (2**-24) of its row's largest. For comparison: to round that largest one to
bfloat16 (float32) may take 2**-9 (2**-25) of it.

Axes: R rows, L digits, K inputs, N outputs. Digits are rows of `int8_dots`, the L of a row one after the other, the
most significant first; they and the weights lie as it says.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated,unreachable"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba
import numpy as np

from model.layers.attention_kernels import COMPILE
from model.layers.int8_dots import BLOCK, TILE, WIDTH, done, dots, filled_up, ready, row_at
from model.layers.int8_vectors import as_floats, load_integers, signed_digits, store_bytes
from model.layers.tiles import TILE_ROWS
from model.layers.vectors import LANES, exp, fma, load, store, where_greater, widen, zeros

NONE, SILU, GELU, GELU_TANH, RELU = range(5)
"""What is applied to each element of a product."""


ROWS_TOGETHER = 16
"""Whose sums are made before they are used: their digits fill whole tiles, whether there are two or three."""

SUMS = ROWS_TOGETHER * 3 * BLOCK
"""Numbers that these are at most."""

_LEAST = np.float32(1e-30)
"""A row with nothing larger counts as zeros, for its scale would not be a normal number."""


@numba.njit(inline="always")
def _bits(x):
    return np.float32(x).view(np.uint32)


@numba.njit(**COMPILE)
def _largest(row):
    """The largest |x|; not finite where any is not."""
    most = np.uint32(0)  # without their sign the bits of numbers, infinity and NaN ascend
    for k in range(len(row)):
        most = max(most, np.uint32(_bits(widen(row[k])) & np.uint32(0x7FFFFFFF)))
    return np.uint32(most).view(np.float32)


@numba.njit(inline="always")
def num_digits(x):
    """L of such rows, of float32 or bfloat16 as its bits in uint16."""
    return 3 if x.itemsize == 4 else 2


@numba.njit(**COMPILE)
def digits_of_row(x, r, num_inputs, digits):
    """Write row r of x [R, K], flat, to digits; returns its scale, NaN where a number is not finite: nothing is written
    then.

    A number is the scale times the sum of each digit times 256**(its place).
    """
    count, width, whole = num_digits(x), filled_up(num_inputs, WIDTH), num_inputs - num_inputs % LANES
    row = x[r * num_inputs : (r + 1) * num_inputs]
    limit = np.float32(127 << 8 * (count - 1))  # no digit can exceed 127 then
    largest = _largest(row)
    if not largest < np.float32(np.inf):
        return np.float32(np.nan)
    inverse = limit / largest if largest >= _LEAST else np.float32(0)
    rest = np.zeros(LANES if whole < num_inputs else 0, x.dtype)
    rest[: num_inputs - whole] = row[whole:]
    moved = np.int64(0x808080 if count == 3 else 0x8080)
    for place in range(count):
        d = row_at(r * count + place, width)
        for k in range(0, whole, LANES):
            numbers = signed_digits(load(row, k) * inverse, moved)
            store_bytes(digits, d + k // WIDTH * TILE + k % WIDTH, numbers, count - 1 - place)
        if whole < num_inputs:
            numbers = signed_digits(load(rest, 0) * inverse, moved)
            store_bytes(digits, d + whole // WIDTH * TILE + whole % WIDTH, numbers, count - 1 - place)
    return largest / limit if largest >= _LEAST else np.float32(0)


@numba.njit(inline="always")
def _sigmoid(x):
    """1 / (1 + e**-x), by way of e**-|x|."""
    e = exp(where_greater(x, np.float32(0), np.float32(0) - x, x))
    return where_greater(x, np.float32(0), np.float32(1), e) / (e + np.float32(1))


@numba.njit(inline="always")
def _erf(x):
    """Within 2e-7: an odd rational function (coefficients of Eigen's), at most 4, where erf is 1 in float32."""
    x = where_greater(x, np.float32(4), np.float32(4), x)
    x = where_greater(np.float32(-4), x, np.float32(-4), x)
    z = x * x
    p = fma(z, np.float32(-2.72614225801306e-10), np.float32(2.77068142495902e-08))
    p = fma(p, z, np.float32(-2.10102402082508e-06))
    p = fma(p, z, np.float32(-5.69250639462346e-05))
    p = fma(p, z, np.float32(-7.34990630326855e-04))
    p = fma(p, z, np.float32(-2.95459980854025e-03))
    p = fma(p, z, np.float32(-1.60960333262415e-02))
    q = fma(z, np.float32(-1.45660718464996e-05), np.float32(-2.13374055278905e-04))
    q = fma(q, z, np.float32(-1.68282697438203e-03))
    q = fma(q, z, np.float32(-7.37332916720468e-03))
    q = fma(q, z, np.float32(-1.42647390514189e-02))
    return x * p / q


@numba.njit(inline="always")
def _activate(y, activation):
    """Of a vector."""
    if activation == SILU:
        return y * _sigmoid(y)
    if activation == GELU:
        return y * fma(_erf(y * np.float32(0.7071067811865476)), np.float32(0.5), np.float32(0.5))
    if activation == GELU_TANH:  # (1 + tanh u) / 2 is the sigmoid of 2 u
        cubic = fma(y * y * y, np.float32(0.044715), y)
        return y * _sigmoid(cubic * np.float32(1.5957691216057308))
    if activation == RELU:
        return where_greater(np.float32(0), y, np.float32(0), y)
    return y


@numba.njit(**COMPILE)
def _finish(sums, count, row_scales, top, bottom, scales, n, bias, b, activation, out, o, stride):
    """32 numbers of each row top <= r < bottom of out, from o on, `stride` apart.

    They are activation(y * row_scales[r] * scales[n : n + 32] + bias[b : b + 32]), where y is what the sums over each
    of `count` digits make together, which lie in sums one after the other, row by row; bias may be empty.
    """
    for j in range(0, BLOCK, LANES):
        of_outputs = load(scales, n + j)
        offset = load(bias, b + j) if bias.size else zeros()
        i, to = j, o + j
        for r in range(top, bottom):
            y = as_floats(load_integers(sums, i))
            for _ in range(1, count):
                i += BLOCK
                y = fma(y, np.float32(256), as_floats(load_integers(sums, i)))
            i += BLOCK
            y = y * (of_outputs * row_scales[r])
            if bias.size:
                y = y + offset
            store(out, to, _activate(y, activation))
            to += stride


@numba.njit(**COMPILE)
def _finish_some(sums, count, row_scales, top, bottom, scales, n, bias, activation, out, o, stride, num):
    """`_finish` of fewer numbers, in memory of its own, so that what a number is does not depend on where it stands."""
    own_bias = np.zeros(min(BLOCK, bias.size), bias.dtype)
    own_bias[:num] = bias[n : n + num]
    own = np.empty((bottom - top, BLOCK), out.dtype)
    _finish(sums, count, row_scales, top, bottom, scales, n, own_bias, 0, activation, own.ravel(), 0, BLOCK)
    for r in range(bottom - top):
        out[o + r * stride : o + r * stride + num] = own[r, :num]


@numba.njit(**COMPILE)
def multiply_blocks(digits, row_scales, count, num_inputs, weights, scales, bias, activation, first, end, sums, out):
    """The columns of blocks first <= b < end of out = activation(x W^T + bias), where digits and row_scales [R] stand
    for x; the work of one thread.

    count: L; weights, bias [N] or empty, and out [R, N] are flat; scales, of each output's weights, are filled up to a
    multiple of 32; sums [>= SUMS] int32.
    """
    num_rows, num_outputs, width = len(row_scales), len(out) // len(row_scales), filled_up(num_inputs, WIDTH)
    ready()
    for block in range(first, end):
        n = block * BLOCK
        num = num_outputs - n
        for top in range(0, num_rows, ROWS_TOGETHER):
            bottom, o = min(top + ROWS_TOGETHER, num_rows), top * num_outputs + n
            dots(digits, top * count, (bottom - top) * count, width, weights, block, sums)
            of_rows = count, row_scales, top, bottom
            if num >= BLOCK:
                _finish(sums, *of_rows, scales, n, bias, n, activation, out, o, num_outputs)
            else:
                _finish_some(sums, *of_rows, scales, n, bias, activation, out, o, num_outputs, num)
    done()


@numba.njit(parallel=True, **COMPILE)
def multiply(x, num_rows, weights, scales, bias, activation, out, num_parts):
    """out = activation(x W^T + bias), the blocks of W dealt out in so many parts.

    x [R, K] and out [R, N] flat, the rest as in `multiply_blocks`.
    """
    count, num_outputs = num_digits(x), len(out) // num_rows
    num_inputs, num_blocks = len(x) // num_rows, (num_outputs + BLOCK - 1) // BLOCK
    digits = np.empty(filled_up(num_rows * count, TILE_ROWS) * filled_up(num_inputs, WIDTH), np.int8)
    row_scales = np.empty(num_rows, np.float32)
    for r in numba.prange(num_rows):
        row_scales[r] = digits_of_row(x, r, num_inputs, digits)
    for part in numba.prange(num_parts):
        first, end = part * num_blocks // num_parts, (part + 1) * num_blocks // num_parts
        sums = np.empty(SUMS, np.int32)
        multiply_blocks(digits, row_scales, count, num_inputs, weights, scales, bias, activation, first, end, sums, out)
