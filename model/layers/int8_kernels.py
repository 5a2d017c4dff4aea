"""Products of rows with int8 weights on a CPU, compiled by numba: in whole numbers, so that no order of a sum shows.

A row of activations becomes whole numbers of 15 bits (bfloat16) or 23 (float32) with one scale for all of them, each
of them two or three digits in base 256. Digits and weights are multiplied and added up exactly; the scales, the bias
and the activation follow in float32, element by element. So an element depends on its own row alone, whoever adds up
its whole numbers, and however.

What is lost of a number is at most 2**-16 (2**-24) of its row's largest. For comparison: to round that largest one to
bfloat16 (float32) may take 2**-9 (2**-25) of it.

Axes: R rows, L digits, K inputs, N outputs. Weights lie in blocks [N / 64, K / 4, 64, 4], filled up with zeros to
multiples of 64 outputs and 64 inputs: 16 outputs of 4 inputs each are a vector, as x86's products of bytes want it, and
as oneDNN packs them.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated,unreachable"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba
import numpy as np

from model.layers.attention_kernels import COMPILE
from model.layers.int8_vectors import HAS_BYTE_DOTS, add_dots, as_floats, four_bytes, load_integers
from model.layers.vectors import LANES, exp, fma, load, prefetch, store, where_greater, widen

BLOCK = 64
"""Outputs, and inputs, of which weights have a multiple."""

GROUP = 4
"""Inputs that lie side by side for each output."""

ZERO = 128
"""The byte that stands for the digit 0 where products want one factor without a sign: digits are -128 .. 127."""

WITHOUT_SIGN, WITH_SIGN = 0, 128
"""How digits are written: as digit + ZERO, or in two's complement, which is the same but for the highest bit."""

_AHEAD = 8192
"""Bytes by which weights are asked for before they are used: from 4,096 on, a single row took a quarter less time."""

NONE, SILU, GELU, GELU_TANH, RELU = range(5)
"""What is applied to each element of a product."""


@numba.njit(inline="always")
def filled_up(size):
    """To a multiple of BLOCK."""
    return (size + BLOCK - 1) // BLOCK * BLOCK


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


@numba.njit(**COMPILE)
def _digits_of(row, digits, form):
    """Write row [K] to digits [L, K], the most significant first; returns the scale, NaN where a number is not finite.

    A number is the scale times the sum of each digit times 256**(its place). form: WITHOUT_SIGN or WITH_SIGN.
    """
    num_digits = len(digits)
    limit = np.float32(127 << 8 * (num_digits - 1))  # no digit can exceed 127 then
    largest = _largest(row)
    is_finite = largest < np.float32(np.inf)
    if largest < _LEAST or not is_finite:
        digits[:] = ZERO ^ form
        return np.float32(0) if is_finite else np.float32(np.nan)
    inverse = limit / largest
    moved = np.int32(0)
    for _ in range(num_digits):
        moved = np.int32(moved * 256 + ZERO)
    for place in range(num_digits):
        shift = np.int32(8 * (num_digits - 1 - place))
        for k in range(len(row)):
            whole = np.int32(np.rint(widen(row[k]) * inverse)) + moved
            digits[place, k] = np.uint8(((whole >> shift) & 255) ^ form)
    return largest / limit


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
def _finish_lanes(sums, s, step, num_digits, scale, scales, bias, n, activation, out, o, count):
    """out[o : o + count] = activation(y * scale * scales[n : n + count] + bias[n : ...]).

    y is what the sums over each digit make together: sums[s : s + count], sums[s + step : ...] and so on. Indices count
    an array's numbers as if it had one axis; bias may be empty; count is a multiple of LANES.
    """
    for j in range(0, count, LANES):
        y = load(sums, s + j)
        for place in range(1, num_digits):
            y = fma(y, np.float32(256), load(sums, s + place * step + j))
        y = y * (load(scales, n + j) * scale)
        if bias.size:
            y = y + load(bias, n + j)
        store(out, o + j, _activate(y, activation))


@numba.njit(**COMPILE)
def _finish(sums, s, step, num_digits, scale, scales, bias, activation, out, r, first, last):
    """out[r, first : last], as `_finish_lanes` does it, of any number of outputs. scales and bias [N]."""
    row = r * out.shape[1]
    whole = last - (last - first) % LANES
    o = row + first
    _finish_lanes(sums, s, step, num_digits, scale, scales, bias, first, activation, out, o, whole - first)
    rest = last - whole
    if rest:  # in memory of its own, so that what an element is does not depend on where it stands
        own_sums, own_scales = np.zeros(num_digits * LANES, np.float32), np.zeros(LANES, np.float32)
        own_bias, own_out = np.zeros(min(bias.size, LANES), bias.dtype), np.empty(LANES, out.dtype)
        own_scales[:rest] = scales[whole:last]
        own_bias[:rest] = bias[whole:last]
        for j in range(rest):
            for place in range(num_digits):
                own_sums[place * LANES + j] = sums.flat[s + place * step + whole - first + j]
        _finish_lanes(own_sums, 0, LANES, num_digits, scale, own_scales, own_bias, 0, activation, own_out, 0, LANES)
        out[r, whole:last] = own_out[:rest]


@numba.njit(inline="always")
def _load_four(array, i):
    """64 integers, or 256 bytes, from array[i] on, as four vectors; `step` numbers of the array are one."""
    step = BLOCK // array.itemsize
    return (
        load_integers(array, i),
        load_integers(array, i + step),
        load_integers(array, i + 2 * step),
        load_integers(array, i + 3 * step),
    )


@numba.njit(inline="always")
def _add_four(totals, x, weights):
    """The products of a group of one row's digits with a group's weights of 64 outputs, added to four vectors."""
    return (
        add_dots(totals[0], x, weights[0]),
        add_dots(totals[1], x, weights[1]),
        add_dots(totals[2], x, weights[2]),
        add_dots(totals[3], x, weights[3]),
    )


@numba.njit(inline="always")
def _store_four(sums, i, totals):
    store(sums, i, as_floats(totals[0]))
    store(sums, i + LANES, as_floats(totals[1]))
    store(sums, i + 2 * LANES, as_floats(totals[2]))
    store(sums, i + 3 * LANES, as_floats(totals[3]))


@numba.njit(**COMPILE)
def byte_dots(digits, num_inputs, i, count, weights, block, starts, sums):
    """sums[j * BLOCK : (j + 1) * BLOCK] of rows i <= j < i + count of digits, times one block of the weights.

    digits, weights and sums (float32) have one axis here; count is at most 4; starts [N filled up] is -ZERO times the
    sum of each output's weights. Up to 3 digits behind a row are read, and meet weights of 0. Needs `HAS_BYTE_DOTS`.
    """
    at, last = block * BLOCK * filled_up(num_inputs), i + count - 1
    j, k, m = min(i + 1, last), min(i + 2, last), min(i + 3, last)
    a = b = c = d = _load_four(starts, block * BLOCK)
    for x in range(0, num_inputs, GROUP):
        if i == 0:  # later rows find the block in a cache
            prefetch(weights, at + _AHEAD, BLOCK * GROUP)
        w = _load_four(weights, at)
        at += BLOCK * GROUP
        a = _add_four(a, four_bytes(digits, i * num_inputs + x), w)
        b = _add_four(b, four_bytes(digits, j * num_inputs + x), w)
        if count > 2:
            c = _add_four(c, four_bytes(digits, k * num_inputs + x), w)
            d = _add_four(d, four_bytes(digits, m * num_inputs + x), w)
    if count > 2:
        _store_four(sums, k * BLOCK, c)
        _store_four(sums, m * BLOCK, d)
    _store_four(sums, i * BLOCK, a)
    _store_four(sums, j * BLOCK, b)


@numba.njit(**COMPILE)
def plain_dots(digits, num_inputs, i, count, weights, block, starts, sums):
    """What `byte_dots` does, on any CPU."""
    first = block * BLOCK * filled_up(num_inputs)
    for row in range(i, i + count):
        for j in range(BLOCK):
            total = starts[block * BLOCK + j]
            for k in range(num_inputs):
                at = first + (k // GROUP) * BLOCK * GROUP + j * GROUP + k % GROUP
                total += np.int32(digits[row * num_inputs + k]) * np.int32(weights[at])
            sums[row * BLOCK + j] = np.float32(total)


_dots = byte_dots if HAS_BYTE_DOTS else plain_dots


@numba.njit(parallel=True, **COMPILE)
def multiply_here(x, weights, starts, scales, bias, activation, out, num_digits):
    """out = activation(x W^T + bias), with the threads dealing out the blocks of W. x [R, K], out [R, N].

    weights as at the top, with one axis; starts as in `byte_dots`; scales [N], of each output's weights; bias [N] or
    empty.
    """
    num_rows, num_inputs = x.shape
    num_all = num_rows * num_digits
    digits = np.zeros(num_all * num_inputs + GROUP, np.uint8)
    by_row = digits[: num_all * num_inputs].reshape(num_rows, num_digits, num_inputs)
    row_scales = np.empty(num_rows, np.float32)
    for r in range(num_rows):
        row_scales[r] = _digits_of(x[r], by_row[r], WITHOUT_SIGN)
    for block in numba.prange(len(starts) // BLOCK):
        sums = np.empty(num_all * BLOCK, np.float32)
        for i in range(0, num_all, 4):
            _dots(digits, num_inputs, i, min(4, num_all - i), weights, block, starts, sums)
        first = block * BLOCK
        last = min(first + BLOCK, out.shape[1])
        for r in range(num_rows):
            s, scale = r * num_digits * BLOCK, row_scales[r]
            _finish(sums, s, BLOCK, num_digits, scale, scales, bias, activation, out, r, first, last)


@numba.njit(parallel=True, **COMPILE)
def to_digits(x, digits, row_scales):
    """digits [R, L, K] uint8 and row_scales [R] of x [R, K], as `_digits_of` makes them, in two's complement."""
    for r in numba.prange(len(x)):
        row_scales[r] = _digits_of(x[r], digits[r], WITH_SIGN)


@numba.njit(parallel=True, **COMPILE)
def finish(sums, row_scales, scales, bias, activation, out):
    """What `multiply_here` leaves in `out`, from the sums over each digit: [R, L, N], whole numbers in float32."""
    num_rows, num_digits, num_outputs = sums.shape
    for r in numba.prange(num_rows):
        s = r * num_digits * num_outputs
        scale = row_scales[r]
        _finish(sums, s, num_outputs, num_digits, scale, scales, bias, activation, out, r, 0, num_outputs)
