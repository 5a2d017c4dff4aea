"""The draw of each row's next token, in two launches and torch's softmax between them: `scale_kernel` divides logits by
the temperature and applies top_k; `draw_kernel` applies min_p and top_p to the probabilities, and draws.

All comparisons, and all sums, which are of integers, are exact, so that tokens equal those of `model.sampling.filters`
and `model.sampling.row_search.pick`. In a row with a NaN they are undefined.

Axes: R rows, V vocabulary, W >= V.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lightwell.model.kernels.cuda.tensors import DTYPES, check_tensor

BLOCK, NUM_WARPS = 2048, 8
"""Numbers of a row that a program reads at once, and its warps."""


@triton.jit
def scale_kernel(x, lines, out, distance, line, V, W, BLOCK: tl.constexpr):
    """Write each row's logits over its temperature, -inf below the k-th largest and in columns from V on: grid (R,).

    The k-th largest is found two bits at a time: floats have the order of their bits, if these are flipped.
    """
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(lines + row).to(tl.float64, bitcast=True).to(tl.float32)
    top_k = tl.load(lines + 4 * line + row)
    edge = tl.full((), float("-inf"), tl.float32)
    if top_k < V:
        bits = tl.zeros((), tl.int64)
        for step in range(16):
            unit = tl.full((), 1, tl.int64) << (30 - 2 * step)
            first, second, third = bits + unit, bits + 2 * unit, bits + 3 * unit
            one = tl.zeros((BLOCK,), tl.int32)
            two = tl.zeros((BLOCK,), tl.int32)
            three = tl.zeros((BLOCK,), tl.int32)
            for start in range(0, V, BLOCK):
                column = start + tl.arange(0, BLOCK)
                score = tl.load(x + row * distance + column, mask=column < V, other=float("-inf")).to(tl.float32)
                key = tl.div_rn(score, temperature).to(tl.int32, bitcast=True)
                key = tl.where(key < 0, ~key, key ^ -2147483648).to(tl.uint32, bitcast=True).to(tl.int64)
                key = tl.where(column < V, key, 0)
                one += (key >= first).to(tl.int32)
                two += (key >= second).to(tl.int32)
                three += (key >= third).to(tl.int32)
            bits += unit * (
                (tl.sum(one, 0) >= top_k).to(tl.int64)
                + (tl.sum(two, 0) >= top_k).to(tl.int64)
                + (tl.sum(three, 0) >= top_k).to(tl.int64)
            )
        signed = bits.to(tl.uint32).to(tl.int32, bitcast=True)
        edge = tl.where(signed < 0, signed ^ -2147483648, ~signed).to(tl.float32, bitcast=True)
    for start in range(0, W, BLOCK):
        column = start + tl.arange(0, BLOCK)
        score = tl.load(x + row * distance + column, mask=column < V, other=float("-inf")).to(tl.float32)
        score = tl.div_rn(score, temperature)
        score = tl.where(score < edge, float("-inf"), score)
        tl.store(out + row * W + column, score, mask=column < W)


@triton.jit
def _weights(probabilities, column, V, floor):
    """Return probabilities of these columns, 0 below the floor, and their multiples of 2**-60, rounded down."""
    p = tl.load(probabilities + column, mask=column < V, other=0.0)
    p = tl.where(p >= floor, p, 0.0)  # NaN becomes 0
    return p, (p * 1152921504606846976.0).to(tl.int64)


@triton.jit
def draw_kernel(probabilities, lines, logits, best, valid, out, distance, line, V, W, BLOCK: tl.constexpr):
    """Write the drawn column, and its logit: grid (R,). They are `best` of greedy rows, and `valid` of rows without a
    distribution.
    """
    row = tl.program_id(0).to(tl.int64)
    probabilities += row * W
    uniform = tl.load(lines + 3 * line + row).to(tl.float64, bitcast=True)
    chosen = tl.load(best + 2 * row)
    if uniform >= 0:
        min_p = tl.load(lines + line + row).to(tl.float64, bitcast=True).to(tl.float32)
        top_p = tl.load(lines + 2 * line + row).to(tl.float64, bitcast=True)
        largest = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, V, BLOCK):
            column = start + tl.arange(0, BLOCK)
            p = tl.load(probabilities + column, mask=column < V, other=0.0)
            largest = tl.where(p > largest, p, largest)
        floor = tl.max(largest, 0) * min_p
        sums = tl.zeros((BLOCK,), tl.int64)
        for start in range(0, V, BLOCK):
            _, weight = _weights(probabilities, start + tl.arange(0, BLOCK), V, floor)
            sums += weight
        total = tl.sum(sums, 0)
        if top_p <= 1.0:  # the edge of the nucleus, two bits at a time
            kept = tl.minimum(tl.maximum(tl.ceil(top_p * total.to(tl.float64)).to(tl.int64), 1), total)
            bits = tl.zeros((), tl.int32)
            for step in range(16):
                unit = tl.full((), 1, tl.int32) << (30 - 2 * step)
                one = tl.zeros((BLOCK,), tl.int64)
                two = tl.zeros((BLOCK,), tl.int64)
                three = tl.zeros((BLOCK,), tl.int64)
                for start in range(0, V, BLOCK):
                    p, weight = _weights(probabilities, start + tl.arange(0, BLOCK), V, floor)
                    more = p.to(tl.int32, bitcast=True) - bits
                    one += tl.where(more >= unit, weight, 0)
                    if step > 0:  # positive floats have 31 bits
                        two += tl.where(more >= 2 * unit, weight, 0)
                        three += tl.where(more >= 3 * unit, weight, 0)
                found = (tl.sum(one, 0) >= kept).to(tl.int32)
                if step > 0:
                    found += (tl.sum(two, 0) >= kept).to(tl.int32) + (tl.sum(three, 0) >= kept).to(tl.int32)
                bits += unit * found
            floor = bits.to(tl.float32, bitcast=True)
            sums = tl.zeros((BLOCK,), tl.int64)
            for start in range(0, V, BLOCK):
                _, weight = _weights(probabilities, start + tl.arange(0, BLOCK), V, floor)
                sums += weight
            total = tl.sum(sums, 0)
        target = tl.minimum((uniform * total.to(tl.float64)).to(tl.int64), total - 1)
        chosen = tl.load(valid + 2 * row)
        if total > 0:
            before = tl.zeros((), tl.int64)
            first = tl.full((), 0x7FFFFFFF, tl.int32)
            for start in range(0, V, BLOCK):
                column = start + tl.arange(0, BLOCK)
                _, weight = _weights(probabilities, column, V, floor)
                after = before + tl.cumsum(weight, 0)
                first = tl.minimum(first, tl.min(tl.where(after > target, column, 0x7FFFFFFF), 0))
                before += tl.sum(weight, 0)
            chosen = tl.where(first < V, first.to(tl.int64), chosen)  # none in a row with a NaN
    tl.store(out + 2 * row, chosen)
    number = tl.load(logits + row * distance + chosen).to(tl.float64)
    tl.store(out + 2 * row + 1, number.to(tl.int64, bitcast=True))


def scaled(x: Tensor, lines: Tensor) -> Tensor:
    """Return x [R, V] over the temperatures as float32 [R, W], -inf below each row's top_k and from V on.

    lines: [5, R] int64, which `model.sampling.device_rows.pack` wrote. Raises ValueError for another shape or dtype.
    """
    check_tensor("x", x, DTYPES, (None, None))
    check_tensor("lines", lines, (torch.int64,), (5, len(x)))
    x = x if x.stride(1) == 1 else x.contiguous()
    size = x.shape[1]
    width = size + -size % 4  # whole 16 bytes, for torch's softmax
    out = torch.empty(len(x), width, dtype=torch.float32, device=x.device)
    scale_kernel[(len(x),)](
        x, lines, out, x.stride(0), lines.stride(0), size, width, BLOCK=BLOCK, num_warps=NUM_WARPS
    )  # fmt: skip
    return out


def drawn(probabilities: Tensor, lines: Tensor, logits: Tensor, best: Tensor, valid: Tensor) -> Tensor:
    """Return [R, 2] int64: each row's token and the bits of its logit as float64.

    probabilities: [R, W] float32. lines: as for `scaled`. logits: [R, V]. best, valid: [R, 2] int64, of `row_max`.
    Raises ValueError for another shape or dtype.
    """
    check_tensor("logits", logits, DTYPES, (None, None))
    check_tensor("probabilities", probabilities, (torch.float32,), (len(logits), None))
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    out = torch.empty(len(logits), 2, dtype=torch.int64, device=logits.device)
    sizes = logits.stride(0), lines.stride(0), logits.shape[1], probabilities.shape[1]
    draw_kernel[(len(logits),)](
        probabilities, lines, logits, best, valid, out, *sizes, BLOCK=BLOCK, num_warps=NUM_WARPS
    )  # fmt: skip
    return out
