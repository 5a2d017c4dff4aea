"""Layers with states on a GPU: short convolutions and gated delta nets (model/network/recurrences.py).

Each span reads one state and writes another one. The bits of a row depend only on the rows of its span before it, in
this step or in earlier ones: sums have one order, without fused multiply-adds.

Axes: T rows, S spans, C channels, K key heads, V value heads, k and v: numbers of a key and of a value.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lightwell.model.kernels.cuda.gate import activated
from lightwell.model.kernels.cuda.norms import check_norm, norm_step, normed_row
from lightwell.model.kernels.cuda.paged_keys import StateSpans
from lightwell.model.kernels.cuda.rounding import rounded
from lightwell.model.kernels.cuda.tensors import DTYPES, check_tensor
from lightwell.model.kernels.program.steps import ApplyDelta, Convolve

_BLOCK, _PARTS = 256, 16
"""Channels of a program, and programs that share the rows of a span in a step with pieces of prompts."""
_EPS = 1e-6
"""Added to the squared length of a query or key before it is divided by its length."""


@triton.jit
def _input(
    x, kept, row, i, read, channel, within, distance, C: tl.constexpr, N: tl.constexpr, IS_GATED: tl.constexpr
):  # fmt: skip
    """Return the inputs of position i of the step, from the state if i < 0. `row`: the row of position 0."""
    dtype: tl.constexpr = x.dtype.element_ty
    at = x + (row + i).to(tl.int64) * distance + channel
    y = tl.load(at, mask=within & (i >= 0), other=0.0).to(tl.float32)
    if IS_GATED:  # B * x, of B, C and x
        y = rounded(y * tl.load(at + 2 * C, mask=within & (i >= 0), other=0.0).to(tl.float32), dtype)
    old = kept + (read.to(tl.int64) * N + N + i) * C + channel
    return y + tl.load(old, mask=within & (i < 0) & (read >= 0), other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["T"])
def convolve_kernel(
    x, kept, taps, bias, first_rows, counts, reads, writes, out, distance, T,
    C: tl.constexpr, N: tl.constexpr, IS_GATED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Convolve some channels of a part of a span's rows: grid (blocks, S, parts). N: the number of kept inputs."""
    span, part = tl.program_id(1), tl.program_id(2)
    row, count = tl.load(first_rows + span), tl.load(counts + span)
    if (count == 0) | (row >= T):
        return
    read, write = tl.load(reads + span), tl.load(writes + span)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    within = channel < C
    dtype: tl.constexpr = x.dtype.element_ty
    for i in range(part, count, tl.num_programs(2)):
        total = tl.zeros([BLOCK], tl.float32)
        for tap in tl.static_range(N + 1):
            weight = tl.load(taps + tap * C + channel, mask=within, other=0.0)
            total += weight * _input(x, kept, row, i + tap - N, read, channel, within, distance, C, N, IS_GATED)
        if bias is not None:
            total += tl.load(bias + channel, mask=within, other=0.0)
        total = rounded(total, dtype)
        at = (row + i).to(tl.int64)
        if IS_GATED:
            total *= tl.load(x + at * distance + C + channel, mask=within, other=0.0).to(tl.float32)
        else:
            total = activated(total, "silu")
        tl.store(out + at * C + channel, rounded(total, dtype).to(dtype), mask=within)
    if part == 0:
        for j in tl.static_range(N):
            y = _input(x, kept, row, count + j - N, read, channel, within, distance, C, N, IS_GATED)
            tl.store(kept + (write.to(tl.int64) * N + j) * C + channel, y.to(dtype), mask=within)


@triton.jit
def _unit(x, eps):
    """Return a vector divided by its length."""
    return tl.div_rn(x, tl.sqrt_rn(tl.sum(x * x, 0) + eps))


@triton.jit(do_not_specialize=["T"])
def delta_kernel(
    convolved, wide, memory, rates, step_biases, norm_weight, first_rows, counts, reads, writes, out, distance, T,
    scale, unit_eps, norm_eps,
    K: tl.constexpr, V: tl.constexpr, KD: tl.constexpr, VD: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """Run a head over a span's rows, one after another: grid (V, S). KD, VD: k and v; KEYS, VALUES: powers of 2."""
    head, span = tl.program_id(0), tl.program_id(1)
    row, count = tl.load(first_rows + span), tl.load(counts + span)
    if (count == 0) | (row >= T):
        return
    read, write = tl.load(reads + span), tl.load(writes + span)
    key, value = tl.arange(0, KEYS), tl.arange(0, VALUES)
    is_key, is_value = key < KD, value < VD
    own = head.to(tl.int64) * (KD * VD) + key[:, None] * VD + value[None, :]
    is_number = is_key[:, None] & is_value[None, :]
    size: tl.constexpr = V * KD * VD
    s = tl.load(memory + read.to(tl.int64) * size + own, mask=is_number & (read >= 0), other=0.0)
    dtype: tl.constexpr = wide.dtype.element_ty
    channels: tl.constexpr = 2 * K * KD + V * VD
    rate, step_bias = tl.load(rates + head), tl.load(step_biases + head)
    for i in range(0, count):
        at = (row + i).to(tl.int64)
        x, extra = convolved + at * channels, wide + at * distance + channels
        of_key = head // (V // K) * KD + key
        q = tl.load(x + of_key, mask=is_key, other=0.0).to(tl.float32)
        k = tl.load(x + K * KD + of_key, mask=is_key, other=0.0).to(tl.float32)
        y = tl.load(x + 2 * K * KD + head * VD + value, mask=is_value, other=0.0).to(tl.float32)
        q, k = _unit(q, unit_eps) * scale, _unit(k, unit_eps)
        gate = tl.load(extra + head * VD + value, mask=is_value, other=0.0).to(tl.float32)
        strength = tl.load(extra + V * VD + head).to(tl.float32)
        step = tl.load(extra + V * VD + V + head).to(tl.float32) + step_bias
        step = tl.maximum(step, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(step)))  # softplus
        beta = rounded(1.0 / (1.0 + tl.exp(-strength)), dtype)
        s = s * tl.exp(-rate * step)
        change = beta * (y - tl.sum(k[:, None] * s, 0))
        z = tl.sum(q[:, None] * s, 0) + tl.sum(q * k, 0) * change
        s = s + k[:, None] * change[None, :]
        z = normed_row(rounded(z, dtype), value, norm_weight, None, norm_eps, VD, NORM, dtype)
        z = rounded(activated(gate, "silu") * z, dtype)
        tl.store(out + at * (V * VD) + head * VD + value, z.to(dtype), mask=is_value)
    tl.store(memory + write.to(tl.int64) * size + own, s, mask=is_number)


def convolve(x: Tensor, own: Convolve | ApplyDelta, kept: Tensor, spans: StateSpans) -> Tensor:
    """Return the convolution [T, C] of the first channels of x [T, columns], and write the last inputs to the states.

    `Convolve`: C * conv(B * x) of B, C and x, [T, 3 C]. `ApplyDelta`: silu(conv(x)). kept: [state, n, C], of x's dtype.
    Raises ValueError for shapes and dtypes that do not fit.
    """
    (size, channels), is_gated = own.taps.shape, isinstance(own, Convolve)
    check_tensor("x", x, DTYPES, (None, None))
    check_tensor("kept", kept, (x.dtype,), (None, size - 1, channels))
    out = spans.room(len(x), channels, x)
    if len(x):
        grid = triton.cdiv(channels, _BLOCK), len(spans.counts), 1 if spans.are_single else _PARTS
        convolve_kernel[grid](
            x, kept, own.taps, own.bias, spans.first_rows, spans.counts, spans.reads, spans.writes, out, x.stride(0),
            len(x), C=channels, N=size - 1, IS_GATED=is_gated, BLOCK=_BLOCK, num_warps=2, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def apply_delta(wide: Tensor, own: ApplyDelta, kept: Tensor, memory: Tensor, spans: StateSpans) -> Tensor:
    """Return the values [T, V v] of a gated delta net for wide [T, columns], and write the states.

    kept: as in `convolve`. memory: [state, V, k, v] float32. Raises ValueError for shapes and dtypes that do not fit.
    """
    convolved = convolve(wide, own, kept, spans)
    key_heads, heads, key_dim, value_dim = own.sizes
    check_norm("norm", own.norm, value_dim, wide.dtype)
    check_tensor("memory", memory, (torch.float32,), (None, heads, key_dim, value_dim))
    out = spans.room(len(wide), heads * value_dim, wide)
    if len(wide):
        keys, values = triton.next_power_of_2(key_dim), triton.next_power_of_2(value_dim)
        delta_kernel[(heads, len(spans.counts))](
            convolved, wide, memory, own.rates, own.decay_biases, own.norm.weight,
            spans.first_rows, spans.counts, spans.reads, spans.writes, out, wide.stride(0), len(wide),
            key_dim**-0.5, _EPS, own.norm.eps, K=key_heads, V=heads, KD=key_dim, VD=value_dim, KEYS=keys, VALUES=values,
            NORM=norm_step(own.norm, wide.dtype), num_warps=max(1, min(16, keys * values // 1024)),
            enable_fp_fusion=False,
        )  # fmt: skip
    return out
