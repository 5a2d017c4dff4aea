"""How the seconds of steps bound the prompts of later steps: a machine of plain arithmetic, without a clock."""

from server.engine.scheduling.prompt_budget import ON_A_CPU
from server.engine.scheduling.step_budgets import StepBudgets
from tests.server.engine.toy_runner import ToyRunner, generate, scheduler, sequence

PLAIN, PER_TOKEN = 0.020, 0.001
"""Seconds of a step of the streams alone, and of each token of a prompt beside them."""


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
