"""The small steps between matrix products on a CPU, compiled by numba: norms, rotation, filling the cache, gates.

Each does in one pass what takes torch half a dozen operators, whose overhead is a fifth of a single stream's step.
Every number is computed from its own row in a fixed order, so a row has the same bits whatever stands beside it.
bfloat16 arrives as its bits in uint16; arithmetic is float32, rounded to nearest even where a result is stored.

Axes: T rows, d model width, H query heads, K key heads, D head dimension, B keys to a cache block.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numba
import numpy as np

from model.layers.attention_kernels import COMPILE, tanh
from model.layers.vectors import LANES, exp, fma, load, narrow, store, sum_of_lanes, where_greater, widen, zeros


@numba.njit(**COMPILE)
def _inverse_rms(x, i, width, eps):
    """1 / sqrt(mean(row^2) + eps) of the row x[i : i + width], summed lane by lane."""
    whole = width - width % LANES
    lanes = zeros()
    for at in range(i, i + whole, LANES):
        numbers = load(x, at)
        lanes = fma(numbers, numbers, lanes)
    total = sum_of_lanes(lanes)
    for at in range(i + whole, i + width):
        number = widen(x.flat[at])
        total = fma(number, number, total)
    return np.float32(1) / np.sqrt(total / np.float32(width) + eps)


@numba.njit(**COMPILE)
def rms_norm_row(x, i, weight, eps, out, o):
    """out[o : o + d] = x / sqrt(mean(x^2) + eps), rounded to the type of out, times weight [d]; x[i : i + d], which may
    be the same memory.
    """
    width = len(weight)
    inverse = _inverse_rms(x, i, width, eps)
    whole = width - width % LANES
    for at in range(0, whole, LANES):
        store(out, o + at, load(x, i + at) * inverse)
        store(out, o + at, load(out, o + at) * load(weight, at))
    for at in range(whole, width):
        normal = widen(narrow(widen(x.flat[i + at]) * inverse, out))
        out.flat[o + at] = narrow(normal * widen(weight[at]), out)


@numba.njit(**COMPILE)
def rms_norm_row_rounded_once(x, i, weight, eps, out, o):
    """The same, rounded only after the product with weight, which is float32."""
    width = len(weight)
    inverse = _inverse_rms(x, i, width, eps)
    whole = width - width % LANES
    for at in range(0, whole, LANES):
        store(out, o + at, load(x, i + at) * inverse * load(weight, at))
    for at in range(whole, width):
        out.flat[o + at] = narrow(widen(x.flat[i + at]) * inverse * weight[at], out)


def _rms_norm(x, weight, eps, out):
    """`rms_norm_row` of every row: x, out [T, d]."""
    numbers, normed = x.ravel(), out.ravel()
    for t in numba.prange(len(x)):
        i = np.int64(t) * len(weight)
        rms_norm_row(numbers, i, weight, eps, normed, i)


def _rms_norm_rounded_once(x, weight, eps, out):
    """`rms_norm_row_rounded_once` of every row: x, out [T, d]."""
    numbers, normed = x.ravel(), out.ravel()
    for t in numba.prange(len(x)):
        i = np.int64(t) * len(weight)
        rms_norm_row_rounded_once(numbers, i, weight, eps, normed, i)


@numba.njit(inline="always")
def _silu(x):
    """x / (1 + e**-x), by way of e**-|x|, which cannot overflow."""
    e = exp(where_greater(x, np.float32(0), np.float32(0) - x, x))
    return x * where_greater(x, np.float32(0), np.float32(1), e) / (e + np.float32(1))


@numba.njit(**COMPILE)
def silu_times_row(gate_up, t, width, out, o):
    """out[o : o + ff] = row t of `_silu_times`; width: ff."""
    whole = width - width % LANES
    gate, up = 2 * t * width, (2 * t + 1) * width
    for i in range(0, whole, LANES):
        store(out, o + i, _silu(load(gate_up, gate + i)))
        store(out, o + i, load(out, o + i) * load(gate_up, up + i))
    for i in range(whole, width):
        activated = widen(narrow(_silu(widen(gate_up.flat[gate + i])), out))
        out.flat[o + i] = narrow(activated * widen(gate_up.flat[up + i]), out)


def _silu_times(gate_up, out):
    """out = silu(gate), rounded to the model's type, times up. gate_up [T, 2 ff]: gate, then up; out [T, ff]."""
    numbers, gated, width = gate_up.ravel(), out.ravel(), out.shape[1]
    for t in numba.prange(len(gate_up)):
        row = np.int64(t)
        silu_times_row(numbers, row, width, gated, row * width)


def _soft_cap(x, cap):
    """x = cap * tanh(x / cap), in place. x [T, width], float32."""
    for t in numba.prange(len(x)):
        for i in range(x.shape[1]):
            x[t, i] = cap * tanh(x[t, i] / cap)


@numba.njit(**COMPILE)
def _turn(x, i, dim, cos, sin, t, out, o):
    """out[o : o + D] = x[i : i + D] with its first R dimensions turned, as row t of cos and sin says; in place, too."""
    num_turned = cos.shape[1]
    half, c = num_turned // 2, t * num_turned
    whole = half - half % LANES
    for d in range(0, whole, LANES):
        low, high = load(x, i + d), load(x, i + d + half)
        store(out, o + d, fma(low, load(cos, c + d), high * load(sin, c + d)))
        after = c + d + half
        store(out, o + d + half, fma(high, load(cos, after), low * load(sin, after)))
    for d in range(whole, half):
        low, high = widen(x.flat[i + d]), widen(x.flat[i + d + half])
        out.flat[o + d] = narrow(fma(low, cos[t, d], high * sin[t, d]), out)
        out.flat[o + d + half] = narrow(fma(high, cos[t, d + half], low * sin[t, d + half]), out)
    for d in range(num_turned, dim):
        out.flat[o + d] = narrow(widen(x.flat[i + d]), out)


@numba.njit(**COMPILE)
def rotate_row(qkv, t, cos, sin, turn, num_heads, num_key_heads, dim, q):
    """Row t of `_rotate_and_store` but for the cache: its keys are turned in their place."""
    first = t * (num_heads + 2 * num_key_heads) * dim
    for h in range(num_heads):
        _turn(qkv, first + h * dim, dim, cos, sin, turn, q, (t * num_heads + h) * dim)
    for i in range(first + num_heads * dim, first + (num_heads + num_key_heads) * dim, dim):
        _turn(qkv, i, dim, cos, sin, turn, qkv, i)


@numba.njit(**COMPILE)
def rotate_and_store_row(qkv, t, cos, sin, turn, slot, num_heads, q, keys, values):
    """Row t of `_rotate_and_store`, turned as row `turn` of cos and sin says. qkv and q in any shape."""
    num_key_heads, dim, size = keys.shape[1], keys.shape[2], keys.shape[3]
    block, place = slot // size, slot % size
    first = t * (num_heads + 2 * num_key_heads) * dim
    for h in range(num_heads):
        _turn(qkv, first + h * dim, dim, cos, sin, turn, q, (t * num_heads + h) * dim)
    turned = np.empty(dim, np.float32)
    for h in range(num_key_heads):
        _turn(qkv, first + (num_heads + h) * dim, dim, cos, sin, turn, turned, 0)
        for d in range(dim):
            keys[block, h, d, place] = narrow(turned[d], keys)
        value = first + (num_heads + num_key_heads + h) * dim
        for d in range(dim):
            values[block, h, place, d] = qkv.flat[value + d]


def _rotate_and_store(qkv, cos, sin, slots, q, keys, values):
    """Turn queries and keys by their positions; queries go to `q`, keys and values into the cache.

    qkv [T, H + 2K, D]: query heads, key heads, value heads; cos and sin [T, R] (sin with the sign of the first half
    turned): the first R <= D dimensions turn, none for [0, 0]; slots [T]: block * B + place; q [T, H, D] float32;
    keys [block, K, D, B]; values [block, K, B, D].
    """
    numbers, queries, num_heads = qkv.ravel(), q.ravel(), q.shape[1]
    for t in numba.prange(len(qkv)):
        row = np.int64(t)
        rotate_and_store_row(numbers, row, cos, sin, row, slots[t], num_heads, queries, keys, values)


def alone_and_shared(function: Callable[..., None]) -> tuple[Any, Any]:
    """A function compiled twice: its `prange` in this thread alone, and spread over all threads."""
    # Under another name: numba keeps compiled code by a function's name and line, however it was compiled, and would
    # take the one where the other is asked for.
    again = FunctionType(function.__code__, function.__globals__, f"{function.__name__}_shared")
    again.__qualname__ = again.__name__
    return numba.njit(**COMPILE)(function), numba.njit(parallel=True, **COMPILE)(again)


class RowKernel:
    """One function over rows, compiled twice: for a few rows in this thread, for many rows spread over all.

    Waking the other threads takes longer than the rows of a decode step do.
    """

    def __init__(self, function: Callable[..., None], rows_from: int) -> None:
        self._alone, self._shared = alone_and_shared(function)
        self._rows_from = rows_from

    def __call__(self, rows: np.ndarray, *rest: Any) -> None:
        """Run over `rows`, an array whose first axis is T, and the function's other arguments."""
        (self._shared if len(rows) >= self._rows_from else self._alone)(rows, *rest)


rms_norm = RowKernel(_rms_norm, rows_from=64)
rms_norm_rounded_once = RowKernel(_rms_norm_rounded_once, rows_from=64)
silu_times = RowKernel(_silu_times, rows_from=16)
soft_cap = RowKernel(_soft_cap, rows_from=4)
rotate_and_store = RowKernel(_rotate_and_store, rows_from=32)
