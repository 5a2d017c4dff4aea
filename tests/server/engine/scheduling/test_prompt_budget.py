"""Pieces of prompts next to streams. A formula gives the seconds of each step, so that no clock is involved."""

from collections.abc import Callable

import pytest

from lightwell.server.engine.scheduling.prompt_budget import ON_A_CARD, ON_A_CPU, PromptBudget, PromptLimits

PLAIN = 0.020
"""Seconds of a step that holds only the streams."""
Cost = Callable[[int, int], float]
"""Function that returns the seconds of a number of tokens that start at a position."""


def settled(cost: Cost, limits: PromptLimits = ON_A_CPU) -> PromptBudget:
    """Return the budget after one step with a prompt only, and 20 steps with streams only."""
    budget = PromptBudget(limits)
    budget.note(cost(0, 128), 0, 128)
    for _ in range(20):
        budget.note(PLAIN, 8, 0)
    return budget


def read(budget: PromptBudget, num_tokens: int, cost: Cost) -> list[float]:
    """Return the seconds of the steps that read a prompt next to 8 streams, with the most tokens that the budget
    gives.
    """
    position, seconds = 0, []
    while position < num_tokens:
        most = budget.tokens(8, 1)
        assert most is not None
        n = min(most, num_tokens - position)
        seconds.append(PLAIN + cost(position, n))
        budget.note(seconds[-1], 8, n)
        position += n
    return seconds


@pytest.mark.parametrize("seconds_per_token", [2e-5, 3e-4, 1e-3])
def test_a_prompt_makes_a_step_of_the_streams_about_twice_as_long(seconds_per_token: float) -> None:
    def cost(position: int, n: int) -> float:
        return seconds_per_token * n

    steps = read(settled(cost), 900, cost)
    assert max(steps) < 2.05 * PLAIN
    assert len(steps) <= 1 + 1.1 * 900 * seconds_per_token / PLAIN


def test_a_cost_that_every_step_with_a_prompt_has_does_not_starve_prompts() -> None:
    def cost(position: int, n: int) -> float:
        return 10 * PLAIN + 1e-6 * n

    assert len(read(settled(cost, ON_A_CARD), 12_800, cost)) <= 100


def test_on_a_card_noise_does_not_bring_a_step_with_a_prompt_over_twice_the_step_without() -> None:
    def cost(position: int, n: int) -> float:
        return 3e-5 * n + 0.1 * PLAIN * (position % 2)

    steps = read(settled(cost, ON_A_CARD), 9_001, cost)
    assert 1.5 * PLAIN < max(steps) < 2 * PLAIN


def test_tokens_that_cost_more_further_into_the_text_come_in_smaller_pieces() -> None:
    def cost(position: int, n: int) -> float:
        return 3e-4 * n * (1 + position / 900)

    assert max(read(settled(cost), 900, cost)) < 2.2 * PLAIN


def test_a_machine_that_became_slower_is_noticed_within_a_few_steps() -> None:
    budget = settled(lambda position, n: 3e-4 * n)
    assert read(budget, 4000, lambda position, n: 2.4e-3 * n)[3] <= 3 * PLAIN


def test_one_step_that_the_machine_held_up_at_most_halves_the_next() -> None:
    budget = settled(lambda position, n: 3e-4 * n)
    usual = budget.tokens(8, 1)
    assert usual is not None
    budget.note(100.0, 8, usual)
    assert budget.tokens(8, 1) == usual // 2


def test_nothing_is_bounded_before_anything_is_known() -> None:
    budget = PromptBudget()
    assert budget.tokens(8, 1) is None
    budget.note(0.09, 0, 300)
    assert budget.tokens(8, 1) is None
    budget.note(PLAIN, 8, 0)
    assert budget.tokens(8, 1) == 66


def test_steps_so_quick_that_the_clock_stood_still_are_no_reason_to_fail() -> None:
    budget = PromptBudget()
    budget.note(0.0, 0, 300)
    budget.note(0.0, 8, 0)
    assert budget.tokens(8, 1) == 16
    budget.check_integrity()


@pytest.mark.parametrize(("num_prompts", "tokens"), [(1, 200), (2, 350), (6, 350), (7, 2450), (16, 12800)])
def test_several_prompts_make_a_step_less_than_three_times_as_long_unless_they_are_nearly_as_many_as_the_streams(
    num_prompts: int, tokens: int
) -> None:
    assert settled(lambda position, n: 1e-4 * n).tokens(8, num_prompts) == tokens


def test_streams_that_become_more_while_prompts_come_without_pause_do_not_make_the_prompts_slower() -> None:
    def plain(num_decodes: int) -> float:
        return 0.006 + 0.0007 * num_decodes

    budget = PromptBudget()
    budget.note(0.3 * 0.128, 0, 128)
    budget.note(plain(8), 8, 0)
    for num_decodes in range(9, 33):
        most = budget.tokens(num_decodes, 2)
        assert most is not None
        assert 0.9 < 3e-4 * most / (1.75 * plain(num_decodes)) < 1.2
        budget.note(plain(num_decodes) + 3e-4 * most, num_decodes, most)


def test_a_step_of_few_streams_is_not_taken_for_one_of_many() -> None:
    budget = settled(lambda position, n: 1e-4 * n)
    for _ in range(20):
        budget.note(4 * PLAIN, 32, 0)
    assert (budget.tokens(8, 1), budget.tokens(32, 1)) == (200, 800)


def test_one_slow_step_of_a_number_of_streams_that_hardly_comes_does_not_make_prompts_free() -> None:
    """Add each prompt to 8 streams, so that steps without a prompt have 9 streams, except for a few slow steps."""
    budget = settled(lambda position, n: 1e-4 * n)
    for _ in range(9):
        budget.note(PLAIN, 9, 0)
    for _ in range(9):
        budget.note(3 * PLAIN, 8, 0)
    for _ in range(20):
        budget.note(PLAIN + 1e-4 * 200, 8, 200)
        budget.note(PLAIN, 9, 0)
    most = budget.tokens(8, 1)
    assert most is not None
    assert 150 < most < 250
