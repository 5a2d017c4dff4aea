"""Ranks and bounds at points that are known in closed form."""

import math

import numpy as np
import pytest

from lightwell.model.analysis.spectra import (
    effective_rank,
    positivity,
    random_cosine_std,
    random_largest_cosine,
    stable_rank,
    welch_bound,
)


def test_ranks_of_equal_and_of_single_singular_values() -> None:
    # Roy and Vetterli 2007, section 2: between 1, for rank one, and the rank, for equal singular values.
    assert effective_rank(np.full(7, 0.3)) == pytest.approx(7.0)
    assert effective_rank(np.array([5.0, 0.0, 0.0])) == pytest.approx(1.0)
    assert effective_rank(np.array([2.0, 1.0])) == pytest.approx(math.exp(math.log(3) - 2 / 3 * math.log(2)))
    assert stable_rank(np.array([2.0, 1.0])) == pytest.approx(1.25)
    assert effective_rank(np.zeros(3)) == stable_rank(np.zeros(3)) == 0.0


def test_positivity_of_eigenvalues() -> None:
    assert positivity(np.array([1.0, 2.0], complex)) == 1.0
    assert positivity(np.array([-1.0, -2.0], complex)) == -1.0
    assert positivity(np.array([1j, -1j])) == pytest.approx(0.0)
    assert positivity(np.zeros(2, complex)) == 0.0


def test_what_chance_gives() -> None:
    # d = 100: 0.1; 768: 0.0361, 2.07 degrees; 12,288: 0.00902, 0.517 degrees.
    for dimension, spread, degrees in ((100, 0.1, 5.739), (768, 0.03608, 2.068), (12288, 0.009021, 0.5169)):
        assert random_cosine_std(dimension) == pytest.approx(spread, rel=1e-3)
        assert math.degrees(math.asin(random_cosine_std(dimension))) == pytest.approx(degrees, rel=1e-3)
    # 10,000 vectors in 100 dimensions: the largest of their cosines is about 0.595 by chance.
    assert random_largest_cosine(10_000 * 9_999 // 2, 100) == pytest.approx(0.595, abs=1e-3)
    assert random_largest_cosine(10**9, 2) == 1.0


def test_the_welch_bound() -> None:
    # 10,000 vectors in 100 dimensions: some pair is at most 84.29 degrees apart (N. Yoder, nickyoder.com, 2025, against
    # the claim that all can be within 89 to 91). GPT-2's tokens: 0.0358.
    bound = welch_bound(10_000, 100)
    assert bound is not None
    assert bound == pytest.approx(0.0995, abs=1e-4)
    assert math.degrees(math.acos(bound)) == pytest.approx(84.29, abs=0.01)
    assert welch_bound(50257, 768) == pytest.approx(0.0358, abs=1e-4)
    assert welch_bound(768, 768) is None
    # Met by the three directions of a Mercedes star, all 120 degrees apart: |cos| = 1/2.
    assert welch_bound(3, 2) == pytest.approx(0.5)
