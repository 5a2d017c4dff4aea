"""Sampling written to be read, straight from its definition, in numpy float64: the fast sampler and the distribution
that POST /v1/next shows are proved against it. One row at a time, token by token; no production code uses it.

Axes: V vocabulary.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lightwell.server.engine.messages.sampling_params import SamplingParams

Float64 = NDArray[np.float64]


def edited_logits(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int] = (), output: Sequence[int] = ()
) -> Float64:
    """Return the logits [V] before temperature and filters: with biases, bans and penalties for generated tokens."""
    scores = np.array(logits, dtype=np.float64)
    for token_id, bias in params.logit_bias.items():
        scores[token_id] += bias
    if len(output) < params.min_tokens:
        for token_id in params.stopping_ids:
            if token_id < len(scores):
                scores[token_id] = -np.inf
    for token_id in {*prompt, *output}:
        old = scores[token_id]
        scores[token_id] = old * params.repetition_penalty if old < 0 else old / params.repetition_penalty
    for token_id, count in Counter(output).items():
        scores[token_id] -= params.frequency_penalty * count + params.presence_penalty
    return scores


def distribution(
    logits: Sequence[float], params: SamplingParams, prompt: Sequence[int] = (), output: Sequence[int] = ()
) -> Float64:
    """The probability [V] with which each token comes next; all 0 where no token can."""
    scores = edited_logits(logits, params, prompt, output)
    if params.temperature == 0:
        return np.asarray(np.eye(len(scores))[int(np.argmax(scores))])
    if np.isneginf(scores).all():
        return np.zeros(len(scores))
    scores = scores / params.temperature
    if 0 < params.top_k < len(scores):
        scores[scores < np.sort(scores)[-params.top_k]] = -np.inf
    p = softmax(scores)
    p[p < params.min_p * p.max()] = 0
    p /= p.sum()
    if params.top_p < 1:
        p = np.array([mass if p[p > mass].sum() < params.top_p else 0.0 for mass in p])
    return np.asarray(p / p.sum(), dtype=np.float64)


def draw(probabilities: Float64, uniform: float) -> set[int]:
    """Return the tokens that a random number in [0, 1) may draw: the first with a cumulated probability above it.

    It is one token, or the tokens next to each other at a boundary that the number meets within rounding.
    """
    cumulated = np.cumsum(probabilities)
    around = np.searchsorted(cumulated, [uniform - 1e-12, uniform + 1e-12], side="right")
    possible = np.arange(around[0], min(int(around[1]), len(probabilities) - 1) + 1)
    return {int(token_id) for token_id in possible if probabilities[token_id] > 0}


def softmax(scores: Float64) -> Float64:
    """exp(score) over their sum, the largest subtracted first."""
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum(), dtype=np.float64)
