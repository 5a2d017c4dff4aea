"""Searches in all rows at once, for the edge of a set, a place in a cumulative sum, and the K largest, in a fixed
number of torch operations: nothing is read back, and no size depends on a value.

The results equal `model.sampling.row_search`'s and `model.sampling.filters`'. In a row with a NaN they are undefined.

Axes: R rows, V values of a row, a multiple of BLOCK; B values of a block, N blocks; K values.
"""

import torch
from torch import Tensor

from lightwell.model.sampling.filters import NUM_GROUPS, RADIX_BITS
from lightwell.model.sampling.row_search import BLOCK

_LANES = 16
"""Separate sums of each group, for neighbours in a row: most keys are in few groups, and additions to one place wait
for each other.
"""

SUMS_PER_ROW = NUM_GROUPS * _LANES
"""Integers that the search for an edge stores for each row."""


def ordered_keys(x: Tensor) -> Tensor:
    """Return integers with the size and the order of the floats x. -0 comes before 0."""
    bits = x.view(torch.int64 if x.dtype == torch.float64 else torch.int32)
    return _flipped(bits)


def key_value(keys: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the floats of this type with these keys."""
    return _flipped(keys).view(dtype)


def _flipped(bits: Tensor) -> Tensor:
    """Return the integers with all bits except the sign flipped where the sign is set. It is its own inverse."""
    limits = torch.iinfo(bits.dtype)
    return (bits >> (limits.bits - 1)).bitwise_and_(limits.max).bitwise_xor_(bits)


def edge_key(keys: Tensor, dropped: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the smallest key [R, 1] of each row with which it and the smaller keys weigh more than `dropped` [R, 1].

    keys [R, V] are integers, weights [R, V] int64; None is 1 each. A radix descent replaces sorting: the weights of
    the groups of leading bits determine the group with the edge, then the group inside that one.
    """
    num_bits = keys.itemsize * 8
    shift = (num_bits - 1) // RADIX_BITS * RADIX_BITS
    if weights is None:
        weights = torch.ones(1, 1, 1, dtype=torch.int32, device=keys.device)
    else:
        weights = weights.view(len(keys), -1, _LANES)
    below = torch.full_like(dropped, -1 - (1 << (num_bits - 1 - shift)))  # R 1: the leading bits before group 1
    for first in range(shift, -1, -RADIX_BITS):
        below += torch.searchsorted(_cumulated(keys, first, below, weights), dropped, right=True)
        if first:
            below = (below << RADIX_BITS).sub_(1)
    return below.to(keys.dtype)


def _cumulated(keys: Tensor, shift: int, below: Tensor, weights: Tensor) -> Tensor:
    """Return the cumulated weights [R, groups] of the groups. A key's group is its bits from `shift` on; the first
    group is `below` and less.
    """
    groups = keys >> shift if shift else keys
    # The limits come before the subtraction, which could overflow.
    groups = groups.clamp(below, below + (NUM_GROUPS - 1)).sub_(below).view(len(keys), -1, _LANES)
    sums = torch.zeros(len(keys), NUM_GROUPS, _LANES, dtype=weights.dtype, device=keys.device)
    return sums.scatter_add_(1, groups, weights.expand_as(groups)).sum(-1).cumsum_(-1)


def draw(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Return (first place whose cumulative weight exceeds uniform * total, total), both [R, 1].

    weights [R, V] are int64 with a sum in int64; uniform [R, 1] float64. The place is undefined if the total is not
    positive.
    """
    blocks = weights.view(len(weights), -1, BLOCK)
    sums = blocks.sum(-1)  # R N
    cumulated = sums.cumsum(-1)
    total = cumulated[:, -1:]
    target = (uniform * total).long().minimum(total - 1)
    block = torch.searchsorted(cumulated, target, right=True).clamp_max_(sums.shape[1] - 1)
    target = target - (cumulated - sums).gather(1, block)
    inside = blocks.gather(1, block.unsqueeze(2).expand(-1, -1, BLOCK)).squeeze(1).cumsum(-1)  # R B
    return torch.searchsorted(inside, target, right=True).add_(block, alpha=BLOCK), total


def ordered_top(x: Tensor, k: int) -> Tensor:
    """Return the places [R, K] of the k largest of each row of floats x [R, V], the first place first among equals.

    They are in the k blocks with the largest maxima, the first ones among equals.
    """
    blocks = x.view(len(x), -1, BLOCK)
    # Sorted by place, so that the first of equals is the first candidate.
    chosen = _first(blocks.amax(-1), k).sort(-1).values  # R K, or R N
    candidates = blocks.gather(1, chosen.unsqueeze(2).expand(-1, -1, BLOCK))
    at = _first(candidates.flatten(1), k)
    block = at // BLOCK
    return (at - block * BLOCK).add_(chosen.gather(1, block), alpha=BLOCK)


def _first(x: Tensor, k: int) -> Tensor:
    """Return the places [R, up to K] of the largest of x, the first place first among equals."""
    # Adding 0 turns -0 into 0: they are equal, but sorting by bits would separate them.
    return (x + 0.0).sort(dim=-1, descending=True, stable=True).indices[:, :k]
