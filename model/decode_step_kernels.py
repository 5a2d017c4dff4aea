"""A decoder's blocks for a few rows in one call, compiled by numba: nothing of Python or torch stands between products.

Knows arrays and addresses; which networks it may stand for is `decode_step`'s to say. Each number is made by the same
functions, in the same order, as block by block: only who calls them is another.

Axes: R rows, d model width, H query heads, K key heads, D head dimension, ff, B keys to a cache block, L layers.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba
import numpy as np
from numba import types
from numba.extending import overload

from model.layers import int8_dots, int8_kernels
from model.layers.addresses import array_at
from model.layers.attention_kernels import COMPILE, attend_item
from model.layers.few_rows_kernels import BLOCK, multiply_columns, store_columns
from model.layers.narrow_kernels import multiply_blocks
from model.layers.row_kernels import (
    alone_and_shared,
    rms_norm_row,
    rms_norm_row_rounded_once,
    rotate_and_store_row,
    rotate_row,
    silu_times_row,
)
from model.layers.vectors import LANES, load, narrow, store, widen

WEIGHT, BIAS, CHAIN, INPUTS, OUTPUTS = range(5)
"""A product's columns in the table of layers: addresses (0: no bias) and what `multiply_columns` must know."""
NARROW = 0
"""The chain of a weight in bfloat16 that multiplies rows of float32: see `narrow_kernels`."""
SCALES = CHAIN
"""Of a weight in int8, whose sums have no chains: the address of its scales. All weights are such ones or none."""
QKV, OUT, GATE_UP, DOWN = range(0, 20, 5)
"""Where the products of a layer begin."""
BEFORE_ATTENTION, BEFORE_MLP, Q_NORM, Q_WIDTH, K_NORM, K_WIDTH, COS, SIN, TURNED, SIGHT = range(20, 30)
"""Addresses of norms' weights (0: no such norm) and over how many numbers they go, of the rotary tables [context, R]
and R, and which of the sights is the layer's."""

_NORM, _MULTIPLY, _ENTER, _ATTEND, _ADD, _GATE = range(6)
_PHASES = np.array(
    [
        (_NORM, BEFORE_ATTENTION),
        (_MULTIPLY, QKV),
        (_ENTER, 0),
        (_ATTEND, 0),
        (_ADD, OUT),
        (_NORM, BEFORE_MLP),
        (_MULTIPLY, GATE_UP),
        (_GATE, 0),
        (_ADD, DOWN),
    ]
)
"""Of a block, one after the other: what all threads do, and with what of the table of layers."""


@numba.njit(inline="always")
def _norm_row(x, i, weight, width, norms, single, out, o):
    """out[o : o + width] = RMSNorm of x[i : i + width]; weight: its address; single: any array of float32."""
    eps, rounds_once = norms
    if rounds_once:
        rms_norm_row_rounded_once(x, i, array_at(weight, width, single), eps, out, o)
    else:
        rms_norm_row(x, i, array_at(weight, width, x), eps, out, o)


@numba.njit(inline="always")
def _share(count, part, num_parts):
    """Where a thread's share of so many things begins and ends."""
    return part * count // num_parts, (part + 1) * count // num_parts


@numba.njit(**COMPILE)
def _multiply_floats(x, num_rows, product, bias, blocks, scratch, y):
    """`_multiply_share` by a weight of floats."""
    num_inputs, width = product[INPUTS], product[OUTPUTS]
    sums, parts = scratch
    if product[CHAIN] == NARROW:
        out = y[: num_rows * width]
        multiply_blocks(x, num_rows, product[WEIGHT], num_inputs, bias, blocks, parts, sums, out)
    else:
        weights = array_at(product[WEIGHT], (width + BLOCK - 1) // BLOCK * num_inputs * BLOCK, x)
        for block in range(blocks[0], blocks[1]):
            multiply_columns(x, num_rows, weights, product[CHAIN], num_inputs, block, sums)
            store_columns(sums, num_rows, bias, block, width, y)


@numba.njit(**COMPILE)
def _multiply_int8(x, num_rows, product, bias, blocks, scratch, y):
    """`_multiply_share` by a weight in int8, whose blocks have half the columns."""
    num_inputs, width = product[INPUTS], product[OUTPUTS]
    sums, digits = scratch
    scales_of_rows = sums[int8_kernels.SUMS : int8_kernels.SUMS + num_rows]
    for r in range(num_rows):
        scales_of_rows[r] = int8_kernels.digits_of_row(x, r, num_inputs, digits)
    num_blocks = (width + int8_dots.BLOCK - 1) // int8_dots.BLOCK
    num_outputs = num_blocks * int8_dots.BLOCK
    weights = array_at(product[WEIGHT], num_outputs * int8_dots.filled_up(num_inputs, int8_dots.WIDTH), digits)
    scales = array_at(product[SCALES], num_outputs, sums)
    first, end = 2 * blocks[0], min(2 * blocks[1], num_blocks)
    int8_kernels.multiply_blocks(
        *(digits, scales_of_rows, int8_kernels.num_digits(x), num_inputs, weights, scales, bias, int8_kernels.NONE),
        *(first, end, sums.view(np.int32), y[: num_rows * width]),
    )


def _multiply_share(x, num_rows, product, bias, blocks, scratch, y):
    """Columns of some blocks of 64 of y [R, outputs] = x W^T + b; the rest as in `_multiply_part`."""
    raise NotImplementedError("only for compiled code")


@overload(_multiply_share)
def _multiply_share_overload(x, num_rows, product, bias, blocks, scratch, y):
    is_int8 = scratch[1].dtype == types.int8
    multiply = _multiply_int8 if is_int8 else _multiply_floats  # so that what nobody wants is not compiled
    return lambda x, num_rows, product, bias, blocks, scratch, y: multiply(  # noqa: PLW0108 (it is no function)
        x, num_rows, product, bias, blocks, scratch, y
    )


@numba.njit(**COMPILE)
def _multiply_part(x, num_rows, product, part, num_parts, scratch, y, stream):
    """A thread's columns of y [R, outputs] = x W^T + b, and then of stream += y, unless stream is empty.

    product: its columns of the table of layers; scratch: sums [>= 64 R], and parts of x as `_run_blocks` says.
    """
    width = product[OUTPUTS]
    bias = array_at(product[BIAS], width if product[BIAS] else 0, x)
    first, end = _share((width + BLOCK - 1) // BLOCK, part, num_parts)
    _multiply_share(x, num_rows, product, bias, (first, end), scratch, y)
    if len(stream) > 0:
        last = min(end * BLOCK, width)
        whole = last - (last - first * BLOCK) % LANES
        for start in range(0, num_rows * width, width):
            for i in range(start + first * BLOCK, start + whole, LANES):
                store(stream, i, load(stream, i) + load(y, i))
            for i in range(start + whole, start + last):
                stream[i] = narrow(widen(stream[i]) + widen(y[i]), stream)


@numba.njit(inline="always")
def _enter_row(qkv, t, layer, heads, position, slot, is_alone, norms, q, keys, values):
    """Norm and turn the queries and keys of row t; put keys and values into the cache unless the row is its sequence's
    only one: attention then does. In place where normed, or not yet in the cache.
    """
    num_heads, num_key_heads, dim, _ = heads
    first = t * layer[QKV + OUTPUTS]
    if layer[Q_NORM]:
        first_key = first + num_heads * dim
        for i in range(first, first_key, layer[Q_WIDTH]):
            _norm_row(qkv, i, layer[Q_NORM], layer[Q_WIDTH], norms, q, qkv, i)
        for i in range(first_key, first_key + num_key_heads * dim, layer[K_WIDTH]):
            _norm_row(qkv, i, layer[K_NORM], layer[K_WIDTH], norms, q, qkv, i)
    table = (position + 1, layer[TURNED])
    cos, sin = array_at(layer[COS], table, q), array_at(layer[SIN], table, q)
    if is_alone:
        rotate_row(qkv, t, cos, sin, position, num_heads, num_key_heads, dim, q)
    else:
        rotate_and_store_row(qkv, t, cos, sin, position, slot, num_heads, q, keys, values)


@numba.njit(inline="always")
def _gate_row(gate_up, t, layer, hidden):
    """Row t of hidden [R, inputs of down] = silu(gate) * up; what fills the inputs up is 0."""
    width, stride = layer[GATE_UP + OUTPUTS] // 2, layer[DOWN + INPUTS]
    silu_times_row(gate_up, t, width, hidden, t * stride)
    hidden[t * stride + width : (t + 1) * stride] = 0


@numba.njit(inline="always")
def _run_phase(phase, part, num_parts, layer, x, width, heads, norms, scores, seen, q, keys, values, buffers):
    """A thread's share of one of _PHASES. heads: H, K, D, B; norms: eps, whether rounded once; the rest as below."""
    positions, slots, alone, first, last, tables, items = seen
    scale, softcap, bias = scores
    normed, wide, mixed, sums, parts = buffers
    scratch = sums[part], parts[part]
    num_rows = len(positions)
    begin, end = _share(num_rows, part, num_parts)
    what, column = phase
    if what == _NORM:
        for t in range(begin, end):
            _norm_row(x, t * width, layer[column], width, norms, q, normed, t * width)
    elif what == _MULTIPLY:
        _multiply_part(normed, num_rows, layer[column : column + 5], part, num_parts, scratch, wide, x[:0])
    elif what == _ENTER:
        for t in range(begin, end):
            _enter_row(wide, t, layer, heads, positions[t], slots[t], alone[t], norms, q, keys, values)
    elif what == _ATTEND:
        all_keys, all_values, sight = keys.ravel(), values.ravel(), first[layer[SIGHT]]
        begin, end = _share(len(items), part, num_parts)
        for i in range(begin, end):
            item, row = items[i], items[i, 1]
            new = row * layer[QKV + OUTPUTS] + heads[0] * heads[2] if alone[row] else -1
            attend_item(
                *(q, all_keys, all_values, heads, tables, item, positions, sight, last, scale, softcap, bias),
                *(wide, new, mixed, 0),
            )
    elif what == _ADD:
        _multiply_part(mixed, num_rows, layer[column : column + 5], part, num_parts, scratch, normed, x)
    else:
        for t in range(begin, end):
            _gate_row(wide, t, layer, mixed)


def _run_blocks(x, layers, caches, shape, norms, final_norm, scores, seen, queries, of_layer, buffers, out):
    """Run the blocks of `layers`, and the final norm if there is one, on x [R, d], in place; x and out are flat.

    layers [L, columns] int64, see there; caches [L, 2] int64: addresses of keys and values; shape: d, H, K, D, B and
    how many blocks a cache has; norms: eps, whether rounded once; final_norm: address of its weight, or 0; scores:
    scale, softcap and no bias [H, 0]; seen: positions, slots [R] int64, alone [R] bool (whether a row is the only one
    of its sequence), first [sights, R], last [R], tables and items, as `attention_kernels.attend` takes them; queries
    [places, >= R H D] float32: each layer's go to the place in
    of_layer [L]; buffers: normed [>= R d], wide [>= R max(H + 2K D, 2 ff)], mixed [>= R max(H D, inputs of down)], of
    the type of x, sums [threads, >= 64 R] float32 and parts of rows [threads, >= 48 inputs] uint16, if a weight is
    narrow, or int8 where all weights are, the digits of R rows; out [R, d]: the final-normed rows.
    """
    width, num_heads, num_key_heads, dim, size, num_blocks = shape
    heads = num_heads, num_key_heads, dim, size
    num_parts = len(buffers[3])
    for n in range(len(layers)):
        layer, q = layers[n], queries[of_layer[n]]
        keys = array_at(caches[n, 0], (num_blocks, num_key_heads, dim, size), x)
        values = array_at(caches[n, 1], (num_blocks, num_key_heads, size, dim), x)
        for phase in _PHASES:
            for part in numba.prange(num_parts):
                mine = np.int64(part)
                _run_phase(
                    phase, mine, num_parts, layer, x, width, heads, norms, scores, seen, q, keys, values, buffers
                )
    if final_norm:
        for i in range(0, len(x), width):
            _norm_row(x, i, final_norm, width, norms, queries, out, i)


run_blocks_here, run_blocks_shared = alone_and_shared(_run_blocks)
"""`_run_blocks` in this thread, and with its columns and rows shared among all."""
