"""Correlations of units over samples, against numpy's and the formula."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightwell.model.analysis.correlations import BINS, correlations, gaussian_information, independent_information


def by_hand(samples: np.ndarray) -> np.ndarray:
    rho = np.atleast_2d(np.corrcoef(samples.astype(np.float64), rowvar=False))
    upper: np.ndarray = rho[np.triu_indices(len(rho), 1)]
    return upper


@settings(max_examples=20)
@given(st.integers(3, 40), st.integers(2, 30), st.integers(0, 2**32 - 1))
def test_every_pair_is_numpys_correlation(num_samples: int, num_units: int, seed: int) -> None:
    samples = np.random.default_rng(seed).standard_normal((num_samples, num_units)).astype(np.float32)
    found = correlations(samples, 5)
    rho = by_hand(samples)
    assert found.num_pairs == len(rho)
    assert found.histogram.sum() == len(rho)
    np.testing.assert_allclose(found.mean, rho.mean(), atol=1e-12)
    np.testing.assert_allclose(found.mean_square, np.square(rho).mean(), atol=1e-12)
    np.testing.assert_allclose(np.abs(found.strongest_correlations), np.sort(np.abs(rho))[::-1][:5], atol=1e-12)
    for (i, j), value in zip(found.strongest, found.strongest_correlations, strict=True):
        np.testing.assert_allclose(value, np.corrcoef(samples[:, i], samples[:, j])[0, 1], atol=1e-6)


def test_many_blocks_of_units_are_put_together_as_one() -> None:
    samples = np.random.default_rng(2).standard_normal((30, 1300))
    found = correlations(samples, 8)
    rho = by_hand(samples)
    np.testing.assert_array_equal(found.histogram, np.histogram(rho, BINS, (-1, 1))[0])
    np.testing.assert_allclose(found.mean_information, gaussian_information(rho).mean(), rtol=1e-12)
    np.testing.assert_allclose(np.abs(found.strongest_correlations), np.sort(np.abs(rho))[::-1][:8], atol=1e-12)


def test_the_formula_at_known_points() -> None:
    # Cover and Thomas 2006, example 8.5.1: -log(1 - rho^2) / 2.
    values = gaussian_information(np.array([0.0, 0.5, -0.5, math.sqrt(1 - math.exp(-2))]))
    np.testing.assert_allclose(values, [0.0, 0.14384103622589042, 0.14384103622589042, 1.0], atol=1e-12)
    assert np.isfinite(gaussian_information(np.array([1.0, -1.0]))).all()


def test_independent_units_share_no_more_than_so_few_samples_make_them() -> None:
    samples = np.random.default_rng(11).standard_normal((50, 600))  # 179,700 pairs
    found = correlations(samples, 1)
    assert found.mean_square == pytest.approx(1 / 49, rel=0.05)
    assert found.mean_information == pytest.approx(independent_information(50), rel=0.05)


def test_units_that_never_change_are_told_and_left_out() -> None:
    samples = np.random.default_rng(3).standard_normal((20, 6)).astype(np.float32)
    samples[:, 2], samples[:, 5] = 3.3, 0.0
    found = correlations(samples, 100)
    assert found.constant_units == (2, 5)
    assert found.num_pairs == 6
    assert len(found.strongest) == 6
    assert not np.isin(found.strongest, (2, 5)).any()
    nothing = correlations(np.ones((4, 3)), 10)
    assert (nothing.num_pairs, len(nothing.strongest)) == (0, 0)
    assert np.isnan([nothing.mean, nothing.mean_square, nothing.mean_information]).all()


def test_the_strongest_pairs_are_found_whatever_their_number() -> None:
    """Check with several blocks, and with many pairs of equal strength."""
    samples = np.random.default_rng(5).integers(0, 2, (5, 700)).astype(np.float32)
    strength = np.sort(np.abs(by_hand(samples[:, samples.std(0) > 0])))[::-1]
    for count in (0, 1, 40, 2000):
        found = correlations(samples, count)
        np.testing.assert_allclose(np.abs(found.strongest_correlations), strength[:count], atol=1e-12)
        assert len({tuple(pair) for pair in found.strongest.tolist()}) == count


def test_the_blocks_of_units_end_when_their_client_left() -> None:
    calls = []

    def leave() -> None:
        calls.append("block")
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        correlations(np.random.default_rng(0).normal(size=(5, 1100)), 3, leave)
    assert len(calls) == 2
