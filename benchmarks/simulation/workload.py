"""Makes what comes in: when, how long, and which prompts begin alike. It is drawn from a seed, or read from a
recording.

It knows requests as lengths. It does not know what answers them.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from benchmarks.recorded_load import Record

NO_GROUP = -1


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request. Raises ValueError where it has no prompt or no answer, or more prefix than prompt."""

    at: float  # seconds from the start
    prompt_tokens: int
    output_tokens: int
    group: int = NO_GROUP  # prompts of one group begin with the same `prefix_tokens`; NO_GROUP is like no other
    prefix_tokens: int = 0
    max_tokens: int = 0  # what it asked for, where it may end earlier; 0 is `output_tokens`

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.output_tokens < 1 or 0 < self.max_tokens < self.output_tokens:
            raise ValueError(f"{self}: a request has a prompt and an answer of at least a token, within max_tokens")
        if not 0 <= self.prefix_tokens <= self.prompt_tokens:
            raise ValueError(f"{self}: prefix_tokens must be from 0 to prompt_tokens")


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal number of tokens: most are short, a few are long. `spread` 0 is always the mean.

    Raises ValueError where there is nothing to draw.
    """

    mean: float
    spread: float = 0.0  # standard deviation of the logarithm
    most: int = 1 << 20
    least: int = 1

    def __post_init__(self) -> None:
        if not self.mean > 0 or not self.spread >= 0 or not 1 <= self.least <= self.most:
            raise ValueError(f"{self}: mean must be above 0, spread at least 0, and 1 <= least <= most")

    def draw(self, random_numbers: random.Random) -> int:
        if not self.spread:
            return max(self.least, min(self.most, round(self.mean)))
        drawn = random_numbers.lognormvariate(math.log(self.mean) - self.spread**2 / 2, self.spread)
        return max(self.least, min(self.most, round(drawn)))


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Prompts that begin alike: `groups` of them, the i-th most popular asked for in proportion to 1 / i**zipf."""

    groups: int = 0
    tokens: int = 0  # that they share
    zipf: float = 1.0
    share: float = 1.0  # of the requests that belong to a group


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests for `seconds`; `prompts` are the lengths beyond the shared prefix.

    `burstiness` is the squared coefficient of variation of the gaps: 1 is Poisson, 4 comes in bursts (gamma gaps).
    `rate` is requests a second, or a function of the time. Raises ValueError where one of these is not above 0.
    """

    rate: float | Callable[[float], float]
    seconds: float
    prompts: Lengths
    outputs: Lengths
    prefixes: Prefixes = Prefixes()
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        rate = 1.0 if callable(self.rate) else self.rate
        for name, value in (("rate", rate), ("seconds", self.seconds), ("burstiness", self.burstiness)):
            if not value > 0:
                raise ValueError(f"{name} is {value}; it must be above 0")

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """Return the same arrivals for the same seed, in order of time."""
        draw = random.Random(seed)
        shares = [1 / place**self.prefixes.zipf for place in range(1, self.prefixes.groups + 1)]
        weights, groups = list(accumulate(shares)), range(self.prefixes.groups)
        now = 0.0
        while True:
            rate = self.rate(now) if callable(self.rate) else self.rate
            now += draw.gammavariate(1 / self.burstiness, self.burstiness / rate)
            if now >= self.seconds:
                return
            group, shared = NO_GROUP, 0
            if groups and draw.random() < self.prefixes.share:
                group, shared = draw.choices(groups, cum_weights=weights)[0], self.prefixes.tokens
            yield Arrival(now, shared + self.prompts.draw(draw), self.outputs.draw(draw), group, shared)


def replayed(records: Iterable[Record]) -> list[Arrival]:
    """Return what came in a real run, in order of time: its answered requests."""
    arrivals = [
        Arrival(
            record.arrival,
            record.prompt_tokens,
            record.output_tokens,
            NO_GROUP if record.group is None else record.group,
            record.prefix_tokens,
            record.max_tokens,
        )
        for record in records
        if record.error is None
    ]
    return sorted(arrivals, key=lambda arrival: arrival.at)
