"""The steps of one head: differences from the network, and scores that are no numbers.

tests/server/dialects/test_looking_at_every_family.py compares each step with the formulas.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lightwell.model.analysis.explanation import Observed, differences, explain


def observe(seed: int, keys: int, size: int, *, bias: bool = False) -> tuple[Any, ...]:
    """Return the points of a network, computed by loops over plain floats, and its W_O."""
    rng, width = np.random.default_rng(seed), 5
    q, k, v = rng.normal(size=size), rng.normal(size=(keys, size)), rng.normal(size=(keys, size))
    w_o, scale = rng.normal(size=(size, width)), 0.7
    distance = rng.normal(size=keys) if bias else np.zeros(keys)
    seen = rng.random(keys) < 0.7
    seen[rng.integers(keys)] = True
    scores = []
    for j in range(keys):
        score = scale * sum(q[d] * k[j][d] for d in range(size))
        scores.append(score + distance[j] if seen[j] else -math.inf)
    total = sum(math.exp(s) for s in scores)
    pattern = [math.exp(s) / total for s in scores]
    z = [sum(pattern[j] * v[j][d] for j in range(keys)) for d in range(size)]
    result = [sum(z[d] * w_o[d][m] for d in range(size)) for m in range(width)]
    arrays = [np.array(x) for x in (q, k, v, scores, pattern, z, result)]
    return Observed(*arrays), seen, w_o, scale, distance * seen


def test_a_network_that_did_something_else_is_found_out() -> None:
    observed, seen, w_o, scale, _ = observe(0, 6, 4)
    assert max(differences(explain(observed, seen, w_o, scale, None, None), observed).values()) < 1e-12
    wrong = differences(explain(observed, seen, w_o, scale * 1.01, None, None), observed)
    assert wrong["scores"] > 1e-3
    assert max(wrong[name] for name in ("pattern", "z", "result")) < 1e-12  # each from the network's previous point
    moved = replace(observed, pattern=np.roll(observed.pattern, 1))
    far = differences(explain(moved, seen, w_o, scale, None, None), moved)
    assert {name for name, distance in far.items() if distance > 1e-6} == {"pattern", "z"}


def test_a_key_that_temperature_zero_empties_is_not_masked() -> None:
    """Guard against taking it for masked: its own score was left out, and the change to the scores was not reported."""
    observed, _, w_o, scale, distance = observe(1, 6, 4, bias=True)
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
    observed, _, w_o, scale, _ = observe(2, 5, 3)
    broken = replace(observed, scores=np.array([0.5, overflow, 1.0, -1.0, -np.inf]), pattern=np.full(5, np.nan))
    steps = explain(broken, np.array([True] * 4 + [False]), w_o, scale, None, None)
    assert np.isnan(steps.weights).all()
    assert np.isnan(steps.sum_of_exponentials)
    found = differences(steps, broken)
    assert not np.isfinite([found["scores"], found["pattern"]]).any()
    assert found["result"] < 1e-12  # of the z that the network had
