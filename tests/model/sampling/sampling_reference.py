"""Sampling the slow, obvious way, in numpy float64: what the fast sampler is held against."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from model.sampling.sampler import SamplerRow


@dataclass(frozen=True, kw_only=True)
class Params:
    """Sampling parameters at their neutral values."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int = 0
    min_tokens: int = 0
    stopping_ids: tuple[int, ...] = ()
    logprobs: int | None = None


def edited_scores(logits: Sequence[float], row: SamplerRow) -> NDArray[np.float64]:
    """Scores after bans, biases and penalties, token by token."""
    params, scores = row.params, np.array(logits, dtype=np.float64)
    for token_id, bias in params.logit_bias.items():
        scores[token_id] += bias
    if len(row.output_token_ids) < params.min_tokens:
        for token_id in params.stopping_ids:
            scores[token_id] = -np.inf
    for token_id in {*row.prompt_token_ids, *row.output_token_ids}:
        old = scores[token_id]
        scores[token_id] = old * params.repetition_penalty if old < 0 else old / params.repetition_penalty
    for token_id, count in Counter(row.output_token_ids).items():
        scores[token_id] -= params.frequency_penalty * count + params.presence_penalty
    return scores


def distribution(logits: Sequence[float], row: SamplerRow) -> NDArray[np.float64]:
    """The probability of each token."""
    params, scores = row.params, edited_scores(logits, row)
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


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum(), dtype=np.float64)
