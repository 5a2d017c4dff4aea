"""Steady rows change only the time of a step: two schedulers, one of them without steady rows, get the same random
traffic, and always have the same tokens, ends, blocks, prefix cache and counters.
"""

import random
import sys
from typing import Any
from zlib import crc32

import pytest

from lightwell.server.engine.messages.request import BACKGROUND, Task
from lightwell.server.engine.scheduling import scheduler as scheduler_module
from lightwell.server.engine.scheduling.schedule import Schedule
from tests.server.engine.toy_runner import attend, generate, scheduler, sequence

SHARED = [random.Random(0).randrange(5) for _ in range(60)]


class World:
    """A scheduler and a network that draws tokens by uid and position. ahead: as on a device, a step is scheduled while
    the one before runs.
    """

    def __init__(self, least_rows: int, *, ahead: bool, **options: Any) -> None:
        self.scheduler = scheduler(**options)
        self.num_steady = 0
        self._least_rows, self._ahead = least_rows, ahead
        self._next: tuple[Schedule, list[int]] | None = None

    def _plan(self) -> tuple[Schedule, list[int]]:
        """Return the next step, and the uids that it samples for."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scheduler_module, "LEAST_ROWS", self._least_rows)
            schedule = self.scheduler.schedule()
        chunks = schedule.chunks
        return schedule, [each.sequence.uid for each in chunks if schedule.is_steady or each.needs_sample]

    def step(self) -> object:
        """Run a step, and return all that its clients and its operator see."""
        is_new = self._next is None
        schedule, sampled = self._next or self._plan()
        self.num_steady += schedule.is_steady
        if is_new:
            schedule.advance()
        self._next = self._plan() if self._ahead and self.scheduler.has_work else None
        ends = {chunk.sequence.uid: chunk.end for chunk in schedule.chunks}
        tokens = {uid: [crc32(b"%d %d" % (uid % 5, ends[uid])) % 40] for uid in sampled}
        ended = [(seq.uid, seq.finish_reason, list(seq.token_ids)) for seq in self.scheduler.settle(schedule, tokens)]
        if self._next is not None:
            self._next[0].advance()
        return schedule.num_tokens, schedule.num_decodes, schedule.copies, tokens, ended

    def facts(self) -> object:
        """Return the blocks of each text, the blocks' contents and the counters."""
        queues, blocks = self.scheduler._requests, self.scheduler.block_manager
        tables = [(seq.uid, seq.status, seq.block_table.tolist(), seq.num_preemptions) for seq in queues.running]
        places = list(blocks._blank), list(blocks._cached), blocks._num_holders, blocks._hash_of_block
        counters = blocks.prefix_cache_queries, blocks.prefix_cache_hits, blocks.usage, self.scheduler.num_preemptions
        return tables, [seq.uid for seq in queues.waiting], places, counters, self.scheduler.num_running

    def numbers(self) -> object:
        """Return the numbers of each text, which leave the arrays for this."""
        found = self.scheduler.sequences
        self.scheduler.check_integrity()
        return [(seq.uid, seq.num_computed_tokens, seq.captured_upto, seq.awaits_token, seq.token_ids) for seq in found]


def replay(num_steps: int, rng: random.Random) -> tuple[int, int]:
    """Compare two worlds for a number of steps. Returns the number of steady steps, and of preemptions."""
    options = {
        "ahead": rng.random() < 0.5,
        "num_blocks": rng.choice([24, 40, 90]),
        "block_size": rng.randint(1, 5),
        "max_num_seqs": rng.randint(3, 9),
        "caching": rng.random() < 0.8,
        "copying": rng.random() < 0.5,
    }
    worlds = World(2, **options), World(sys.maxsize, **options)
    most = (options["num_blocks"] - 1) * options["block_size"]
    uid, busy = 0, rng.choice([0.05, 0.2, 0.6])
    for _ in range(num_steps):
        while rng.random() < busy or not worlds[0].scheduler.has_work:
            uid += 1
            prompt = SHARED[: rng.randint(0, 20)] + [rng.randrange(5) for _ in range(rng.randint(1, 6))]
            task: Task = generate(
                rng.choice([1, 7, 12, 12, 40]), stop=tuple(rng.sample(range(40), rng.choice([0, 0, 1])))
            )
            priority = rng.choice([0, 0, 0, 0, 1, BACKGROUND])
            task = attend() if rng.random() < 0.05 else task
            for world in worlds:
                seq = sequence(uid, prompt, task, float(uid), priority=priority)
                if seq.max_num_computed_tokens < most:
                    world.scheduler.add(seq)
        told = [world.step() for world in worlds]
        assert told[0] == told[1]
        if rng.random() < 0.03:
            gone = rng.randint(max(1, uid - 8), uid)
            assert len({world.scheduler.abort(gone) is None for world in worlds}) == 1
        if rng.random() < 0.02:
            now = float(rng.randint(0, max(1, uid - 12)))
            expired = [[seq.uid for seq in world.scheduler.expired(now)] for world in worlds]
            assert expired[0] == expired[1]
        assert worlds[0].facts() == worlds[1].facts()
        if rng.random() < 0.02:
            assert worlds[0].numbers() == worlds[1].numbers()
    assert worlds[0].numbers() == worlds[1].numbers()
    assert not worlds[1].num_steady
    return worlds[0].num_steady, worlds[0].scheduler.num_preemptions


@pytest.mark.parametrize("num_rounds", [20, pytest.param(5000, marks=pytest.mark.nightly)])
def test_steady_rows_change_nothing(num_rounds: int) -> None:
    found = [replay(200, random.Random(number)) for number in range(num_rounds)]
    assert sum(steady for steady, _ in found) > 20 * num_rounds, "few steps are steady"
    assert sum(preemptions for _, preemptions in found) > num_rounds, "few texts were preempted"
