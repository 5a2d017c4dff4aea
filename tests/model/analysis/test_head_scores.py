"""Scores of uniform attention, scores that are not numbers, and repeated random tokens."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightwell.model.analysis.head_scores import (
    MEASURES,
    repeated_positions,
    repeated_random_tokens,
    repeated_text_scores,
    text_scores,
)


def rows_of(pattern: np.ndarray, token_ids: list[int], offsets: tuple[int, ...] = ()) -> np.ndarray:
    """Return the engine's reduction of one head's pattern [query, key], by its definition, as [1, query, measure]."""
    rows = []
    for q, weights in enumerate(pattern):
        after = [p + 1 for p in range(q) if token_ids[p] == token_ids[q]]
        rows.append(
            [
                weights[q - 1] if q else 0.0,
                weights[q],
                weights[0],
                -sum(w * math.log(w) for w in weights if w > 0),
                sum(w * abs(q - k) for k, w in enumerate(weights)),
                sum(weights[k] for k in after),
                *(weights[q - offset] if q >= offset else 0.0 for offset in offsets),
            ]
        )
    return np.array([rows])


def uniform(length: int) -> np.ndarray:
    return np.tril(np.ones((length, length))) / np.arange(1, length + 1)[:, None]


def of(scores: np.ndarray) -> dict[str, float]:
    return dict(zip(MEASURES, scores[0].tolist(), strict=True))


def test_uniform_causal_attention_over_four_tokens_twice() -> None:
    """Check that TransformerLens's diagonal has 1/4 to 1/8: their mean is 0.176905."""
    ids = [1, 2, 3, 4] * 2
    found = of(repeated_text_scores(rows_of(uniform(8), ids, offsets=(3,)), 4))
    assert found["induction"] == pytest.approx(0.176905, abs=5e-7)
    assert found["entropy"] == pytest.approx(sum(math.log(i + 1) for i in range(8)) / 8)


def test_without_a_repeated_token_there_is_no_induction_score() -> None:
    found = of(text_scores(rows_of(uniform(3), [1, 2, 3]), [1, 2, 3]))
    assert math.isnan(found["induction"])


def test_one_token_has_nothing_before_it() -> None:
    found = of(text_scores(rows_of(uniform(1), [1]), [1]))
    assert math.isnan(found["previous_token"])
    assert found["self"] == 1


@given(st.lists(st.integers(0, 4), max_size=20))
def test_a_position_is_repeated_when_its_token_came_before(ids: list[int]) -> None:
    assert repeated_positions(ids).tolist() == [q for q in range(len(ids)) if ids[q] in ids[:q]]


def test_random_tokens_come_twice_behind_the_start_and_from_the_choices_alone() -> None:
    drawn = repeated_random_tokens([3, 5, 8], 10, 4, seed=7, bos=1)
    assert [len(row) for row in drawn] == [21] * 4
    for row in drawn:
        assert row[0] == 1
        assert row[1:11] == row[11:]
        assert set(row[1:]) <= {3, 5, 8}
    assert drawn == repeated_random_tokens([3, 5, 8], 10, 4, seed=7, bos=1)
    assert drawn != repeated_random_tokens([3, 5, 8], 10, 4, seed=8, bos=1)
