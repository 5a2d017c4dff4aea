"""Rollout and flow: the two-layer example, and flows of networkx."""

import networkx
import numpy as np
import pytest
from networkx.algorithms.flow import preflow_push

from lightwell.model.analysis.rollout import flow, rollout, with_residual

# Two layers over two words, by hand from Abnar and Zuidema 2020 (arXiv:2005.00928), equation 1 and section 4. With the
# residual, (A + I) / 2, the second word's rows are [.25, .75] and [.1, .9]. Rollout: .1 * 1 + .9 * .25 = .325 and
# .9 * .75 = .675. Flow: .1 straight down and .25 of the .9 over the second word reach the first, .75 of it the second.
EXAMPLE = np.array([[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.2, 0.8]]])


def test_rollout_of_the_two_layer_example() -> None:
    assert np.allclose(list(rollout(EXAMPLE))[-1], np.array([[1, 0], [0.325, 0.675]]))


def test_flow_of_the_two_layer_example() -> None:
    found = flow(EXAMPLE, 1)
    assert np.allclose(found, [0.35, 0.75])
    assert np.allclose(found / found.sum(), [0.3182, 0.6818], atol=5e-5)
    assert np.allclose(flow(EXAMPLE, 0), [1, 0])


def causal(seed: int, layers: int, length: int) -> np.ndarray:
    pattern: np.ndarray = np.tril(np.random.default_rng(seed).random((layers, length, length)) ** 3)
    scaled: np.ndarray = pattern / pattern.sum(-1, keepdims=True)
    return scaled


def test_rollout_is_the_product_of_the_layers_and_its_rows_sum_to_one() -> None:
    patterns = causal(seed=2, layers=4, length=6)
    product: np.ndarray = np.eye(6)
    for pattern, rolled in zip(patterns, rollout(patterns), strict=True):
        product = (0.5 * pattern + 0.5 * np.eye(6)) @ product
        assert np.allclose(rolled, product)
        assert np.allclose(rolled.sum(-1), 1)


@pytest.mark.parametrize(
    ("layers", "length", "is_causal"), [(1, 9, True), (2, 3, True), (5, 12, True), (6, 10, False), (3, 1, True)]
)
def test_flows_are_networkxs(layers: int, length: int, is_causal: bool) -> None:
    """Check also graphs with paths that go up again, which two or three layers of two or three words hardly have."""
    rng = np.random.default_rng(layers)
    patterns = rng.random((layers, length, length)) ** 6  # a few large weights: the flow must avoid full edges
    patterns = np.tril(patterns) if is_causal else patterns
    patterns /= patterns.sum(-1, keepdims=True)
    graph = networkx.DiGraph()
    for (level, i, j), capacity in np.ndenumerate(with_residual(patterns)):
        graph.add_edge((level + 1, i), (level, j), capacity=round(capacity * 2**30))
    query = length - 1
    expected = [
        networkx.maximum_flow_value(graph, (layers, query), (0, j), flow_func=preflow_push) / 2**30
        for j in range(length)
    ]
    assert np.allclose(flow(patterns, query), expected, atol=1e-7)


def test_a_flow_that_nobody_waits_for_any_more_ends_before_its_next_input() -> None:
    def check() -> None:
        if next(inputs, None) is None:
            raise InterruptedError

    inputs = iter(range(3))
    with pytest.raises(InterruptedError):
        flow(causal(seed=1, layers=2, length=6), 5, check)
    inputs = iter(range(3))
    assert len(flow(causal(seed=1, layers=2, length=3), 2, check)) == 3
