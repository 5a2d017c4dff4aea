"""The factored sums against the full sums, in which every tensor of width d_model is built."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from model.analysis.contributions import (
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


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), queries=st.integers(1, 5), keys=st.integers(1, 6), centred=st.booleans())
def test_norms_and_attributions_are_those_of_the_moves_built_whole(
    seed: int, queries: int, keys: int, centred: bool
) -> None:
    rng = np.random.default_rng(seed)
    heads, size, width = 3, 4, 7
    pattern = rng.dirichlet(np.ones(keys), (heads, queries))
    values, w_o = rng.normal(size=(heads, keys, size)), rng.normal(size=(heads, size, width))
    gamma, u = rng.normal(size=width), rng.normal(size=width)
    divisor, sigma = rng.random(queries) + 0.5, rng.random(queries) + 0.5
    m = (w_o - centred * w_o.mean(-1, keepdims=True)) * gamma

    raw = pattern[..., None] * (values @ w_o)[:, None]  # [head, query, key, d_model]
    moves = (raw - centred * raw.mean(-1, keepdims=True)) * gamma / divisor[:, None, None]
    for h in range(heads):
        norms = value_norms(pattern[h], values[h], m[h] @ m[h].T, divisor)
        assert np.allclose(norms, np.linalg.norm(moves[h], axis=-1))
        found = value_attributions(pattern[h], values[h], m[h] @ u, divisor * sigma)
        assert np.allclose(found, moves[h] @ u / sigma[:, None])

    z = np.einsum("hqk,hkd->qhd", pattern, values)
    whole = head_attributions(z, m @ u, divisor * sigma)
    assert np.allclose(whole, (moves @ u / sigma[:, None]).sum(-1).T)
    assert np.allclose(stream_attributions(moves.sum((0, 2)), u, sigma), whole.sum(-1))


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
