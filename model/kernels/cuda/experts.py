"""Mixtures of experts on a GPU: their choice, their products, and the sums of their outputs. The host never waits.

Each row has C pairs of itself and an expert, in the order of the experts' numbers. `group_kernel` lists the pairs of
each expert, so that a program multiplies several rows by one expert's weight. The bits of a row depend only on the row:
products sum as in `matmul.py`, and the outputs of a row are added in the order of its pairs.

Axes: R rows, E experts, C experts of a row, K inputs, N outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
import triton
import triton.language as tl
from torch import Tensor

from lightwell.model.kernels.cuda.interpreter import IS_INTERPRETED
from lightwell.model.kernels.cuda.matmul import INTERPRETED_INNER, TILES, WIDE_TILES, none, sum_piece
from lightwell.model.kernels.cuda.rounding import rounded
from lightwell.model.kernels.cuda.tensors import DTYPES, aligned, check_tensor

_BLOCK = 1024
"""Pairs or numbers of a row that a program reads at once."""


@triton.jit
def choose_kernel(
    logits, scales, chosen, weights, E: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, NORMALIZED: tl.constexpr
):
    """Choose the experts of a row: grid (R,)."""
    row, expert = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x = tl.load(logits + row * E + expert, mask=expert < E, other=float("-inf")).to(tl.float32)
    p = tl.exp(x - tl.max(x, 0))
    p = p / tl.sum(p, 0)
    left, total = tl.where(expert < E, tl.where(p >= 0.0, p, 2.0), -1.0), 0.0  # NaN is chosen, and so stays in sight
    for _ in tl.static_range(C):
        largest = tl.max(left, 0)
        first = tl.min(tl.where(left == largest, expert, BLOCK), 0)
        left = tl.where(expert == first, -1.0, left)
        total += largest
    is_chosen = (left < 0.0) & (expert < E)
    if NORMALIZED:
        p = p / total
    if scales is not None:
        p = p * tl.load(scales + expert, mask=expert < E, other=0.0)
    place = row * C + tl.cumsum(is_chosen.to(tl.int32), 0) - 1
    tl.store(chosen + place, expert, mask=is_chosen)
    tl.store(weights + place, p, mask=is_chosen)


@triton.jit(do_not_specialize=["num_pairs"])
def group_kernel(chosen, members, counts, num_pairs, most, BLOCK: tl.constexpr):
    """List the pairs of an expert: grid (E,)."""
    expert, place = tl.program_id(0), tl.arange(0, BLOCK)
    count = 0
    for first in range(0, num_pairs, BLOCK):
        pair = first + place
        is_own = tl.load(chosen + pair, mask=pair < num_pairs, other=-1) == expert
        at = count + tl.cumsum(is_own.to(tl.int32), 0) - 1
        tl.store(members + expert.to(tl.int64) * most + at, pair, mask=is_own)
        count += tl.sum(is_own.to(tl.int32), 0)
    tl.store(counts + expert, count)


@triton.jit(do_not_specialize=["most"])
def expert_product_kernel(
    x, addresses, bias, members, counts, out, x_distance, most, N, K,
    PER_ROW: tl.constexpr, ROWS: tl.constexpr, CHUNKS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
    IS_WHOLE: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Multiply some pairs of an expert by some outputs of its weight: grid (outputs, pairs, E).

    PER_ROW: pairs that share a row of x.
    """
    expert, first = tl.program_id(2), tl.program_id(1) * (ROWS * CHUNKS)
    count = tl.load(counts + expert)
    if first >= count:
        return
    dtype: tl.constexpr = out.dtype.element_ty
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inner, place = tl.arange(0, INNER), first + tl.arange(0, ROWS)
    own = members + expert.to(tl.int64) * most
    w = tl.multiple_of(tl.load(addresses + expert).to(tl.pointer_type(dtype)), 16)
    # Pairs and outputs after the last are copies of the last, and are not stored.
    weights = w + tl.minimum(column, N - 1).to(tl.int64)[None, :] * K + inner[:, None]
    rows = none()
    for i in tl.static_range(CHUNKS):
        pair = tl.load(own + tl.minimum(place + i * ROWS, count - 1))
        rows += (x + (pair // PER_ROW).to(tl.int64)[:, None] * x_distance + inner[None, :],)
    sums = sum_piece(rows, weights, 0, K, K, ROWS, CHUNKS, COLUMNS, INNER, IS_WHOLE, WIDEN)
    added = 0.0
    if bias is not None:
        added = tl.load(bias + expert.to(tl.int64) * N + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
    for i in tl.static_range(CHUNKS):
        at = place + i * ROWS
        pair = tl.load(own + tl.minimum(at, count - 1)).to(tl.int64)
        y = sums[i] if bias is None else sums[i] + added
        is_out = (at < count)[:, None] & (column < N)[None, :]
        tl.store(out + pair[:, None] * N + column[None, :], rounded(y, dtype).to(dtype), mask=is_out)


@triton.jit
def combine_kernel(y, weights, shared, gate, out, N, C: tl.constexpr, BLOCK: tl.constexpr):
    """Add the outputs of a row's experts, and of the one for all rows: grid (R, blocks)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    dtype: tl.constexpr = out.dtype.element_ty
    total = tl.zeros([BLOCK], tl.float32)
    for i in tl.static_range(C):
        part = tl.load(y + (row * C + i) * N + column, mask=column < N, other=0.0).to(tl.float32)
        total += tl.load(weights + row * C + i) * part
    if shared is not None:
        more = tl.load(shared + row * N + column, mask=column < N, other=0.0).to(tl.float32)
        if gate is not None:
            more = more / (1.0 + tl.exp(-tl.load(gate + row).to(tl.float32)))
        total += more
    tl.store(out + row * N + column, rounded(total, dtype).to(dtype), mask=column < N)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """The experts of some rows."""

    weights: Tensor
    """[R, C] float32: factors of the experts' outputs."""
    members: Tensor
    """[E, R] int32: the pairs of each expert, ascending; row * C + the place among the row's experts."""
    counts: Tensor
    """[E] int32: the number of pairs of each expert."""

    @classmethod
    def choose(cls, logits: Tensor, num_chosen: int, *, normalized: bool, scales: Tensor | None = None) -> Self:
        """Return the experts with the largest softmax of logits [R, E], the first of equal ones.

        normalized: whether a row's weights are divided by their sum. scales: [E] float32, factors of the weights after
        it. Raises ValueError for another dtype.
        """
        check_tensor("logits", logits, DTYPES, (None, None))
        (num_rows, size), device = logits.shape, logits.device
        chosen = torch.empty(num_rows, num_chosen, dtype=torch.int32, device=device)
        weights = torch.empty(num_rows, num_chosen, dtype=torch.float32, device=device)
        members = torch.empty(size, num_rows, dtype=torch.int32, device=device)
        counts = torch.empty(size, dtype=torch.int32, device=device)
        if num_rows:
            choose_kernel[(num_rows,)](
                logits.contiguous(), scales, chosen, weights, E=size, C=num_chosen, BLOCK=triton.next_power_of_2(size),
                NORMALIZED=normalized, num_warps=1, enable_fp_fusion=False,
            )  # fmt: skip
            group_kernel[(size,)](chosen, members, counts, chosen.numel(), num_rows, BLOCK=_BLOCK)
        return cls(weights, members, counts)

    def combine(self, y: Tensor, shared: Tensor | None = None, gate: Tensor | None = None) -> Tensor:
        """Return the sums [R, N] of the pairs' outputs y [R C, N], times their weights, and of shared [R, N], times the
        sigmoid of gate [R, 1].
        """
        num_rows, num_chosen = self.weights.shape
        out = torch.empty(num_rows, y.shape[1], dtype=y.dtype, device=y.device)
        if num_rows:
            combine_kernel[(num_rows, triton.cdiv(y.shape[1], _BLOCK))](
                y, self.weights, shared, gate, out, y.shape[1], C=num_chosen, BLOCK=_BLOCK, enable_fp_fusion=False
            )
        return out


class ExpertWeights:
    """The weights of all experts, of one product."""

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> None:
        """Keep weights [N, K], and biases [N], all or none. Contiguous, aligned weights are not copied."""
        self._weights = [aligned(weight) for weight in weights]
        addresses = [weight.data_ptr() for weight in self._weights]
        self._addresses = torch.tensor(addresses, dtype=torch.int64).to(weights[0].device)
        self._biases = None if biases[0] is None else torch.stack([bias for bias in biases if bias is not None])

    def multiply(self, x: Tensor, pairs: Pairs) -> Tensor:
        """Return x W^T + bias [pairs, N] of each pair's expert. x [R, K], or [pairs, K]."""
        num_rows, num_chosen = pairs.weights.shape
        num_outputs, num_inputs = self._weights[0].shape
        check_tensor("x", x, (self._weights[0].dtype,), (None, num_inputs))
        x = x.contiguous()
        out = torch.empty(num_rows * num_chosen, num_outputs, dtype=x.dtype, device=x.device)
        tiles = WIDE_TILES if x.dtype == torch.float32 else TILES[1:]  # the first takes more registers here
        of_expert = num_rows * num_chosen // len(self._weights)
        tile = next((tile for tile in tiles if tile.height <= of_expert), tiles[-1])
        inner = INTERPRETED_INNER if IS_INTERPRETED else tile.inner
        if num_rows:
            grid = triton.cdiv(num_outputs, tile.columns), triton.cdiv(num_rows, tile.height), len(self._weights)
            expert_product_kernel[grid](
                x, self._addresses, self._biases, pairs.members, pairs.counts, out,
                num_inputs, num_rows, num_outputs, num_inputs,
                PER_ROW=num_chosen if len(x) == num_rows else 1, ROWS=tile.rows, CHUNKS=tile.chunks,
                COLUMNS=tile.columns, INNER=inner, IS_WHOLE=num_inputs % inner == 0, WIDEN=IS_INTERPRETED,
                num_warps=tile.num_warps, num_stages=tile.num_stages,
            )  # fmt: skip
        return out
