"""The steps of one head against plain loops."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.analysis.explanation import Observed, differences, explain


def observe(
    rng: np.random.Generator, keys: int, size: int, width: int, cap: float | None, bias: bool, sink: float | None = None
) -> tuple[Any, ...]:
    """Return the points of a network, computed by loops over plain floats, and its W_O."""
    q, k, v = rng.normal(size=size), rng.normal(size=(keys, size)), rng.normal(size=(keys, size))
    w_o, scale = rng.normal(size=(size, width)), 0.7
    distance = rng.normal(size=keys) if bias else np.zeros(keys)
    seen = rng.random(keys) < 0.7
    seen[rng.integers(keys)] = True
    scores = []
    for j in range(keys):
        score = scale * sum(q[d] * k[j][d] for d in range(size))
        if cap is not None:
            score = cap * math.tanh(score / cap)
        scores.append(score + distance[j] if seen[j] else -math.inf)
    total = sum(math.exp(s) for s in scores) + (0.0 if sink is None else math.exp(sink))
    pattern = [math.exp(s) / total for s in scores]
    z = [sum(pattern[j] * v[j][d] for j in range(keys)) for d in range(size)]
    result = [sum(z[d] * w_o[d][m] for d in range(size)) for m in range(width)]
    arrays = [np.array(x) for x in (q, k, v, scores, pattern, z, result)]
    return Observed(*arrays), seen, w_o, scale, distance * seen


@settings(max_examples=50)
@given(
    seed=st.integers(0, 2**32 - 1),
    keys=st.integers(1, 12),
    size=st.integers(1, 8),
    cap=st.sampled_from([None, 1.5]),
    bias=st.booleans(),
    sink=st.sampled_from([None, -2.0, 5.0]),
)
def test_every_step_is_what_the_loops_give(
    seed: int, keys: int, size: int, cap: float | None, bias: bool, sink: float | None
) -> None:
    observed, seen, w_o, scale, distance = observe(np.random.default_rng(seed), keys, size, 5, cap, bias, sink)
    steps = explain(observed, seen, w_o, scale, cap, distance if bias else None, sink)
    assert max(differences(steps, observed).values()) < 1e-12
    assert np.allclose(steps.products.sum(-1) * scale, steps.scaled)
    assert np.allclose(steps.position_bias, distance)
    assert np.isclose(steps.weights.sum(), 1 - steps.sink_exponential / steps.sum_of_exponentials)
    assert (steps.sink_exponential == 0) == (sink is None)
    assert np.allclose(steps.weights, steps.exponentials / steps.sum_of_exponentials)
    assert (steps.weights[~steps.visible] == 0).all()
    assert np.allclose(steps.weighted_values.sum(0), observed.z)


def test_a_network_that_did_something_else_is_found_out() -> None:
    observed, seen, w_o, scale, _ = observe(np.random.default_rng(0), 6, 4, 5, None, False)
    wrong = differences(explain(observed, seen, w_o, scale * 1.01, None, None), observed)
    assert wrong["scores"] > 1e-3
    assert max(wrong[name] for name in ("pattern", "z", "result")) < 1e-12  # each from the network's previous point
    moved = replace(observed, pattern=np.roll(observed.pattern, 1))
    far = differences(explain(moved, seen, w_o, scale, None, None), moved)
    assert {name for name, distance in far.items() if distance > 1e-6} == {"pattern", "z"}


def test_a_key_that_temperature_zero_empties_is_not_masked() -> None:
    """Guard against taking it for masked: its own score was left out, and the change to the scores was not reported."""
    observed, _, w_o, scale, distance = observe(np.random.default_rng(1), 6, 4, 5, None, True)
    seen = np.array([True] * 4 + [False] * 2)
    plain = np.where(seen, scale * (observed.keys @ observed.q) + distance, -np.inf)
    first = int(plain.argmax())
    pattern = np.eye(6)[first]
    cold = replace(
        observed, scores=np.where(pattern == 1, 0.0, -np.inf), pattern=pattern, z=observed.values[first],
        result=observed.values[first] @ w_o,
    )  # fmt: skip
    steps = explain(cold, seen, w_o, scale, None, distance)
    assert np.allclose(steps.scores[seen], plain[seen])
    assert np.isneginf(steps.scores[~seen]).all()
    assert steps.visible.tolist() == seen.tolist()
    assert steps.weights.tolist() == pattern.tolist()
    found = differences(steps, cold)
    assert found.pop("scores") == np.inf
    assert max(found.values()) < 1e-12


@pytest.mark.parametrize("overflow", [np.inf, np.nan])
def test_a_score_that_overflowed_makes_no_weights_up(overflow: float) -> None:
    observed, _, w_o, scale, _ = observe(np.random.default_rng(2), 5, 3, 4, None, False)
    broken = replace(observed, scores=np.array([0.5, overflow, 1.0, -1.0, -np.inf]), pattern=np.full(5, np.nan))
    steps = explain(broken, np.array([True] * 4 + [False]), w_o, scale, None, None)
    assert np.isnan(steps.weights).all()
    assert np.isnan(steps.sum_of_exponentials)
    found = differences(steps, broken)
    assert not np.isfinite([found["scores"], found["pattern"]]).any()
    assert found["result"] < 1e-12  # of the z that the network had
