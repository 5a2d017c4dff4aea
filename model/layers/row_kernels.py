"""The small steps between matrix products on a CPU, compiled by numba: norms, rotation, filling the cache.

Each does in one pass what takes torch half a dozen operators, whose overhead is a fifth of a single stream's step.
Every number is computed from its own row in a fixed order, so a row has the same bits whatever stands beside it.
bfloat16 arrives as its bits in uint16; arithmetic is float32, rounded to nearest even where a result is stored.

Axes: T rows, d model width, H query heads, K key heads, D head dimension, B keys to a cache block.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import overload

from model.layers.attention_kernels import COMPILE, tanh, widen

_LANES = 16


def _narrow(x, like):
    """x, float32, as an element of the array `like`: rounded to bfloat16 bits where that holds uint16."""
    raise NotImplementedError("only for compiled code")


@overload(_narrow, inline="always")
def _narrow_overload(x, like):
    if isinstance(like.dtype, types.Integer):

        def round_to_bfloat16(x, like):
            bits = np.float32(x).view(np.uint32)
            odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
            return np.uint16(np.uint32(bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))

        return round_to_bfloat16
    return lambda x, like: x


@numba.njit(**COMPILE)
def _inverse_rms(row, eps):
    """1 / sqrt(mean(row^2) + eps), summed lane by lane."""
    width = len(row)
    whole = width - width % _LANES
    lanes = np.zeros(_LANES, np.float32)
    for start in range(0, whole, _LANES):
        for i in range(_LANES):
            a = widen(row[start + i])
            lanes[i] += a * a
    total = np.float32(0)
    for i in range(_LANES):
        total += lanes[i]
    for i in range(whole, width):
        a = widen(row[i])
        total += a * a
    return np.float32(1) / np.sqrt(total / np.float32(width) + eps)


def _rms_norm(x, weight, eps, out):
    """out = x / sqrt(mean(x^2) + eps), rounded to the model's type, times weight. x, out [T, d]; weight [d]."""
    for t in numba.prange(len(x)):
        inverse = _inverse_rms(x[t], eps)
        for i in range(x.shape[1]):
            normal = widen(_narrow(widen(x[t, i]) * inverse, out))
            out[t, i] = _narrow(normal * widen(weight[i]), out)


def _rms_norm_rounded_once(x, weight, eps, out):
    """The same, rounded only after the product with weight, which is float32."""
    for t in numba.prange(len(x)):
        inverse = _inverse_rms(x[t], eps)
        for i in range(x.shape[1]):
            out[t, i] = _narrow(widen(x[t, i]) * inverse * weight[i], out)


def _soft_cap(x, cap):
    """x = cap * tanh(x / cap), in place. x [T, width], float32."""
    for t in numba.prange(len(x)):
        for i in range(x.shape[1]):
            x[t, i] = cap * tanh(x[t, i] / cap)


def _rotate_and_store(qkv, cos, sin, slots, q, keys, values):
    """Turn queries and keys by their positions; queries go to `q`, keys and values into the cache.

    qkv [T, H + 2K, D]: query heads, key heads, value heads; cos and sin [T, R] (sin with the sign of the first half
    turned): the first R <= D dimensions turn, none for [0, 0]; slots [T]: block * B + place; q [T, H, D] float32;
    keys [block, K, D, B]; values [block, K, B, D].
    """
    num_key_heads, dim, size = keys.shape[1], keys.shape[2], keys.shape[3]
    num_heads = q.shape[1]
    half = cos.shape[1] // 2
    for t in numba.prange(len(qkv)):
        block, place = slots[t] // size, slots[t] % size
        turned = np.empty(dim, np.float32)
        for h in range(num_heads + num_key_heads):
            for d in range(dim):
                turned[d] = widen(qkv[t, h, d])
            for d in range(half):
                low, high = widen(qkv[t, h, d]), widen(qkv[t, h, d + half])
                turned[d] = low * cos[t, d] + high * sin[t, d]
                turned[d + half] = high * cos[t, d + half] + low * sin[t, d + half]
            if h < num_heads:
                for d in range(dim):
                    q[t, h, d] = turned[d]
            else:
                for d in range(dim):
                    keys[block, h - num_heads, d, place] = _narrow(turned[d], keys)
        for h in range(num_key_heads):
            for d in range(dim):
                values[block, h, place, d] = qkv[t, num_heads + num_key_heads + h, d]


class RowKernel:
    """One function over rows, compiled twice: for a few rows in this thread, for many rows spread over all.

    Waking the other threads takes longer than the rows of a decode step do.
    """

    def __init__(self, function: Callable[..., None], rows_from: int) -> None:
        self._alone = numba.njit(**COMPILE)(function)
        self._shared = numba.njit(parallel=True, **COMPILE)(function)
        self._rows_from = rows_from

    def __call__(self, rows: np.ndarray, *rest: Any) -> None:
        """Run over `rows`, an array whose first axis is T, and the function's other arguments."""
        (self._shared if len(rows) >= self._rows_from else self._alone)(rows, *rest)


rms_norm = RowKernel(_rms_norm, rows_from=64)
rms_norm_rounded_once = RowKernel(_rms_norm_rounded_once, rows_from=64)
soft_cap = RowKernel(_soft_cap, rows_from=4)
rotate_and_store = RowKernel(_rotate_and_store, rows_from=32)
