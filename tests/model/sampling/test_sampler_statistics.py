"""Draws have the frequencies that they should, with fresh seeds in every run.

A chi-square test fails below P_VALUE, so each assertion here is a false alarm once in 1 / P_VALUE runs.
"""

import secrets

import numpy as np
import pytest
import torch

from lightwell.model.sampling.philox import random_uniform
from lightwell.model.sampling.sampler import Sampler, SamplerRow
from lightwell.server.engine.messages.sampling_params import SamplingParams
from tests.model.sampling.rows import params
from tests.reference import sampling as reference

P_VALUE = 1e-9
NUM_DRAWS = 20_000
VOCAB_SIZE = 150


def p_value(counts: np.ndarray, expected: np.ndarray) -> float:
    """Return the p-value of a chi-square test of goodness of fit. Cells that expect fewer than five are merged."""
    small = expected < 5
    counts = np.append(counts[~small], counts[small].sum())
    expected = np.append(expected[~small], expected[small].sum())
    if expected[-1] == 0:
        assert counts[-1] == 0, "a token of probability zero was drawn"
        counts, expected = counts[:-1], expected[:-1]
    statistic = float(((counts - expected) ** 2 / expected).sum())
    half_degrees = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half_degrees, torch.tensor(statistic / 2, dtype=torch.float64)))


def draw_counts(logits: torch.Tensor, sampling: SamplingParams, history: list[int]) -> np.ndarray:
    """Return how often each token came in NUM_DRAWS draws at successive positions."""
    rows = [SamplerRow(sampling, position, history) for position in range(NUM_DRAWS)]
    tokens = Sampler(len(logits)).sample(logits.expand(NUM_DRAWS, -1), rows)
    return np.bincount([token.token_id for token in tokens], minlength=len(logits))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.6},
        {
            "temperature": 1.3,
            "top_k": 40,
            "top_p": 0.9,
            "min_p": 0.01,
            "frequency_penalty": 0.5,
            "logit_bias": {3: 2.0},
        },
    ],
    ids=str,
)
def test_frequencies_are_those_of_the_reference(options: dict[str, float]) -> None:
    sampling = params(seed=secrets.randbits(63), **options)
    logits = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(11)).double() * 2
    history = [5, 5, 9]
    expected = reference.distribution(logits.tolist(), sampling, (), history) * NUM_DRAWS
    assert p_value(draw_counts(logits, sampling, history), expected) > P_VALUE


def test_this_file_would_notice_a_temperature_that_is_wrong_by_a_tenth() -> None:
    """Check that the test has power; odds of a false alarm are under 1e-6: the expected statistic is far above the
    bound.
    """
    sampling = params(seed=secrets.randbits(63), temperature=1.1)
    logits = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(11)).double() * 2
    expected = reference.distribution(logits.tolist(), params()) * NUM_DRAWS
    assert p_value(draw_counts(logits, sampling, []), expected) < P_VALUE


@pytest.mark.parametrize("vary", ["position", "seed"])
def test_units_are_uniform_and_neighbours_are_unrelated(vary: str) -> None:
    """Check that pairs of neighbours fall evenly into 10 x 10 cells, along the positions of a seed or the seeds of a
    position.
    """
    start, fixed = secrets.randbits(62), secrets.randbits(20)
    units = [
        random_uniform(start + i, fixed) if vary == "seed" else random_uniform(start, fixed + i) for i in range(40_000)
    ]
    cells = (np.array(units) * 10).astype(int)
    counts = np.bincount(cells[0::2] * 10 + cells[1::2], minlength=100)
    assert p_value(counts, np.full(100, 200.0)) > P_VALUE
