"""Filters of a draw: temperature, top_k, min_p and top_p turn edited logits into the tokens' weights.

The order is vLLM's: temperature -> min_p, top_k -> top_p. Tokens are kept or dropped by value, so tokens of equal
probability are all kept or all dropped: with ties at the edge, top_k and top_p may keep more than k tokens, or more
than the nucleus (as top_k in `transformers`). Each row's weights depend only on that row, bit for bit. To add a filter,
name its parameter in `FilterOptions`, and apply it in `fill_weights` and in `model.sampling.device_sampler`, which
gives the same results.

Axes: R rows, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

import torch
from torch import Tensor

from lightwell.model.layers.fixed_shapes import aligned_rows
from lightwell.model.sampling.row_search import BLOCK, take, top

PROBABILITY_UNIT_BITS = 60
"""Bits of a probability, which becomes a multiple of 2**-60: exact from 2**-36 up in float32, and a row's sum fits in
int64.
"""

RADIX_BITS = 11
"""Bits of one round of the search for the edge of a nucleus: float32 takes three rounds."""

NUM_GROUPS = (1 << RADIX_BITS) + 2
"""Groups of one round: one for each value of its bits, one for the tokens below and one for those above them all."""


class FilterOptions(Protocol):
    """The parameters of a draw. The values are valid."""

    @property
    def temperature(self) -> float: ...
    @property
    def top_p(self) -> float: ...
    @property
    def top_k(self) -> int: ...
    @property
    def min_p(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Buffers:
    """Working memory for R rows."""

    scores: Tensor
    """[R, V]"""
    probabilities: Tensor
    """[R, V]"""
    weights: Tensor
    """[R, V padded to whole blocks]: probabilities as integers, the padding zero."""
    groups: Tensor
    """[R, V]: each token's group in the search for the edge of a nucleus."""
    masses: Tensor
    """[R, groups]: the weight of each group."""

    @classmethod
    def empty(cls, rows: int, vocab_size: int, dtype: torch.dtype, device: torch.device) -> "Buffers":
        """Allocate buffers for this many rows, with scores and probabilities of `dtype`."""
        return cls(
            scores=torch.empty(rows, vocab_size, dtype=dtype, device=device),
            probabilities=torch.empty(rows, vocab_size, dtype=dtype, device=device),
            weights=torch.empty(rows, -(-vocab_size // BLOCK) * BLOCK, dtype=torch.long, device=device),
            groups=torch.empty(rows, vocab_size, dtype=torch.long, device=device),
            masses=torch.empty(rows, NUM_GROUPS, dtype=torch.long, device=device),
        )

    def first(self, rows: int) -> "Buffers":
        """Return the first rows of the same memory."""
        return Buffers(*(getattr(self, field.name)[:rows] for field in fields(self)))


def fill_weights(buffers: Buffers, options: Sequence[FilterOptions]) -> None:
    """Compute the weights of the draw from the edited scores. Overwrites every buffer."""
    scores, probabilities = buffers.scores, buffers.probabilities
    if any(each.temperature != 1.0 for each in options):
        scores.div_(_column([each.temperature for each in options], scores))
    _mask_top_k(scores, [each.top_k for each in options])
    aligned = aligned_rows(scores)
    if aligned is scores:
        torch.softmax(scores, -1, out=probabilities)
    else:
        probabilities.copy_(torch.softmax(aligned, -1)[:, : scores.shape[1]])
    if any(each.min_p for each in options):
        floor = _column([each.min_p for each in options], scores) * probabilities.amax(-1, keepdim=True)
        probabilities.masked_fill_(probabilities < floor, 0.0)
    _quantize(buffers)
    if any(each.top_p < 1.0 for each in options):
        edge = _nucleus_edge(buffers, [each.top_p for each in options])
        probabilities.masked_fill_(probabilities < edge, 0.0)
        _quantize(buffers)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    """Return per-row numbers as [R, 1] in the dtype and on the device of `like`."""
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(1)


def _mask_top_k(scores: Tensor, ks: Sequence[int]) -> None:
    """Set scores [R, V] below their row's k-th largest to -inf, in place. A k of 0, or of V and more, keeps all."""
    limited = [r for r, k in enumerate(ks) if 0 < k < scores.shape[1]]
    if not limited:
        return
    ordered = top(take(scores, limited), max(ks[r] for r in limited))[0]  # R largest k
    edges = torch.full((len(ks), 1), -math.inf, dtype=scores.dtype, device=scores.device)
    kth = torch.tensor([ks[r] - 1 for r in limited], device=scores.device).unsqueeze(1)
    edges[torch.tensor(limited, device=scores.device)] = ordered.gather(1, kth)
    scores.masked_fill_(scores < edges, -math.inf)


def _quantize(buffers: Buffers) -> None:
    """Write the probabilities into the weights as whole multiples of 2**-60, rounded down. Overwrites the scores."""
    torch.mul(buffers.probabilities, 2.0**PROBABILITY_UNIT_BITS, out=buffers.scores)
    vocab_size = buffers.scores.shape[1]
    buffers.weights[:, :vocab_size].copy_(buffers.scores)
    buffers.weights[:, vocab_size:].zero_()


def _nucleus_edge(buffers: Buffers, top_ps: Sequence[float]) -> Tensor:
    """Return the smallest probability [R, 1] of each row's nucleus, the likeliest tokens that together have top_p.

    A token belongs to it if the strictly likelier ones have less than top_p of the total; at least one does. A radix
    descent replaces sorting: floats >= 0 have the order of their bits, so the sums of weight per group of leading bits
    determine the group with the edge, then the group inside that one. Overwrites the scores.
    Source: Holtzman et al., "The curious case of neural text degeneration", arXiv 1904.09751.
    """
    dtype = buffers.probabilities.dtype
    integer = torch.int64 if dtype == torch.float64 else torch.int32
    bits, shifted = buffers.probabilities.view(integer), buffers.scores.view(integer)
    weights = buffers.weights[:, : bits.shape[1]]
    total = weights.sum(-1, keepdim=True)
    share = torch.tensor(top_ps, dtype=torch.float64, device=weights.device).unsqueeze(1)
    kept = (share * total.double()).ceil().long().clamp_min(1).minimum(total)
    dropped = total - kept  # R 1: weight that may be dropped, from the least likely up
    edge = torch.zeros(len(top_ps), 1, dtype=integer, device=weights.device)  # its leading bits found so far
    for shift in range((bits.itemsize * 8 - 1) // RADIX_BITS * RADIX_BITS, -1, -RADIX_BITS):
        # Group 0 is everything below the known leading bits, the last group everything above.
        torch.bitwise_right_shift(bits, shift, out=shifted)
        buffers.groups.copy_(shifted.sub_(edge << RADIX_BITS).clamp_(-1, 1 << RADIX_BITS).add_(1))
        cumulated = buffers.masses.zero_().scatter_add_(1, buffers.groups, weights).cumsum_(-1)
        group = torch.searchsorted(cumulated, dropped, right=True).clamp_max(NUM_GROUPS - 1)
        edge = (edge << RADIX_BITS) + (group - 1).to(integer)
    return edge.view(dtype)
