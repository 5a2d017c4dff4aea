"""Share of captures in the time of steps. A formula gives the seconds of each step, so that no clock is involved."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from lightwell.server.engine.scheduling.capture_budget import SHARE, CaptureBudget, StepWork

PLAIN = 0.020
"""Seconds of a step that holds only the streams."""


@dataclass
class Run:
    """Steps in which captures used their whole budget."""

    capture_tokens: list[int]
    seconds: list[float]

    @property
    def share(self) -> float:
        """Return the share of the time that captures took."""
        return 1 - PLAIN * len(self.seconds) / sum(self.seconds)


def run(budget: CaptureBudget, num_steps: int, cost: Callable[[int], float], *, only_decodes: bool = True) -> Run:
    """Run steps of 8 streams with captures of n tokens, which cost `cost(n)` seconds."""
    done = Run([], [])
    for _ in range(num_steps):
        n = budget.tokens
        done.capture_tokens.append(n)
        done.seconds.append(PLAIN + (cost(n) if n else 0.0))
        budget.note(done.seconds[-1], StepWork(8, n, only_decodes))
    return done


@pytest.mark.parametrize("seconds_per_token", [1e-5, 1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("seconds_per_step", [0.0, 0.002])
def test_inspections_take_their_share_of_the_time_and_no_more(
    seconds_per_token: float, seconds_per_step: float
) -> None:
    budget = CaptureBudget(2048)
    done = run(budget, 1000, lambda n: seconds_per_step + seconds_per_token * n)
    assert 0.9 * SHARE < done.share < SHARE + 0.005


def test_a_step_with_inspections_is_at_most_half_as_long_again() -> None:
    budget = CaptureBudget(2048)
    run(budget, 200, lambda n: 1e-3 * n)
    assert max(run(budget, 500, lambda n: 1e-3 * n).seconds) < 1.5 * PLAIN


def test_inspections_that_cost_nothing_still_leave_every_second_step_to_text_and_stay_below_their_bound() -> None:
    done = run(CaptureBudget(32), 100, lambda n: 0.0)
    assert max(done.capture_tokens) == 32
    assert all(0 in pair for pair in zip(done.capture_tokens, done.capture_tokens[1:], strict=False))
    assert sum(done.capture_tokens[-20:]) == 10 * 32


def test_inspections_become_smaller_where_they_become_dear() -> None:
    budget = CaptureBudget(2048)
    run(budget, 100, lambda n: 1e-5 * n)
    before = max(run(budget, 20, lambda n: 1e-5 * n).capture_tokens)
    run(budget, 200, lambda n: 1e-3 * n)
    after = max(run(budget, 40, lambda n: 1e-3 * n).capture_tokens)
    assert 0 < after < before / 10


def test_one_token_that_costs_a_whole_step_is_still_given_now_and_then() -> None:
    done = run(CaptureBudget(32), 400, lambda n: PLAIN * n)
    assert set(done.capture_tokens[100:]) == {0, 1}
    assert done.share <= SHARE + 0.005


def test_a_step_that_the_machine_held_up_does_not_keep_inspections_waiting_for_long() -> None:
    budget = CaptureBudget(32)
    run(budget, 50, lambda n: 1e-3 * n)
    while not budget.tokens:
        budget.note(PLAIN, StepWork(8, 0, True))
    budget.note(60.0, StepWork(8, budget.tokens, True))
    assert sum(run(budget, 40, lambda n: 1e-3 * n).capture_tokens) > 0


def test_inspections_get_their_share_of_steps_that_read_prompts_without_pause() -> None:
    """Run steps that do not show the cost of captures, so that it is estimated by their share of the tokens."""
    done = run(CaptureBudget(2048), 1000, lambda n: PLAIN * n / 8, only_decodes=False)
    assert 0.5 * SHARE < done.share <= SHARE + 0.005


def test_a_pause_is_not_saved_up_for_a_rush() -> None:
    budget = CaptureBudget(32)
    run(budget, 100, lambda n: 1e-3 * n)
    for _ in range(10_000):  # no request captures
        budget.note(PLAIN, StepWork(8, 0, True))
    assert run(budget, 500, lambda n: 1e-3 * n).share < SHARE + 0.005
