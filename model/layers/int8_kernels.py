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
from model.layers.int8_vectors import HAS_BYTE_DOTS, add_dots, four_bytes, load_integers, store_integers
from model.layers.vectors import exp, narrow, widen

BLOCK = 64
"""Outputs, and inputs, of which weights have a multiple."""

GROUP = 4
"""Inputs that lie side by side for each output."""

ZERO = 128
"""The byte that stands for the digit 0: x86's products want one factor without sign, so digits -128 .. 127 are moved.
"""

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
def _digits_of(row, digits):
    """Write row [K] to digits [L, K], the most significant first; returns the scale, NaN where a number is not finite.

    A number is scale * (whole number), and this the sum of (digit - ZERO) * 256**(its place).
    """
    num_digits = len(digits)
    limit = np.float32(127 << 8 * (num_digits - 1))  # no digit can exceed 127 then
    largest = _largest(row)
    is_finite = largest < np.float32(np.inf)
    if largest < _LEAST or not is_finite:
        digits[:] = ZERO
        return np.float32(0) if is_finite else np.float32(np.nan)
    inverse = limit / largest
    moved = np.int32(0)
    for _ in range(num_digits):
        moved = np.int32(moved * 256 + ZERO)
    for place in range(num_digits):
        shift = np.int32(8 * (num_digits - 1 - place))
        for k in range(len(row)):
            whole = np.int32(np.rint(widen(row[k]) * inverse)) + moved
            digits[place, k] = np.uint8((whole >> shift) & 255)
    return largest / limit


@numba.njit(inline="always")
def _sigmoid(x):
    e = exp(-abs(x))
    return (np.float32(1) if x >= np.float32(0) else e) / (np.float32(1) + e)


@numba.njit(inline="always")
def _erf(x):
    """Within 2e-7: an odd rational function (coefficients of Eigen's), at most 4, where erf is 1 in float32."""
    x = min(max(x, np.float32(-4)), np.float32(4))
    z = x * x
    p = np.float32(-2.72614225801306e-10)
    p = p * z + np.float32(2.77068142495902e-08)
    p = p * z + np.float32(-2.10102402082508e-06)
    p = p * z + np.float32(-5.69250639462346e-05)
    p = p * z + np.float32(-7.34990630326855e-04)
    p = p * z + np.float32(-2.95459980854025e-03)
    p = p * z + np.float32(-1.60960333262415e-02)
    q = np.float32(-1.45660718464996e-05)
    q = q * z + np.float32(-2.13374055278905e-04)
    q = q * z + np.float32(-1.68282697438203e-03)
    q = q * z + np.float32(-7.37332916720468e-03)
    q = q * z + np.float32(-1.42647390514189e-02)
    return x * p / q


@numba.njit(**COMPILE)
def _activate(y, activation):
    """In place, of y [BLOCK] float32; loops of one length, so that an element's place in them is all the same."""
    if activation == SILU:
        for j in range(BLOCK):
            y[j] *= _sigmoid(y[j])
    elif activation == GELU:
        for j in range(BLOCK):
            y[j] *= np.float32(0.5) + np.float32(0.5) * _erf(y[j] * np.float32(0.7071067811865476))
    elif activation == GELU_TANH:  # (1 + tanh u) / 2 is the sigmoid of 2 u
        for j in range(BLOCK):
            cubic = y[j] + np.float32(0.044715) * y[j] * y[j] * y[j]
            y[j] *= _sigmoid(np.float32(1.5957691216057308) * cubic)
    elif activation == RELU:
        for j in range(BLOCK):
            y[j] = max(y[j], np.float32(0))


@numba.njit(**COMPILE)
def _finish(sums, scale, r, first, scales, bias, activation, times, out):
    """out[r, first : first + BLOCK] from the sums over each digit of a row, sums [L, BLOCK] float32, and its scale.

    scales and bias [N], times [R, N]; bias and times may be empty.
    """
    y = np.zeros(BLOCK, np.float32)
    for place in range(len(sums)):
        for j in range(BLOCK):
            y[j] = y[j] * np.float32(256) + sums[place, j]  # a power of 2: rounded once
    count = min(BLOCK, out.shape[1] - first)
    for j in range(count):
        y[j] *= scale * scales[first + j]
    if len(bias):
        for j in range(count):
            y[j] += widen(bias[first + j])
    _activate(y, activation)
    if len(times):
        for j in range(count):
            y[j] *= widen(times[r, first + j])
    for j in range(count):
        out[r, first + j] = narrow(y[j], out)


@numba.njit(**COMPILE)
def byte_dots(digits, a, b, weights, block, num_inputs, starts, sums):
    """sums [2 BLOCK] int32: two rows of digits, from digits[a] and digits[b] on, times one block of the weights.

    digits and weights have one axis here; starts [N filled up] is -ZERO times the sum of each output's weights. Up to 3
    digits behind a row are read, and meet weights of 0. Needs `HAS_BYTE_DOTS`.
    """
    at, start = block * BLOCK * filled_up(num_inputs), block * BLOCK
    a0, a1 = load_integers(starts, start), load_integers(starts, start + 16)
    a2, a3 = load_integers(starts, start + 32), load_integers(starts, start + 48)
    b0, b1, b2, b3 = a0, a1, a2, a3
    for k in range(0, num_inputs, GROUP):
        w0, w1 = load_integers(weights, at), load_integers(weights, at + 64)
        w2, w3 = load_integers(weights, at + 128), load_integers(weights, at + 192)
        at += BLOCK * GROUP
        x = four_bytes(digits, a + k)
        a0, a1, a2, a3 = add_dots(a0, x, w0), add_dots(a1, x, w1), add_dots(a2, x, w2), add_dots(a3, x, w3)
        x = four_bytes(digits, b + k)
        b0, b1, b2, b3 = add_dots(b0, x, w0), add_dots(b1, x, w1), add_dots(b2, x, w2), add_dots(b3, x, w3)
    store_integers(sums, 0, a0)
    store_integers(sums, 16, a1)
    store_integers(sums, 32, a2)
    store_integers(sums, 48, a3)
    store_integers(sums, 64, b0)
    store_integers(sums, 80, b1)
    store_integers(sums, 96, b2)
    store_integers(sums, 112, b3)


@numba.njit(**COMPILE)
def plain_dots(digits, a, b, weights, block, num_inputs, starts, sums):
    """What `byte_dots` does, on any CPU."""
    first = block * BLOCK * filled_up(num_inputs)
    for row in range(2):
        offset = b if row else a
        for j in range(BLOCK):
            total = starts[block * BLOCK + j]
            for k in range(num_inputs):
                at = first + (k // GROUP) * BLOCK * GROUP + j * GROUP + k % GROUP
                total += np.int32(digits[offset + k]) * np.int32(weights[at])
            sums[row * BLOCK + j] = total


_dots = byte_dots if HAS_BYTE_DOTS else plain_dots


@numba.njit(parallel=True, **COMPILE)
def multiply_here(x, weights, starts, scales, bias, activation, times, out, num_digits):
    """out = activation(x W^T + bias) * times, with the threads dealing out the blocks of W. x [R, K], out [R, N].

    weights as at the top, with one axis; starts as in `byte_dots`; scales [N], of each output's weights; bias [N] and
    times [R, N] or empty.
    """
    num_rows, num_inputs = x.shape
    digits = np.zeros(num_rows * num_digits * num_inputs + GROUP, np.uint8)
    by_row = digits[: num_rows * num_digits * num_inputs].reshape(num_rows, num_digits, num_inputs)
    row_scales = np.empty(num_rows, np.float32)
    for r in range(num_rows):
        row_scales[r] = _digits_of(x[r], by_row[r])
    for block in numba.prange(len(starts) // BLOCK):
        pair = np.empty(2 * BLOCK, np.int32)
        sums = np.empty((num_digits, BLOCK), np.float32)
        for r in range(num_rows):
            for place in range(0, num_digits, 2):
                after = min(place + 1, num_digits - 1)
                a, b = (r * num_digits + place) * num_inputs, (r * num_digits + after) * num_inputs
                _dots(digits, a, b, weights, block, num_inputs, starts, pair)
                sums[place] = pair[:BLOCK]
                sums[after] = pair[BLOCK:]
            _finish(sums, row_scales[r], r, block * BLOCK, scales, bias, activation, times, out)


@numba.njit(parallel=True, **COMPILE)
def to_digits(x, digits, row_scales):
    """digits [R, L, K] uint8 and row_scales [R] of x [R, K], as `_digits_of` makes them."""
    for r in numba.prange(len(x)):
        row_scales[r] = _digits_of(x[r], digits[r])


@numba.njit(parallel=True, **COMPILE)
def finish(sums, row_scales, scales, bias, activation, times, out):
    """What `multiply_here` leaves in `out`, from the sums over each digit: [R, L, N], whole numbers in float32."""
    num_rows, num_digits, num_outputs = sums.shape
    for r in numba.prange(num_rows):
        some = np.zeros((num_digits, BLOCK), np.float32)
        for first in range(0, num_outputs, BLOCK):
            count = min(BLOCK, num_outputs - first)
            some[:, :count] = sums[r, :, first : first + count]
            _finish(some, row_scales[r], r, first, scales, bias, activation, times, out)
