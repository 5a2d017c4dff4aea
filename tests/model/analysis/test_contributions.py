"""Lengths and attributions of weighted values: a published example, rounding, and values that are no numbers."""

import numpy as np

from lightwell.model.analysis.contributions import (
    head_attributions,
    stream_attributions,
    value_attributions,
    value_lengths,
    value_norms,
)


def test_a_small_weight_on_a_long_vector_can_matter_more() -> None:
    """Check an example of Kobayashi et al. 2020: the weights favour the second word, the lengths of the weighted
    vectors the first.
    """
    values, pattern = np.array([[10.0, 0.0], [0.0, 1.0]]), np.array([[0.2, 0.8]])
    assert np.allclose(value_norms(pattern, values, np.eye(2)), [[2.0, 0.8]])


def test_rounding_makes_no_length_imaginary() -> None:
    gram = np.full((2, 2), 1.0, np.float32)
    assert np.isfinite(value_lengths(np.array([[1.0, -1.0 - 1e-7]], np.float32), gram)).all()


def test_values_that_overflowed_are_no_numbers_and_give_no_warning() -> None:
    values, gram = np.array([[1.0, 2.0], [np.inf, -np.inf], [3.0, 0.0]]), np.array([[1.0, 0.5], [0.5, 1.0]])
    pattern = np.array([[0.5, 0.25, 0.25]])
    for found in (
        value_norms(pattern, values, gram),
        value_attributions(pattern, values, np.array([1.0, 1.0]), np.array([2.0])),
    ):
        assert np.isfinite(found).tolist() == [[True, False, True]]
    mixed = values[None, 1:2]
    assert np.isnan(head_attributions(mixed, np.ones((1, 2)), np.ones(1))).all()
    assert np.isnan(stream_attributions(values[1:2], np.ones(2), np.ones(1))).all()
