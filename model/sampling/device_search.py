"""Searches all rows at once for an edge, a place in a cumulative sum, and the first few, in a fixed number of torch
operations: nothing is read back, and no size depends on a value.

The answers are those of `model.sampling.row_search` and `model.sampling.filters`. A row that holds a NaN gets any.

Axes: R rows, V values of a row, a multiple of BLOCK; B values of a block, N blocks; K values.
"""

import torch
from torch import Tensor

from model.sampling.filters import NUM_GROUPS, RADIX_BITS
from model.sampling.row_search import BLOCK

_LANES = 16
"""Sums kept of each group, for neighbours in a row: most keys fall in few groups, and additions to one place wait for
each other.
"""

SUMS_PER_ROW = NUM_GROUPS * _LANES
"""Integers that the search for an edge keeps of each row."""


def ordered_keys(x: Tensor) -> Tensor:
    """Return integers of the size of the floats x that order as these do. -0 comes before 0."""
    bits = x.view(torch.int64 if x.dtype == torch.float64 else torch.int32)
    return _flipped(bits)


def key_value(keys: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the floats of this type that have these keys."""
    return _flipped(keys).view(dtype)


def _flipped(bits: Tensor) -> Tensor:
    """Return the integers with all bits but the sign changed where that is set: of floats, an order; twice, nothing."""
    limits = torch.iinfo(bits.dtype)
    return (bits >> (limits.bits - 1)).bitwise_and_(limits.max).bitwise_xor_(bits)


def edge_key(keys: Tensor, dropped: Tensor, weights: Tensor | None = None) -> Tensor:
    """Find each row's least key [R, 1] such that it and the keys below weigh more than `dropped` [R, 1].

    keys [R, V] are integers, weights [R, V] int64, 1 each if there are none. Instead of sorting, a radix descent: the
    weight of each group of leading bits says which group holds the edge, then which group inside that one.
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
    """Return the weight [R, groups] of each group and those before it. A key's group is that of its bits from `shift`
    on, the first one being that of `below` and less.
    """
    groups = keys >> shift if shift else keys
    # The limits come before the subtraction, which could overflow.
    groups = groups.clamp(below, below + (NUM_GROUPS - 1)).sub_(below).view(len(keys), -1, _LANES)
    sums = torch.zeros(len(keys), NUM_GROUPS, _LANES, dtype=weights.dtype, device=keys.device)
    return sums.scatter_add_(1, groups, weights.expand_as(groups)).sum(-1).cumsum_(-1)


def draw(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Return (first place whose cumulative weight exceeds uniform * total, total), both [R, 1].

    weights [R, V] are int64 whose sum fits; uniform [R, 1] float64. The place means nothing where the total is not
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

    The k blocks with the largest maxima, the first ones among equals, hold them.
    """
    blocks = x.view(len(x), -1, BLOCK)
    # in the order of places, so that the first of equals is the first candidate
    chosen = _first(blocks.amax(-1), k).sort(-1).values  # R K, or R N
    candidates = blocks.gather(1, chosen.unsqueeze(2).expand(-1, -1, BLOCK))
    at = _first(candidates.flatten(1), k)
    block = at // BLOCK
    return (at - block * BLOCK).add_(chosen.gather(1, block), alpha=BLOCK)


def _first(x: Tensor, k: int) -> Tensor:
    """Return the places [R, up to K] of the largest of x, the first place first among equals."""
    # 0 for -0, which are equal, but are not so where floats are sorted by their bits
    return (x + 0.0).sort(dim=-1, descending=True, stable=True).indices[:, :k]
