"""Position biases by distance: T5's, also in MPNet (Raffel et al. 2020, arXiv:1910.10683, section 2.1), and ALiBi
(Press et al. 2021, arXiv:2108.12409).

T5 and MPNet group distances into buckets: one for each short distance, and logarithmically growing ones for longer
distances. A checkpoint has a number for each bucket and head, which all layers add to their scores. ALiBi has a fixed
slope for each head.

Axes: H heads.
"""

import math

import torch
from torch import Tensor

from lightwell.model.config import PositionBiasConfig
from lightwell.model.layers.attention_arithmetic import at_least_float32


def distance_buckets(distances: Tensor, config: PositionBiasConfig) -> Tensor:
    """Return the bucket of each distance key - query (int64, any shape): 0 .. num_buckets - 1.

    Half of the buckets (of each direction) hold one distance each; the others grow until `max_distance`, and the last
    one holds all longer distances. Unless `bidirectional`, all keys after the query are in bucket 0.
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
    # In float32 and in the order of transformers: the bounds of the buckets depend on the rounding.
    growth = torch.log(away.clamp(min=1).float() / num_near) / math.log(config.max_distance / num_near)
    far = num_near + (growth * (num_buckets - num_near)).long()
    return after + torch.where(away < num_near, away, far.clamp(max=num_buckets - 1))


def bias_by_distance(table: Tensor, config: PositionBiasConfig, reach: int) -> Tensor:
    """Return `AttentionRule.bias`, [H, 2 * reach - 1], float32 (float64 in float64), from table [num_buckets, H].

    Column i holds the bias of the distance i - reach + 1, so positions must be less than `reach`.
    """
    distances = torch.arange(1 - reach, reach, device=table.device)
    return table.to(at_least_float32(table.dtype))[distance_buckets(distances, config)].T.contiguous()


def alibi_slopes(num_heads: int) -> list[float]:
    """Return the slope of each head: 2^(-8 / n), 2^(-16 / n), ... for n heads, if n is a power of 2.

    Otherwise, the slopes for the next lower power of 2 are followed by every second slope for the next higher one.
    """
    lower = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8 * (head + 1) / lower) for head in range(lower)]
    return slopes if lower == num_heads else slopes + alibi_slopes(2 * lower)[0::2][: num_heads - lower]


def alibi(num_heads: int, reach: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return ALiBi's bias, -slope * |distance|, in the shape of `bias_by_distance`."""
    slopes = torch.tensor(alibi_slopes(num_heads), dtype=torch.float64, device=device)
    distances = torch.arange(1 - reach, reach, device=device).abs()
    return (-slopes[:, None] * distances).to(at_least_float32(dtype))
