"""Random inputs for the tests of the sampler: logits, and rows with any mixture of parameters."""

import random
from typing import Any

import torch

from lightwell.model.sampling.distribution import GREEDY_BELOW
from lightwell.model.sampling.filters import fill_weights
from lightwell.model.sampling.row_search import argmax
from lightwell.model.sampling.sampler import Sampler, SamplerRow
from lightwell.server.engine.messages.sampling_params import SamplingParams


def params(**options: Any) -> SamplingParams:
    """Parameters at their neutral values, except `options`."""
    return SamplingParams(**{"max_tokens": 1, "seed": 0, **options})


def make_logits(rows: int, vocab_size: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed % 2**63)
    return (torch.randn(rows, vocab_size, generator=generator, dtype=torch.float64) * 3).to(dtype)


def distribution(sampler: Sampler, logits: torch.Tensor, row: SamplerRow) -> torch.Tensor:
    """Return the probability [V], float64, with which the sampler chooses each token of one row of raw logits [V].

    A greedy row has one certain token. The result is all zeros when there is no usable distribution.
    """
    buffers = sampler._edited(logits.unsqueeze(0), [row])
    if row.params.temperature < GREEDY_BELOW:
        return torch.nn.functional.one_hot(argmax(buffers.scores), sampler.vocab_size)[0].double()
    fill_weights(buffers, [row.params])
    weights = buffers.weights[0, : sampler.vocab_size].clamp_min(0)  # a NaN became the least integer
    return weights / weights.sum().clamp_min(1).double()


def make_params(vocab_size: int, rng: random.Random) -> SamplingParams:
    """Any mixture; each parameter is left neutral half of the time."""

    def maybe(value: float, neutral: float) -> float:
        return value if rng.random() < 0.5 else neutral

    return params(
        temperature=rng.choice([0.0, 0.0, 0.3, 0.7, 1.0, 1.0, 2.5]),
        top_p=maybe(rng.choice([rng.uniform(0.01, 1), 1e-300]), 1.0),
        top_k=int(maybe(rng.randrange(1, vocab_size + 5), 0)),
        min_p=maybe(rng.choice([rng.uniform(0, 0.5), 1.0]), 0.0),
        repetition_penalty=maybe(rng.uniform(0.5, 2), 1.0),
        presence_penalty=maybe(rng.uniform(-2, 2), 0.0),
        frequency_penalty=maybe(rng.uniform(-2, 2), 0.0),
        logit_bias={i: rng.uniform(-100, 100) for i in some_ids(vocab_size, 4, rng)} if rng.random() < 0.3 else {},
        seed=rng.getrandbits(63),
        min_tokens=rng.choice([0, 0, 9]),
        stop_token_ids=tuple(some_ids(vocab_size + 9, 3, rng)),  # some of them are not in the vocabulary
        logprobs=rng.choice([None, None, 0, 1, 5, 20]),
    )


def make_row(vocab_size: int, rng: random.Random) -> SamplerRow:
    prompt, output = some_ids(vocab_size, 30, rng), some_ids(vocab_size, 30, rng)
    return SamplerRow(make_params(vocab_size, rng), rng.randrange(10_000), prompt + output, len(prompt))


def some_ids(end: int, most: int, rng: random.Random) -> list[int]:
    """Fewer than `most` ids from 0 to before `end`."""
    return [rng.randrange(end) for _ in range(rng.randrange(most))]
