"""The next token's distribution: published figures, and the figures of the reference for the sampler's tests."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightwell.model.sampling.distribution import distribution, entropy, softmax
from tests.model.sampling.rows import params
from tests.reference import sampling as reference
from tests.support.examples import examples

# Exact arithmetic, six decimals; the rows for 0.5, 1 and 2 are those 3Blue1Brown shows for (2, 1, 0) in its chapter on
# softmax with temperature: .867 .117 .016, .665 .245 .090, .506 .307 .186.
TABLE = {
    0.2: ((0.000045, 0.006693, 0.993262), 0.040674),
    0.5: ((0.015876, 0.117310, 0.866813), 0.441057),
    1.0: ((0.090031, 0.244728, 0.665241), 0.832396),
    2.0: ((0.186324, 0.307196, 0.506480), 1.020191),
    5.0: ((0.269307, 0.328933, 0.401760), 1.085411),
    10.0: ((0.300610, 0.332225, 0.367165), 1.095287),
}


@pytest.mark.parametrize("shift", [0.0, 1000.0])
@pytest.mark.parametrize("temperature", TABLE)
def test_published_probabilities_and_entropies(temperature: float, shift: float) -> None:
    probabilities, nats = TABLE[temperature]
    found = softmax(np.array([1.0, 2.0, 3.0]) + shift, temperature)
    assert np.abs(found - probabilities).max() < 5e-7
    assert entropy(found) == pytest.approx(nats, abs=5e-7)


def test_temperature_zero_is_the_largest_and_the_first_of_equals() -> None:
    found = distribution(np.array([1.0, 3.0, 3.0]), 0.0, top_k=2, top_p=0.5, min_p=0.1)
    assert found.probabilities.tolist() == found.kept.tolist() == [0.0, 1.0, 0.0]
    assert (str(found.entropy), str(found.kept_entropy), found.num_kept) == ("0.0", "0.0", 1)  # and not -0.0


def test_a_great_temperature_makes_all_equal() -> None:
    assert np.allclose(softmax(np.array([5.0, -3.0, 0.5]), 1e9), 1 / 3)


@settings(max_examples=examples(60))
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(2, 200),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.integers(0, 30),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
)
def test_what_is_kept_is_what_the_sampler_draws_from(
    seed: int, size: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    # Quarters, so that ties happen, which stay or go together.
    logits = np.round(np.random.default_rng(seed).normal(0, 3, size) * 4) / 4
    sampling = params(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = reference.distribution(logits.tolist(), sampling)
    found = distribution(logits, temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert np.abs(found.kept - expected).max() < 1e-9
    assert found.kept.sum() == pytest.approx(1)
    # The tokens that passed a filter and all earlier filters are the tokens that only these filters keep.
    for names in (["top_k"], ["top_k", "min_p"], ["top_k", "min_p", "top_p"]):
        alone = params(temperature=temperature, **{name: getattr(sampling, name) for name in names})
        assert found.num_passed[names[-1]] >= np.count_nonzero(reference.distribution(logits.tolist(), alone))


def test_logits_that_are_no_numbers_are_not_called_certain() -> None:
    found = distribution(np.array([1.0, np.nan, 0.0]), 1.0)
    assert np.isnan(found.entropy)
    assert np.isnan(found.kept_entropy)
