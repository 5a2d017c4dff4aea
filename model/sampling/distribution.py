"""Distribution of the next token at a temperature, before and after the filters, from one row of logits.

The order is the sampler's: temperature, top_k, softmax, min_p, top_p. Tokens are kept or dropped by value, so tokens
with equal probability are all kept or all dropped. All sums are float64.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
Float64 = npt.NDArray[np.float64]

GREEDY_BELOW = 1e-5
"""The temperature below which choices are greedy, as in `model.sampling.sampler`."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution of one row at one temperature, V tokens."""

    probabilities: Float64
    """[V], before the filters."""
    kept: Float64
    """[V], after the filters: kept tokens scaled to sum to 1, the others 0."""
    num_passed: dict[str, int]
    """Number of tokens that have passed each filter and those before it, by the filter's name, in order."""

    @property
    def entropy(self) -> float:
        """Return the entropy of the whole vocabulary, in nats."""
        return entropy(self.probabilities)

    @property
    def kept_entropy(self) -> float:
        """Return the entropy after the filters, in nats."""
        return entropy(self.kept)

    @property
    def num_kept(self) -> int:
        return int(np.count_nonzero(self.kept))


def softmax(logits: Floats, temperature: float = 1.0) -> Float64:
    """Return exp(z / t) over their sum, along the last axis. t = 0 gives 1 to the largest, the first among equals."""
    z = logits.astype(np.float64)
    if temperature < GREEDY_BELOW:
        sure: Float64 = np.zeros_like(z)
        np.put_along_axis(sure, z.argmax(-1, keepdims=True), 1.0, -1)
        return sure
    # The largest is subtracted first: its exponential is 1, and none overflows.
    exponentials = np.exp((z - z.max(-1, keepdims=True)) / temperature)
    weights: Float64 = exponentials / exponentials.sum(-1, keepdims=True)
    return weights


def entropy(probabilities: Floats) -> float:
    """Return -sum p ln p of one distribution [V], in nats (Shannon 1948); 0 ln 0 is 0, and NaN results from NaN."""
    p = probabilities[probabilities != 0]
    return float(np.maximum(-(p * np.log(p)).sum(), 0.0)) + 0.0  # turns -0 into 0


def distribution(
    logits: Floats, temperature: float, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Distribution:
    """Return the distribution of one row of logits [V].

    Args:
        temperature: the logits are divided by it; 0 is greedy.
        top_k: keep the k likeliest; 0 keeps all.
        top_p: keep the likeliest that together have this share of the probability after the other filters (Holtzman et
            al. 2020, arXiv:1904.09751).
        min_p: keep those at least this share as likely as the likeliest (Nguyen et al. 2024, arXiv:2407.01082).
    """
    probabilities = softmax(logits, temperature)
    kept, is_dropped = probabilities.copy(), np.zeros(probabilities.shape, dtype=bool)
    num_passed = {}

    def drop(name: str, which: npt.NDArray[np.bool_]) -> None:
        kept[which] = 0.0
        is_dropped[which] = True
        num_passed[name] = kept.size - int(np.count_nonzero(is_dropped))

    is_limited = 0 < top_k < kept.size and temperature >= GREEDY_BELOW
    # By logit, since small probabilities round to 0.
    drop("top_k", logits < (np.partition(logits, -top_k)[-top_k] if is_limited else -np.inf))
    drop("min_p", kept < min_p * kept.max())
    drop("top_p", kept < (_nucleus_edge(kept, top_p) if top_p < 1.0 else 0.0))
    return Distribution(probabilities, kept / kept.sum(), num_passed)


def _nucleus_edge(kept: Float64, top_p: float) -> float:
    """Return the smallest probability of the nucleus. Tokens likelier than one of its tokens sum to less than top_p."""
    falling = np.sort(kept)[::-1]
    held = np.cumsum(falling)
    last = int(np.searchsorted(held, top_p * held[-1]))  # the first that reaches the share; equal ones are kept too
    return float(falling[min(last, falling.size - 1)])
