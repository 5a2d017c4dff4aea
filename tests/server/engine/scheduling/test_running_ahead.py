"""The next step may be scheduled while one runs, before the tokens of the running step are known.

Each answer equals the answer without other requests, also if requests stop, are aborted or are preempted meanwhile.
"""

import random
from collections.abc import Mapping

from lightwell.server.engine.messages.request import EmbedTask, Task
from lightwell.server.engine.scheduling.schedule import Schedule
from lightwell.server.engine.scheduling.scheduler import Scheduler
from lightwell.server.engine.sequence import UNKNOWN, Sequence, SequenceStatus
from tests.server.engine.toy_runner import (
    VOCAB_SIZE,
    ToyRunner,
    answer_alone,
    attend,
    generate,
    generated,
    scheduler,
    sequence,
)


class Device:
    """Runs steps in the order in which they were started. It has each token at once; the host gets it later."""

    def __init__(self, sched: Scheduler) -> None:
        self.runner = ToyRunner(sched)

    def run(self, schedule: Schedule, running: Mapping[int, list[int]]) -> dict[int, list[int]]:
        """Run a step after one that sampled the tokens `running`, by uid."""
        unknown = [seq for seq in schedule.sequences if seq.awaits_token]
        for seq in unknown:
            seq.token_ids[-1:] = running[seq.uid]
        try:
            return self.runner.run(schedule)
        finally:
            for seq in unknown:
                seq.token_ids[-1] = UNKNOWN


def some_sequence(uid: int) -> Sequence:
    prompt = [random.randrange(VOCAB_SIZE) for _ in range(random.choice([1, random.randint(2, 30)]))]
    stop = tuple(random.sample(range(VOCAB_SIZE), random.choice([0, 1, 2])))
    tasks: list[Task] = [generate(random.randint(0, 12), stop=stop), generate(9, stop=stop), EmbedTask(), attend()]
    encoded = [1] * random.randint(1, 9) if random.random() < 0.2 else []
    return sequence(uid, prompt, random.choice(tasks), encoded=encoded)


def test_every_answer_is_what_it_is_alone() -> None:
    preemptions = dropped = ahead = 0
    for number in range(600):
        if number >= 60 and min(preemptions, dropped, ahead) > 0:
            break
        num_blocks = random.choice([9, 12, 40])
        sched = scheduler(num_blocks=num_blocks, max_num_seqs=random.randint(2, 6), budget=20)
        device, arriving = Device(sched), [some_sequence(uid) for uid in range(12)]
        most = 4 * (num_blocks - 3)
        arriving = [seq for seq in arriving if seq.max_num_computed_tokens + seq.num_cross_tokens <= most]
        waiting, running = list(arriving), None
        while waiting or sched.has_work or running:
            while waiting and random.random() < 0.5:
                sched.add(waiting.pop())
            if running is None:
                if not sched.has_work:
                    continue
                schedule = sched.schedule()
                running = schedule, device.run(schedule, {})
                schedule.advance()
            following = None
            if random.random() < 0.8 and sched.has_work and (schedule := sched.schedule()).sequences:
                following = schedule, device.run(schedule, running[1])
                ahead += 1
            is_known = {seq.uid for seq in running[0].sequences if not seq.is_finished}
            sched.settle(running[0], {uid: token for uid, token in running[1].items() if uid in is_known})
            sched.check_integrity()
            if following is not None:
                dropped += sum(seq.is_finished for seq in following[0].sequences)
                following[0].advance()
            running = following
            if sched.sequences and random.random() < 0.03:
                sched.abort(random.choice(sched.sequences).uid)
        for seq in arriving:
            preemptions += seq.num_preemptions
            if seq.finish_reason in ("stop", "length"):
                expected = answer_alone(seq.request.prompt_token_ids, seq.task, seq.encoder_token_ids)
                assert generated(seq) == expected
            assert seq.is_finished
    assert min(preemptions, dropped, ahead) > 0, "nothing was tried"


def test_a_step_that_came_to_nothing_is_scheduled_again() -> None:
    sched = scheduler()
    seq = sequence(1, [1, 2, 3], generate(3))
    sched.add(seq)
    schedule = sched.schedule()
    schedule.advance()
    assert (seq.num_computed_tokens, seq.token_ids[-1]) == (3, UNKNOWN)
    schedule.retreat()
    assert (seq.num_computed_tokens, seq.token_ids, seq.status) == (0, [1, 2, 3], SequenceStatus.RUNNING)
    ToyRunner(sched).drain()
    assert generated(seq) == answer_alone([1, 2, 3], generate(3))


def test_nothing_is_scheduled_of_a_sequence_that_is_done_but_for_its_last_token() -> None:
    sched = scheduler()
    seq = sequence(1, [1, 2], generate(1))
    sched.add(seq)
    sched.schedule().advance()
    assert sched.schedule().sequences == []


def test_a_sequence_that_was_preempted_while_its_last_token_was_chosen_stops() -> None:
    sched = scheduler()
    seq = sequence(1, [1, 2], generate(9, stop=(3,)), encoded=[1, 1])
    sched.add(seq)
    schedule = sched.schedule()
    schedule.advance()
    sched._requests.running.pop_last()
    sched._preempt(seq)
    assert sched.settle(schedule, {1: [3]}) == [seq]
    assert (seq.finish_reason, generated(seq)) == ("stop", [3])
    sched.check_integrity()
