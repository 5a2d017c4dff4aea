"""A step of a simulated worker: what bounds it, which jobs have tokens of it, how long it takes. It knows no queue
and no block.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.simulation.job import Job


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits of a worker; the names are those of the server's settings. Raises ValueError for what no server would
    take.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    num_blocks: int = 4096
    block_size: int = 32
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "num_blocks", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; at least 1 is needed")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}; it must be at least max_num_seqs "
                f"({self.max_num_seqs})"
            )


@dataclass(slots=True)
class Work:
    """A step in flight, or several of single tokens."""

    started: float
    first_seconds: float
    growth: float  # by which each step is longer than the one before
    num_decodes: int
    num_steps: int
    chunks: list[tuple[Job, int]]

    def seconds(self, num_steps: int) -> float:
        """Return the seconds of the first `num_steps` steps."""
        return num_steps * self.first_seconds + self.growth * (num_steps * (num_steps - 1) // 2)

    def steps_until(self, elapsed: float) -> int:
        """Return the step that is in flight after `elapsed` seconds, counted from 1; one that ends just then still
        is.
        """
        low, high = 1, self.num_steps
        while low < high:
            middle = (low + high) // 2
            if self.started + self.seconds(middle) < elapsed:
                low = middle + 1
            else:
                high = middle
        return low


class Share:
    """Hands out a step's tokens for prompts, like the scheduler's `_share`."""

    def __init__(self, take_in: Callable[[Job], bool], running: set[Job]) -> None:
        self.chunks: list[tuple[Job, int]] = []
        self._take_in, self._running = take_in, running
        self._served: set[Job] = set()
        self._is_open = True

    def hand_out(self, line: Sequence[Job], budget: int) -> int:
        """Hand out tokens and return what is left of the budget."""
        rest = [job for job in line if job not in self._served]
        for place, job in enumerate(rest):
            if not budget:
                break
            if job in self._served or not self._takes_part(job):
                continue
            self._served.add(job)
            num_left = job.num_left
            if 1 < budget <= num_left:
                shorter = [
                    other for other in rest[place + 1 :] if 2 * (other.num_tokens - other.num_computed) <= num_left
                ]
                half = budget // 2
                budget -= half - self.hand_out(shorter, half)
            num_tokens = min(job.num_left, budget)
            if num_tokens:
                self.chunks.append((job, num_tokens))
                budget -= num_tokens
        return budget

    def _takes_part(self, job: Job) -> bool:
        if job in self._running:
            return True
        self._is_open = self._is_open and self._take_in(job)
        if self._is_open:
            self._running.add(job)
        return self._is_open
