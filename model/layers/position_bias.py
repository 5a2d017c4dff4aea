"""Computes position biases by distance: of T5 and MPNet (Raffel et al. 2020, arXiv:1910.10683, section 2.1), and ALiBi
(Press et al. 2021, arXiv:2108.12409). It knows distances alone.

In T5 and MPNet a distance falls into one of a few buckets: near distances each have their own, far ones share, on a
logarithmic scale. A checkpoint has one number for each bucket and head, which every layer adds to its scores. ALiBi is
a slope for each head, which is not learned.

Axes: H heads.
"""

import math

import torch
from torch import Tensor

from model.config import PositionBiasConfig


def distance_buckets(distances: Tensor, config: PositionBiasConfig) -> Tensor:
    """Return the bucket of each distance key - query (int64, any shape): 0 .. num_buckets - 1.

    Half of the buckets (of each direction's) hold one distance each; the others grow until `max_distance`, and the last
    holds everything beyond. Unless `bidirectional`, all keys after the query fall into bucket 0.
    """
    if config.bidirectional:
        num_buckets = config.num_buckets // 2
        after = (distances > 0) * num_buckets
        away = distances.abs()
    else:
        num_buckets = config.num_buckets
        after = torch.zeros_like(distances)
        away = (-distances).clamp(min=0)
    num_near = num_buckets // 2
    # In float32 and in this order as transformers does it: where a bucket ends hangs on the rounding.
    growth = torch.log(away.clamp(min=1).float() / num_near) / math.log(config.max_distance / num_near)
    far = num_near + (growth * (num_buckets - num_near)).long()
    return after + torch.where(away < num_near, away, far.clamp(max=num_buckets - 1))


def bias_by_distance(table: Tensor, config: PositionBiasConfig, reach: int) -> Tensor:
    """Return the bias for `AttentionRule.bias`, [H, 2 * reach - 1], from table [num_buckets, H]: float32, or float64 in
    float64.

    Column i belongs to the distance i - reach + 1, so that no position may be `reach` or more.
    """
    distances = torch.arange(1 - reach, reach, device=table.device)
    wide = table if table.dtype == torch.float64 else table.float()
    return wide[distance_buckets(distances, config)].T.contiguous()


def alibi_slopes(num_heads: int) -> list[float]:
    """Return the slope of each head: 2^(-8 / n), 2^(-16 / n), ... for n heads, if n is a power of 2.

    For other numbers the authors take those of the next lower power, and then every second one of the next higher.
    """
    lower = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (head + 1) / lower) for head in range(lower)]
    return slopes if lower == num_heads else slopes + alibi_slopes(2 * lower)[0::2][: num_heads - lower]


def alibi(num_heads: int, reach: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the bias of ALiBi as `bias_by_distance` does: -slope * |distance|."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    slopes = torch.tensor(alibi_slopes(num_heads), dtype=torch.float64, device=device)
    distances = torch.arange(1 - reach, reach, device=device).abs()
    return (-slopes[:, None] * distances).to(wide)
