"""Limits of steps by the seconds of earlier steps. A formula gives the seconds, so that no clock is involved."""

from collections.abc import Callable

import pytest

from lightwell.server.engine.messages.request import EmbedTask
from lightwell.server.engine.scheduling.prompt_budget import ON_A_CPU
from lightwell.server.engine.scheduling.schedule import Schedule
from lightwell.server.engine.scheduling.step_budgets import StepBudgets
from tests.server.engine.toy_runner import ToyRunner, generate, scheduler, sequence

PLAIN, PER_TOKEN = 0.020, 0.001
"""Seconds of a step that holds only the streams, and seconds of each additional token of a prompt."""


def test_a_long_prompt_makes_no_step_of_the_streams_more_than_twice_as_long() -> None:
    sched = scheduler(num_blocks=400, budget=1000)
    runner, budgets = ToyRunner(sched), StepBudgets(None, ON_A_CPU)

    def step() -> float:
        schedule = budgets.schedule(sched)
        seconds = PLAIN + PER_TOKEN * (schedule.num_tokens - schedule.num_decodes)
        sched.commit(schedule, runner.run(schedule))
        budgets.note(seconds, schedule)
        return seconds

    for uid in range(4):
        sched.add(sequence(uid, range(uid * 40, uid * 40 + 40), generate(200)))
    for _ in range(20):
        step()
    sched.add(sequence(9, range(600), generate(1)))
    seconds = [step() for _ in range(60)]
    assert sched.get(9) is None, "the prompt was not read"
    assert PLAIN < max(seconds) < 2.05 * PLAIN


def schedules(tokens_per_second: Callable[[int], float], *, encodes: bool = False) -> list[Schedule]:
    """Return the steps in which a machine reads a prompt of 8,192 tokens, or 128 texts of 64 tokens. Its speed in a
    step follows from the number of tokens read before.
    """
    sched = scheduler(num_blocks=4096, budget=2048, max_num_seqs=128)
    runner, budgets, num_read = ToyRunner(sched), StepBudgets(None, ON_A_CPU), 0
    if encodes:
        for uid in range(128):
            sched.add(sequence(uid, [1] * 64, EmbedTask(pooling="mean"), is_encoder=True))
    else:
        sched.add(sequence(1, range(8192), generate(1)))
    found: list[Schedule] = []
    while sched.has_work:
        found.append(budgets.schedule(sched))
        sched.commit(found[-1], runner.run(found[-1]))
        budgets.note(found[-1].num_tokens / tokens_per_second(num_read), found[-1])
        budgets.check_integrity()
        num_read += found[-1].num_tokens
    return found


def sizes(found: list[Schedule]) -> list[int]:
    return [schedule.num_tokens for schedule in found]


@pytest.mark.parametrize(
    ("tokens_per_second", "encodes", "expected"),
    [
        (640, False, [256, *[640] * 12, 256]),
        (640, True, [256, *[640] * 12, 256]),
        (21, False, [256, *[128] * 62]),
        (3000, False, [256, 2048, 2048, 2048, 1792]),
    ],
    ids=["a prompt", "texts", "few tokens are not split", "a quick machine"],
)
def test_on_a_slow_machine_a_step_takes_about_a_second(
    tokens_per_second: float, encodes: bool, expected: list[int]
) -> None:
    assert sizes(schedules(lambda num_read: tokens_per_second, encodes=encodes)) == expected


def test_a_text_is_read_whole_however_slow_the_machine_is() -> None:
    found = schedules(lambda num_read: 700, encodes=True)
    assert [len(schedule.encodes) for schedule in found] == [4, *[10] * 12, 4]
    assert all(schedule.num_tokens == 64 * len(schedule.encodes) for schedule in found)


def test_a_step_that_the_machine_delayed_makes_few_steps_smaller() -> None:
    delayed = schedules(lambda num_read: 3000 if num_read != 256 else 10)
    assert sizes(delayed)[:2] == [256, 2048]
    assert sizes(delayed)[2:] == [1500, 2048, 2048, 292]
