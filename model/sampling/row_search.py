"""Searches in the last dimension of each row: the largest value, the k largest, a place in a cumulative sum.

Every result is exact and depends only on its own row. Independent of tokens and probabilities.

Axes: R rows, V values of a row, N blocks of a row, B values of a block, K largest values.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lightwell.model.kernels import rows as row_kernels
from lightwell.model.kernels.choice import AUTO, KernelConfig

BLOCK = 64
"""Values of a block. A two-level search reads a row once, at memory speed; torch.argmax and topk are slower."""


def take(x: Tensor, rows: list[int]) -> Tensor:
    """Return these ascending rows of x [R, V]: x itself, or a view, when they are consecutive."""
    if len(rows) == len(x):
        return x
    if rows[-1] - rows[0] == len(rows) - 1:
        return x[rows[0] : rows[-1] + 1]
    return x[torch.tensor(rows, device=x.device)]


def in_blocks(x: Tensor) -> Tensor:
    """Return x [R, N * B] as [R, N, B]."""
    return x.unfold(1, BLOCK, BLOCK)


def argmax(x: Tensor, kernels: KernelConfig = AUTO) -> Tensor:
    """Return the id [R] of the largest value of each row of x [R, V], the lowest id among equals; a NaN's id, if there
    is one.

    torch.argmax returns the first maximum, but is scalar on CPUs. numpy's takes a tenth of the time, in one thread and
    for its own types; bfloat16 has a kernel of ours. For other types the block is searched first.
    """
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(x.numpy().argmax(-1))
    if _has_kernel(x, kernels):
        return row_kernels.argmax(x)[0]
    full = x.shape[1] // BLOCK * BLOCK
    if full < 2 * BLOCK:
        return x.argmax(-1)
    blocks = in_blocks(x[:, :full])  # R N B
    block = blocks.amax(-1).argmax(-1)  # R
    values, inside = blocks[torch.arange(x.shape[0], device=x.device), block].max(-1)
    best = block * BLOCK + inside
    if full == x.shape[1]:
        return best
    tail_values, tail = x[:, full:].max(-1)
    return torch.where((tail_values > values) | tail_values.isnan(), tail + full, best)


def largest(x: Tensor, kernels: KernelConfig = AUTO) -> tuple[list[int], list[float]]:
    """Return the ids of `argmax` in the rows of x, and the values there."""
    if _has_kernel(x, kernels):
        ids, numbers = row_kernels.argmax(x)
        return ids.tolist(), numbers.tolist()
    found = argmax(x, kernels)
    return found.tolist(), x.gather(1, found[:, None])[:, 0].tolist()


def _has_kernel(x: Tensor, kernels: KernelConfig) -> bool:
    return x.dtype == torch.bfloat16 and x.is_contiguous() and kernels.why_not_native(x.dtype, x.device) is None


def top(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return (values, ids) [R, K] of the k largest of each row of x [R, V], descending; the choice among equals is
    unspecified.

    They are in the k blocks with the largest maxima, or in the tail that fills no block.
    """
    full = x.shape[1] // BLOCK * BLOCK
    if full < 4 * k * BLOCK:
        largest = x.topk(k, dim=-1)
        return largest.values, largest.indices
    blocks = in_blocks(x[:, :full])  # R N B
    chosen = blocks.amax(-1).topk(k, dim=-1).indices  # R K
    candidates = blocks.gather(1, chosen.unsqueeze(2).expand(-1, -1, BLOCK)).flatten(1)  # R K*B
    values, at = torch.cat([candidates, x[:, full:]], 1).topk(k, dim=-1)
    nth = at // BLOCK
    in_block = chosen.gather(1, nth.clamp_max(k - 1)) * BLOCK + (at - nth * BLOCK)
    return values, torch.where(at < k * BLOCK, in_block, at - k * BLOCK + full)


def ordered_top_ids(scores: Tensor, k: int) -> Tensor:
    """Return the ids [R, K] of the k largest of each row of scores [R, V], falling; of equals the lowest id first."""
    size = scores.shape[1]
    values, ids = top(scores, min(k + 1, size))  # one more, to detect a tie across the edge
    by_id = ids[:, :k].sort(-1)
    order = values[:, :k].gather(1, by_id.indices).sort(dim=-1, descending=True, stable=True).indices
    result = by_id.values.gather(1, order)
    if k < size:
        for r in (values[:, k - 1] == values[:, k]).nonzero().flatten().tolist():
            rivals = (scores[r] >= values[r, k]).nonzero().squeeze(1)  # in order of id
            result[r] = rivals[scores[r, rivals].sort(dim=-1, descending=True, stable=True).indices[:k]]
    return result


def locate(weights: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return (first place with a cumulative weight over the target, target less the weight before it), both [R, 1].

    weights [R, N] and target [R, 1] are integers: sums are exact in any order, and the place has a weight above zero.
    """
    cumulated = weights.cumsum(-1)
    place = torch.searchsorted(cumulated, target, right=True).clamp_max(weights.shape[1] - 1)
    return place, target - (cumulated.gather(1, place) - weights.gather(1, place))


def pick(weights: Tensor, units: Sequence[float]) -> Tensor:
    """Return the first place [R] with a cumulative weight over unit * total (inverse CDF), or -1 if all weights of a
    row are zero.

    weights [R, N * B] are integers >= 0 with a sum in int64; units are in [0, 1).
    """
    blocks = in_blocks(weights)  # R N B
    sums = blocks.sum(-1)  # R N
    total = sums.sum(-1, keepdim=True)
    unit = torch.tensor(units, dtype=torch.float64, device=weights.device).unsqueeze(1)
    target = (unit * total.double()).long().minimum(total - 1)  # R 1
    block, target = locate(sums, target)
    inside, _ = locate(blocks[torch.arange(len(units), device=weights.device), block.squeeze(1)], target)
    return (block * BLOCK + inside).masked_fill(total <= 0, -1).squeeze(1)
