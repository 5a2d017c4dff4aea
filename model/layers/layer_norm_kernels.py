"""LayerNorm of rows on a CPU, compiled by numba. A row's bits depend on that row alone.

Axes: T rows, d model width.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba
import numpy as np

from model.layers.attention_kernels import COMPILE
from model.layers.row_kernels import RowKernel
from model.layers.vectors import LANES, fma, load, narrow, store, sum_of_lanes, widen, zeros


@numba.njit(**COMPILE)
def norm_row(x, i, width, weight, bias, eps, out, o):
    """out[o : o + width] = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, with x[i : i + width] for x.

    Sums go lane by lane, then over the lanes, then over what is left of whole vectors.
    """
    whole = width - width % LANES
    lanes = zeros()
    for at in range(i, i + whole, LANES):
        lanes = lanes + load(x, at)
    total = sum_of_lanes(lanes)
    for at in range(i + whole, i + width):
        total += widen(x.flat[at])
    mean = total / np.float32(width)
    lanes = zeros()
    for at in range(i, i + whole, LANES):
        centred = load(x, at) - mean
        lanes = fma(centred, centred, lanes)
    total = sum_of_lanes(lanes)
    for at in range(i + whole, i + width):
        rest = widen(x.flat[at]) - mean
        total = fma(rest, rest, total)
    inverse = np.float32(1) / np.sqrt(total / np.float32(width) + eps)
    for at in range(0, whole, LANES):
        normal = (load(x, i + at) - mean) * inverse
        store(out, o + at, fma(normal, load(weight, at), load(bias, at)))
    for at in range(whole, width):
        single = (widen(x.flat[i + at]) - mean) * inverse
        out.flat[o + at] = narrow(fma(single, widen(weight[at]), widen(bias[at])), out)


def _layer_norm(x, weight, bias, eps, out):
    """Every row of x [T, d] into out; weight and bias [d]."""
    width = x.shape[1]
    for t in numba.prange(len(x)):
        norm_row(x, t * width, width, weight, bias, eps, out, t * width)


layer_norm = RowKernel(_layer_norm, rows_from=64)
