"""A decoder's blocks for a few rows in one call, compiled by numba: nothing of Python or torch stands between products.

Knows arrays and addresses; which networks it may stand for is `decode_step`'s to say. Each number is made by the same
functions, in the same order, as block by block: only who calls them is another.

Axes: R rows, d model width, H query heads, K key heads, D head dimension, ff, B keys to a cache block, L layers.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba

from model.layers.addresses import array_at
from model.layers.attention_kernels import COMPILE, attend_item
from model.layers.few_rows_kernels import BLOCK, multiply_columns, store_columns
from model.layers.row_kernels import (
    alone_and_shared,
    rms_norm_row,
    rms_norm_row_rounded_once,
    rotate_and_store_row,
    silu_times_row,
)
from model.layers.vectors import LANES, load, narrow, store, widen

WEIGHT, BIAS, CHAIN, INPUTS, OUTPUTS = range(5)
"""A product's columns in the table of layers: addresses (0: no bias) and what `multiply_columns` must know."""
QKV, OUT, GATE_UP, DOWN = range(0, 20, 5)
"""Where the products of a layer begin."""
BEFORE_ATTENTION, BEFORE_MLP, Q_NORM, Q_WIDTH, K_NORM, K_WIDTH, COS, SIN, TURNED, SIGHT = range(20, 30)
"""Addresses of norms' weights (0: no such norm) and over how many numbers they go, of the rotary tables [context, R]
and R, and which of the sights is the layer's."""
COLUMNS = 30


@numba.njit(**COMPILE)
def _norm_row(x, i, weight, width, eps, rounds_once, single, out, o):
    """out[o : o + width] = RMSNorm of x[i : i + width]; weight: its address; single: any array of float32."""
    if rounds_once:
        rms_norm_row_rounded_once(x, i, array_at(weight, width, single), eps, out, o)
    else:
        rms_norm_row(x, i, array_at(weight, width, x), eps, out, o)


@numba.njit(**COMPILE)
def _multiply_part(x, num_rows, product, part, num_parts, sums, out):
    """A thread's columns of out [R, outputs] = x W^T + b; product: its columns of the table; sums [>= R * 64]."""
    num_inputs, num_outputs = product[INPUTS], product[OUTPUTS]
    num_blocks = (num_outputs + BLOCK - 1) // BLOCK
    weights = array_at(product[WEIGHT], num_blocks * num_inputs * BLOCK, x)
    bias = array_at(product[BIAS], num_outputs if product[BIAS] else 0, x)
    for block in range(part * num_blocks // num_parts, (part + 1) * num_blocks // num_parts):
        multiply_columns(x, num_rows, weights, product[CHAIN], num_inputs, block, sums)
        store_columns(sums, num_rows, bias, block, num_outputs, out)


@numba.njit(**COMPILE)
def _add_part(x, num_rows, product, part, num_parts, sums, y, stream):
    """A thread's columns of stream [R, d] += y, where y [R, d] = x W^T + b."""
    _multiply_part(x, num_rows, product, part, num_parts, sums, y)
    width = product[OUTPUTS]
    num_blocks = (width + BLOCK - 1) // BLOCK
    first = part * num_blocks // num_parts * BLOCK
    last = min((part + 1) * num_blocks // num_parts * BLOCK, width)
    whole = first + (last - first) // LANES * LANES
    for start in range(0, num_rows * width, width):
        for i in range(start + first, start + whole, LANES):
            store(stream, i, load(stream, i) + load(y, i))
        for i in range(start + whole, start + last):
            stream.flat[i] = narrow(widen(stream.flat[i]) + widen(y[i]), stream)


@numba.njit(**COMPILE)
def _enter_row(qkv, t, layer, shape, position, slot, eps, rounds_once, q, keys, values):
    """Norm and turn the queries and keys of row t, and put keys and values into the cache; in place where normed."""
    num_heads, num_key_heads, dim, _ = shape
    first = t * layer[QKV + OUTPUTS]
    if layer[Q_NORM]:
        first_key = first + num_heads * dim
        for i in range(first, first_key, layer[Q_WIDTH]):
            _norm_row(qkv, i, layer[Q_NORM], layer[Q_WIDTH], eps, rounds_once, q, qkv, i)
        for i in range(first_key, first_key + num_key_heads * dim, layer[K_WIDTH]):
            _norm_row(qkv, i, layer[K_NORM], layer[K_WIDTH], eps, rounds_once, q, qkv, i)
    table = (position + 1, layer[TURNED])
    cos, sin = array_at(layer[COS], table, q), array_at(layer[SIN], table, q)
    rotate_and_store_row(qkv, t, cos, sin, position, slot, num_heads, q, keys, values)


@numba.njit(**COMPILE)
def _gate_row(gate_up, t, layer, hidden):
    """Row t of hidden [R, inputs of down] = silu(gate) * up; what fills the inputs up is 0."""
    width, stride = layer[GATE_UP + OUTPUTS] // 2, layer[DOWN + INPUTS]
    silu_times_row(gate_up, t, width, hidden, t * stride)
    hidden[t * stride + width : (t + 1) * stride] = 0


def _run_blocks(
    x,
    layers,
    caches,
    shape,
    norms,
    scores,
    positions,
    slots,
    first,
    last,
    tables,
    items,
    queries,
    of_layer,
    buffers,
    out,
):
    """Run the blocks of `layers`, and the final norm if there is one, on x [R, d], in place.

    layers [L, COLUMNS] int64, see there; caches [L, 2] int64: addresses of keys and values; shape: H, K, D, B and how
    many blocks a cache has; norms: eps, whether rounded once, address of the final norm's weight or 0; scores: scale,
    softcap and no bias [H, 0]; positions, slots, last [R] int64, first [sights, R], tables and items: as
    `attention_kernels.attend` takes them; queries [places, >= R H D] float32: each layer's go to the place in of_layer
    [L]; buffers: normed [>= R d], wide [>= R max(H + 2K D, 2 ff)], mixed [>= R max(H D, inputs of down)], of the type
    of x, and sums [threads, >= 64 R] float32; out [R, d]: the final-normed rows.
    """
    num_heads, num_key_heads, dim, size, num_blocks = shape
    heads = num_heads, num_key_heads, dim, size
    eps, rounds_once, final_norm = norms
    scale, softcap, bias = scores
    normed, wide, mixed, sums = buffers
    num_rows, width = x.shape
    num_parts = len(sums)
    for n in range(len(layers)):
        layer, q, sight = layers[n], queries[of_layer[n]], first[layers[n, SIGHT]]
        keys = array_at(caches[n, 0], (num_blocks, num_key_heads, dim, size), x)
        values = array_at(caches[n, 1], (num_blocks, num_key_heads, size, dim), x)
        all_keys, all_values = keys.ravel(), values.ravel()
        for t in numba.prange(num_rows):
            _norm_row(x, t * width, layer[BEFORE_ATTENTION], width, eps, rounds_once, q, normed, t * width)
        for part in numba.prange(num_parts):
            _multiply_part(normed, num_rows, layer[QKV : QKV + 5], part, num_parts, sums[part], wide)
        for t in numba.prange(num_rows):
            _enter_row(wide, t, layer, heads, positions[t], slots[t], eps, rounds_once, q, keys, values)
        for i in numba.prange(len(items)):
            attend_item(
                q, all_keys, all_values, heads, tables, items[i], positions, sight, last, scale, softcap, bias, mixed
            )
        for part in numba.prange(num_parts):
            _add_part(mixed, num_rows, layer[OUT : OUT + 5], part, num_parts, sums[part], normed, x)
        for t in numba.prange(num_rows):
            _norm_row(x, t * width, layer[BEFORE_MLP], width, eps, rounds_once, q, normed, t * width)
        for part in numba.prange(num_parts):
            _multiply_part(normed, num_rows, layer[GATE_UP : GATE_UP + 5], part, num_parts, sums[part], wide)
        for t in numba.prange(num_rows):
            _gate_row(wide, t, layer, mixed)
        for part in numba.prange(num_parts):
            _add_part(mixed, num_rows, layer[DOWN : DOWN + 5], part, num_parts, sums[part], normed, x)
    if final_norm:
        for t in numba.prange(num_rows):
            _norm_row(x, t * width, final_norm, width, eps, rounds_once, queries, out, t * width)


run_blocks_here, run_blocks_shared = alone_and_shared(_run_blocks)
"""`_run_blocks` in this thread, and with its columns and rows shared among all."""
