"""Simulates one worker: continuous batching as `server.engine.scheduling.scheduler` does it, in simulated seconds.

It simulates requests of one client and one priority that generate text. Its steps are those of the real scheduler,
block manager and prompt budget, one by one (a test compares them). But steps in which only decodes run are made many at
once: until one ends, the cache is full, or a job arrives that could join. So a request costs a few events, however long
its answer.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from heapq import heappop, heappush
from operator import attrgetter

from benchmarks.simulation.histogram import Histogram
from benchmarks.simulation.job import Job
from benchmarks.simulation.kv_blocks import KVBlocks
from benchmarks.simulation.step import EngineLimits, Share, Work
from benchmarks.simulation.step_times import StepTimes
from server.engine.scheduling.prompt_budget import PromptBudget

_LOOKAHEAD = 128  # as the scheduler's
_REMEMBERED = 9  # as the prompt budget's: of a run of equal steps it keeps so many
_uid = attrgetter("uid")


class Replica:
    """One simulated worker. `ended` is called with each job that has its last token, `read` with each whose prompt
    is read.
    """

    def __init__(
        self,
        number: int,
        limits: EngineLimits,
        times: StepTimes,
        ended: Callable[["Replica", Job], None] = lambda replica, job: None,
        read: Callable[["Replica", Job], None] = lambda replica, job: None,
        warm_up: float = 0.0,
    ) -> None:
        self.number = number
        self.limits = limits
        self.gaps = Histogram()  # seconds between tokens, where the later one came after the warm-up
        self.num_tokens_read = 0
        self.num_tokens_written = 0
        self.num_preemptions = 0
        self.num_steps = 0
        self.busy_seconds = 0.0  # of work that is done
        self._times, self._ended, self._read, self._warm_up = times, ended, read, warm_up
        self._blocks = KVBlocks(limits.num_blocks, limits.block_size, caching=limits.prefix_caching)
        self._budget = PromptBudget()
        self._waiting: list[Job] = []
        self._prefilling: list[Job] = []
        self._decoding: dict[int, Job] = {}
        self._ends: list[tuple[int, int, int, Job]] = []  # count of steps at its last token, uid, epoch
        self._steps = 0  # steps in which all that decode had a token
        self._keys = 0  # tokens of those that decode, summed
        self._growing = [0] * limits.block_size  # how many of them need a block at each remainder of `_steps`
        self._has_block = 0  # of those who would need one now, who were admitted with it
        self._work: Work | None = None

    # ---- what others see

    @property
    def num_running(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_jobs(self) -> int:
        return self.num_running + self.num_waiting

    @property
    def kv_usage(self) -> float:
        return self._blocks.usage

    def tokens_since(self, now: float) -> int:
        """Return the tokens that the steps that ended since the last event wrote."""
        work = self._work
        if work is None or work.num_steps == 1:
            return 0
        return (work.steps_until(now) - 1) * work.num_decodes

    def busy_until(self, now: float) -> float:
        """Return the seconds in which a step ran, those of the work in flight included: that may be many steps."""
        return self.busy_seconds + (0.0 if self._work is None else now - self._work.started)

    @property
    def next_event(self) -> float | None:
        """Return when the work in flight is done, or None if there is none."""
        return None if self._work is None else self._work.started + self._work.seconds(self._work.num_steps)

    # ---- events

    def add(self, job: Job, now: float) -> None:
        """Add a job that arrives. Raises ValueError where the cache could never hold it."""
        if self._blocks.num_blocks_for(job.max_computed) > self._blocks.num_blocks:
            raise ValueError(
                f"a request of {job.max_computed} tokens needs more than the {self.limits.num_blocks} blocks of "
                f"{self.limits.block_size} that the cache has (num_blocks)"
            )
        can_join = not self._waiting and self.num_running < self.limits.max_num_seqs
        insort(self._waiting, job, key=_uid)
        if self._work is None:
            self._begin(now)
        elif can_join and self._work.num_steps > 1:  # else whoever waits goes first, and did not fit
            self._work.num_steps = self._work.steps_until(now)

    def advance(self) -> None:
        """Finish the work in flight and begin the next."""
        work, now = self._work, self.next_event
        assert work is not None
        assert now is not None
        self._work = None
        self._book_decodes(work, now)
        for job, num_tokens in work.chunks:
            self._book_chunk(job, num_tokens, now)
        self._begin(now)

    def lose(self, now: float) -> list[Job]:
        """Let the worker die, and its cache with it. Return the jobs that it had."""
        self.busy_seconds = self.busy_until(now)  # its work never comes to be booked
        jobs = [*self._waiting, *self._prefilling, *self._decoding.values()]
        limits = self.limits
        self._blocks = KVBlocks(limits.num_blocks, limits.block_size, caching=limits.prefix_caching)
        self._budget = PromptBudget()
        self._waiting, self._prefilling, self._decoding, self._ends = [], [], {}, []
        self._keys, self._growing, self._work = 0, [0] * limits.block_size, None
        return sorted(jobs, key=_uid)

    def check(self) -> None:
        """Compare the counters. Raises AssertionError."""
        decoding = self._decoding.values()
        for job in decoding:
            self._settle(job)
        tables = [max(job.table, self._blocks.num_blocks_for(job.num_tokens)) for job in decoding]
        num_held = sum(tables) + sum(job.table for job in self._prefilling)
        self._blocks.check(num_held, [*self._prefilling, *decoding])
        assert self._keys == sum(job.num_tokens for job in decoding)
        assert self.num_running <= self.limits.max_num_seqs

    # ---- choosing a step

    def _begin(self, now: float) -> None:
        if not (self._waiting or self._prefilling or self._decoding):
            return
        self._schedule_decodes(now)
        num_decodes = len(self._decoding)
        chunks = self._schedule_prompts(num_decodes)
        prompt_tokens = sum(num_tokens for _, num_tokens in chunks)
        seconds = self._times.seconds(prompt_tokens, num_decodes, self._keys)
        num_steps = 1 if chunks or self._prefilling else self._steps_alike()
        growth = self._times.per_context_key * num_decodes
        self._work = Work(now, seconds, growth, num_decodes, num_steps, chunks)

    def _schedule_decodes(self, now: float) -> None:
        """Give a block to each decode that needs one; those last in rank lose theirs where there are too few."""
        for job in [job for job in self._prefilling if _has_one_left(job)]:  # of a text that is computed again
            self._prefilling.remove(job)
            self._start_decoding(job)
            self._has_block += (job.num_tokens - 1) % self.limits.block_size == 0
        needed = self._growing[self._steps % self.limits.block_size] - self._has_block
        self._has_block = 0
        if needed <= self._blocks.num_free:
            self._blocks.take(needed)
            return
        self._preempt(now)

    def _preempt(self, now: float) -> None:
        """Give blocks in the order of rank, taken from those last in rank."""
        running = sorted([*self._prefilling, *self._decoding.values()], key=_uid)
        place = 0
        while place < len(running):
            job = running[place]
            place += 1
            if job.uid not in self._decoding:
                continue
            self._settle(job)
            if self._blocks.num_blocks_for(job.num_tokens) <= max(
                job.table, self._blocks.num_blocks_for(job.num_computed)
            ):
                continue
            while not self._blocks.num_free:
                last = running.pop()
                self._put_back(last, now)
                if last is job:
                    return
            self._blocks.take(1)
            job.table = self._blocks.num_blocks_for(job.num_tokens)

    def _put_back(self, job: Job, now: float) -> None:
        if job.uid in self._decoding:
            self._stop_decoding(job)
            job.last_token_at = now
        else:
            del self._prefilling[bisect_left(self._prefilling, job.uid, key=_uid)]
        self._blocks.free(job)
        job.num_computed = 0
        job.num_preemptions += 1
        self.num_preemptions += 1
        insort(self._waiting, job, key=_uid)

    def _schedule_prompts(self, num_decodes: int) -> list[tuple[Job, int]]:
        budget = self.limits.max_num_batched_tokens - num_decodes
        line = list(self._prefilling)
        if budget and self._waiting and self.num_running < self.limits.max_num_seqs:
            line = sorted([*line, *self._waiting[:_LOOKAHEAD]], key=_uid)
        if not budget or not line:
            return []
        if num_decodes:
            bound = self._budget.tokens(num_decodes, len(line))
            budget = budget if bound is None else min(budget, bound)
        share = Share(self._take_in, set(self._prefilling))
        share.hand_out(line, budget)
        return share.chunks

    def _take_in(self, job: Job) -> bool:
        if self.num_running >= self.limits.max_num_seqs:
            return False
        if not self._blocks.admit(job, self.num_running, self._num_growing):
            return False
        del self._waiting[bisect_left(self._waiting, job.uid, key=_uid)]
        insort(self._prefilling, job, key=_uid)
        if job.num_cached < 0:
            job.num_cached = job.num_computed
        return True

    def _num_growing(self) -> int:
        """Return the number of running jobs that may need another block."""
        count, size = 0, self.limits.block_size
        for job in self._prefilling:
            count += job.table * size < job.max_computed
        for job in self._decoding.values():
            table = self._blocks.num_blocks_for(job.num_prompt + self._steps - job.offset)
            count += max(table, job.table) * size < job.max_computed
        return count

    def _steps_alike(self) -> int:
        """Return how many steps, this one included, run before one ends or the cache is full. Jobs that wait did not
        fit, and will not fit before.
        """
        while self._ends[0][2] != self._ends[0][3].epoch:
            heappop(self._ends)
        most, free, size = self._ends[0][0] - self._steps, self._blocks.num_free, self.limits.block_size
        if (most // size + 1) * len(self._decoding) <= free:
            return most
        for step in range(1, most):
            free -= self._growing[(self._steps + step) % size]
            if free < 0:
                return step
        return most

    # ---- booking it

    def _book_decodes(self, work: Work, now: float) -> None:
        num_steps, num_decodes, size = work.num_steps, work.num_decodes, self.limits.block_size
        seconds = now - work.started
        self.num_steps += num_steps
        self.busy_seconds += seconds
        if not num_decodes:
            self._budget.note(work.first_seconds, 0, sum(num_tokens for _, num_tokens in work.chunks))
            return
        rounds, rest = divmod(num_steps - 1, size)
        needed = rounds * num_decodes + sum(self._growing[(self._steps + 1 + i) % size] for i in range(rest))
        self._blocks.take(needed)
        self._steps += num_steps
        self._keys += num_steps * num_decodes
        self.num_tokens_written += num_steps * num_decodes
        prompt_tokens = sum(num_tokens for _, num_tokens in work.chunks)
        for step in range(max(0, num_steps - _REMEMBERED), num_steps):
            self._budget.note(work.first_seconds + step * work.growth, num_decodes, prompt_tokens)
        self._note_gaps(work, now)
        done = []
        while self._ends and self._ends[0][0] <= self._steps:
            _, _, epoch, job = heappop(self._ends)
            if epoch == job.epoch:
                done.append(job)
        for job in done:
            self._stop_decoding(job)
            self._end(job, now)

    def _note_gaps(self, work: Work, now: float) -> None:
        """Count the gaps of the work's steps; those that end in the warm-up do not count."""
        if now < self._warm_up:
            return
        first = work.steps_until(self._warm_up)
        middle = work.first_seconds + work.growth * (first + work.num_steps - 2) / 2
        self.gaps.add(middle, (work.num_steps - first + 1) * work.num_decodes)

    def _book_chunk(self, job: Job, num_tokens: int, now: float) -> None:
        start = job.num_computed
        job.num_computed += num_tokens
        self.num_tokens_read += num_tokens
        self._blocks.publish(job, start)
        if job.num_computed < job.num_tokens:
            return
        del self._prefilling[bisect_left(self._prefilling, job.uid, key=_uid)]
        self.num_tokens_written += 1
        job.num_generated += 1
        job.num_tokens += 1
        if job.first_token_at < 0:
            job.first_token_at = now
            self._read(self, job)
        elif now >= self._warm_up:
            self.gaps.add(now - job.last_token_at, 1)
        if job.num_generated == job.output:
            self._end(job, now)
        else:
            self._start_decoding(job)

    def _end(self, job: Job, now: float) -> None:
        self._blocks.free(job)
        job.ended_at = now
        self._ended(self, job)

    def _start_decoding(self, job: Job) -> None:
        job.offset = self._steps - job.num_generated
        job.epoch += 1
        self._decoding[job.uid] = job
        self._keys += job.num_tokens
        self._growing[self._remainder(job)] += 1
        heappush(self._ends, (job.offset + job.output, job.uid, job.epoch, job))

    def _stop_decoding(self, job: Job) -> None:
        self._settle(job)
        job.epoch += 1
        del self._decoding[job.uid]
        self._keys -= job.num_tokens
        self._growing[self._remainder(job)] -= 1

    def _settle(self, job: Job) -> None:
        """Write to the job what it has of the steps since it began to decode."""
        job.num_generated = self._steps - job.offset
        job.num_tokens = job.num_prompt + job.num_generated
        job.num_computed = job.num_tokens - 1

    def _remainder(self, job: Job) -> int:
        """Return the remainder of the steps in which it needs a block: those whose token is the first of one."""
        return (job.offset - job.num_prompt + 1) % self.limits.block_size


def _has_one_left(job: Job) -> bool:
    return job.num_left == 1 and job.num_tokens != job.num_prompt
