"""A simulated worker does, step by step, what the real scheduler, block manager and prompt budget do."""

import random
from dataclasses import dataclass, field, replace

import pytest

from benchmarks.simulation.job import Job
from benchmarks.simulation.replica import Replica
from benchmarks.simulation.step import EngineLimits
from benchmarks.simulation.step_times import StepTimes
from benchmarks.simulation.workload import Arrival, Lengths, Prefixes, Workload
from server.engine.base_task import Stacks
from server.engine.request import EngineRequest, GenerateTask
from server.engine.sampling_params import SamplingParams
from server.engine.scheduling.block_manager import BlockManager
from server.engine.scheduling.prompt_budget import PromptBudget
from server.engine.scheduling.scheduler import Scheduler
from server.engine.scheduling.scheduler_config import SchedulerConfig
from server.engine.sequence import Sequence

DYADIC = StepTimes(base=2.0**-7, per_prompt_token=2.0**-13, per_sequence=2.0**-11, per_context_key=2.0**-20)
"""Sums of these are exact, in whatever order: times can be compared for equality."""


@dataclass
class Told:
    """What one request returned: when its first and its last token came, and how many tokens of its prompt were
    cached.
    """

    first_token_at: float = -1.0
    ended_at: float = -1.0
    num_cached: int = -1


@dataclass
class Run:
    told: dict[int, Told] = field(default_factory=dict)
    num_preemptions: int = 0
    num_steps: int = 0


def really(arrivals: list[Arrival], limits: EngineLimits, times: StepTimes) -> Run:
    """Return what the real scheduler, block manager and prompt budget do with these, step by step."""
    blocks = BlockManager(limits.num_blocks + 1, limits.block_size)
    config = SchedulerConfig(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        enable_prefix_caching=limits.prefix_caching,
    )
    scheduler, budget, run, now = Scheduler(config, blocks), PromptBudget(), Run(), 0.0
    waiting = list(enumerate(arrivals))

    def bound(num_decodes: int, num_prompts: int) -> int:
        found = budget.tokens(num_decodes, num_prompts) if num_decodes else None
        return limits.max_num_batched_tokens if found is None else found

    while waiting or scheduler.has_work:
        if not scheduler.has_work:
            now = max(now, waiting[0][1].at)
        while waiting and waiting[0][1].at <= now:
            uid, arrival = waiting.pop(0)
            run.told[uid] = Told()
            scheduler.add(sequence_of(uid, arrival))
        schedule = scheduler.schedule(None, bound)
        decodes = schedule.chunks[: schedule.num_decodes]
        num_prompt_tokens = schedule.num_tokens - schedule.num_decodes
        seconds = times.seconds(num_prompt_tokens, schedule.num_decodes, sum(chunk.end for chunk in decodes))
        now += seconds
        run.num_steps += 1
        sampled = {
            chunk.sequence.uid: 1_000_000 + chunk.sequence.uid
            for chunk in schedule.chunks
            if chunk.sequence.needs_sample(chunk)
        }
        for uid in sampled:
            if run.told[uid].first_token_at < 0:
                run.told[uid].first_token_at = now
                sequence = scheduler.get(uid)
                assert sequence is not None
                run.told[uid].num_cached = sequence.num_cached_tokens
        for sequence in scheduler.commit(schedule, sampled):
            run.told[sequence.uid].ended_at = now
        budget.note(seconds, schedule.num_decodes, num_prompt_tokens)
    run.num_preemptions = scheduler.num_preemptions
    return run


def sequence_of(uid: int, arrival: Arrival) -> Sequence:
    shared = [arrival.group] * arrival.prefix_tokens
    prompt = [*shared, *[2_000_000 + uid] * (arrival.prompt_tokens - len(shared))]
    sampling = SamplingParams(max_tokens=arrival.output_tokens, temperature=0.0, seed=uid)
    request = EngineRequest(
        uid=uid, prompt_token_ids=tuple(prompt), task=GenerateTask(sampling=sampling), arrival_time=arrival.at
    )
    return Sequence(request, Stacks(decoder=2, encoder=0))


def simulated(arrivals: list[Arrival], limits: EngineLimits, times: StepTimes) -> Run:
    """Return the same by one simulated worker."""
    run, jobs = Run(), [Job(uid, arrival, limits.block_size) for uid, arrival in enumerate(arrivals)]
    replica = Replica(0, limits, times)
    for job in jobs:
        while (event := replica.next_event) is not None and event < job.arrived_at:
            replica.advance()
        replica.add(job, job.arrived_at)
        replica.check()
    while replica.next_event is not None:
        replica.advance()
        replica.check()
    run.told = {job.uid: Told(job.first_token_at, job.ended_at, job.num_cached) for job in jobs}
    run.num_preemptions, run.num_steps = replica.num_preemptions, replica.num_steps
    return run


def on_grid(at: float) -> float:
    return round(at * 2.0**16) / 2.0**16


LIMITS = {
    "roomy": EngineLimits(max_num_seqs=16, max_num_batched_tokens=512, num_blocks=4096, block_size=16),
    "few seats": EngineLimits(max_num_seqs=3, max_num_batched_tokens=64, num_blocks=512, block_size=16),
    "small cache": EngineLimits(max_num_seqs=16, max_num_batched_tokens=128, num_blocks=48, block_size=16),
    "small blocks": EngineLimits(max_num_seqs=16, max_num_batched_tokens=128, num_blocks=200, block_size=4),
    "no prefix cache": EngineLimits(max_num_seqs=8, max_num_batched_tokens=128, num_blocks=64, prefix_caching=False),
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS.keys())
def test_a_worker_does_step_by_step_what_the_real_scheduler_does(limits: EngineLimits, seed: int) -> None:
    draw = random.Random(seed)
    workload = Workload(
        rate=draw.choice([2.0, 8.0, 30.0]),
        seconds=12.0,
        prompts=Lengths(40, 1.0, most=300),
        outputs=Lengths(30, 0.8, most=200),
        prefixes=Prefixes(groups=4, tokens=draw.choice([30, 64, 100]), share=0.7),
        burstiness=3.0,
    )
    arrivals = list(
        {at: replace(each, at=at) for each in workload.arrivals(seed) for at in [on_grid(each.at)]}.values()
    )
    real, ours = really(arrivals, limits, DYADIC), simulated(arrivals, limits, DYADIC)
    assert ours.num_steps == real.num_steps
    assert ours.num_preemptions == real.num_preemptions
    assert ours.told == real.told


def test_a_prompt_that_is_all_cached_still_computes_its_last_block() -> None:
    limits = EngineLimits(block_size=16)
    twins = [Arrival(at, 64, 5, group=1, prefix_tokens=64) for at in (0.0, 1.0)]
    real, ours = really(twins, limits, DYADIC), simulated(twins, limits, DYADIC)
    assert ours.told == real.told
    assert [told.num_cached for told in ours.told.values()] == [0, 48]
