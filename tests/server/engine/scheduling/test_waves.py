"""Delays of streams if each client sends its next request after the answer to its last one.

Requests of equal lengths that begin together end together, so prompts arrive in waves. The scheduler and its budgets
are the real ones; a formula gives the seconds of each step, so that no clock is involved.
"""

from heapq import heappop, heappush
from itertools import pairwise

import pytest

from lightwell.server.engine.scheduling.prompt_budget import ON_A_CPU
from lightwell.server.engine.scheduling.schedule import Schedule
from lightwell.server.engine.scheduling.step_budgets import StepBudgets
from tests.server.engine.toy_runner import generate, scheduler, sequence

PROMPT_TOKENS, OUTPUT_TOKENS = 128, 64
ROUND_TRIP = 0.007
"""Seconds from the end of an answer until the engine has the client's next request."""


def step_seconds(num_decodes: int, num_prompt_tokens: int) -> float:
    """Return seconds as measured for 124M parameters in bfloat16 on two cores: the weights are read once, and once
    more if there are many rows.
    """
    many_rows = num_prompt_tokens > 0 and num_decodes + num_prompt_tokens > 64
    return 0.0066 + 0.00065 * num_decodes + 0.006 * many_rows + 0.0003 * num_prompt_tokens


def closed_loop(num_clients: int, num_requests: int, apart: float) -> tuple[list[list[float]], float]:
    """Return the times of each request's tokens, and the total seconds; requests are at least `apart` seconds apart."""
    sched = scheduler(budget=2048, max_num_seqs=64, num_blocks=2048, block_size=32, caching=False)
    budgets = StepBudgets(None, ON_A_CPU)
    budgets.note(step_seconds(0, 128), Schedule([], 128))  # it has served before
    budgets.note(step_seconds(8, 0), Schedule([], 8, num_decodes=8))
    arrivals = [apart * i for i in range(num_clients)]
    told: list[list[float]] = []
    now, latest = 0.0, arrivals[-1]
    while arrivals or sched.has_work:
        while arrivals and arrivals[0] <= now:
            heappop(arrivals)
            sched.add(sequence(len(told), range(PROMPT_TOKENS), generate(max_tokens=OUTPUT_TOKENS)))
            told.append([])
        if not sched.has_work:
            now = arrivals[0]
            continue
        schedule = budgets.schedule(sched)
        num_prompt_tokens = schedule.num_tokens - schedule.num_decodes
        seconds = step_seconds(schedule.num_decodes, num_prompt_tokens)
        budgets.note(seconds, schedule)
        now += seconds
        new_tokens = {chunk.sequence.uid: [1] for chunk in schedule.chunks if chunk.needs_sample}
        for uid in new_tokens:
            told[uid].append(now)
        for _ in sched.commit(schedule, new_tokens):
            if len(told) + len(arrivals) < num_requests:
                latest = max(now + ROUND_TRIP, latest + apart)
                heappush(arrivals, latest)
    return told, now


@pytest.mark.parametrize("apart", [0.003, 0.005, 0.008])
def test_of_a_hundred_gaps_ninety_nine_stay_under_three_steps_while_prompts_come_in_waves(apart: float) -> None:
    told, seconds = closed_loop(32, 96, apart)
    gaps = sorted(later - earlier for times in told for earlier, later in pairwise(times))
    assert len(gaps) == 96 * (OUTPUT_TOKENS - 1)
    assert gaps[int(0.99 * len(gaps))] < 3 * step_seconds(32, 0)
    together = 3 * (32 * PROMPT_TOKENS * 0.0003 + (OUTPUT_TOKENS - 1) * step_seconds(32, 0))
    assert seconds < 1.1 * together  # had all prompts of a wave been read at once


def test_a_wave_that_finds_few_streams_is_read_at_once() -> None:
    told, _ = closed_loop(8, 8, 0.002)
    first = sorted(times[0] for times in told)
    assert first[1] == first[-1]
