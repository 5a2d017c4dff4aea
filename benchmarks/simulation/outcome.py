"""What became of the requests of a run, in the figures that operators ask for. It knows no event and no policy."""

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.simulation.histogram import Histogram
from benchmarks.simulation.job import Job
from benchmarks.simulation.replica import Replica


@dataclass(frozen=True, slots=True)
class Objective:
    """What is promised to a request, in seconds."""

    time_to_first_token: float
    time_per_output_token: float


class Answers:
    """The answers that the clients saw."""

    def __init__(self) -> None:
        self.ttft, self.latency, self.tpot = array("d"), array("d"), array("d")
        self.output = array("q")

    def note(self, job: Job) -> None:
        self.ttft.append(job.first_token_at - job.arrived_at)
        self.latency.append(job.ended_at - job.arrived_at)
        self.tpot.append((job.ended_at - job.first_token_at) / max(1, job.output - 1))
        self.output.append(job.output)

    def kept(self, objective: Objective) -> list[int]:
        """Return the output tokens of each answer that was as promised."""
        return [
            output
            for first, each, output in zip(self.ttft, self.tpot, self.output, strict=True)
            if first <= objective.time_to_first_token and each <= objective.time_per_output_token
        ]


class Outcome:
    """The outcome of one run. Latencies, goodput and hit rate are those of requests that came after `warm_up`
    seconds, gaps those that ended after it.
    """

    def __init__(self, warm_up: float = 0.0) -> None:
        self.num_arrived = 0
        self.num_answered = 0
        self.failures: Counter[str] = Counter()
        self.num_replicas_lost = 0
        self.num_preemptions = 0
        self.request_seconds = 0.0  # the integral of the number of unfinished requests
        self.stays = 0.0  # seconds that requests were unfinished, summed
        self.replica_seconds = 0.0  # until the last arrival: what comes after is no part of a load that goes on
        self.busy_seconds = 0.0
        self.num_output_tokens = 0
        self.num_prompt_tokens = 0
        self.num_cached_tokens = 0
        self.sizes: list[tuple[float, int]] = []  # when the autoscaler wanted how many replicas
        self.gaps = Histogram()
        self._warm_up = warm_up
        self._num_failed = 0  # of those that came after it
        self._answers, self._early = Answers(), Answers()  # of those that came after it; of those before
        self._ended_at = 0.0
        self._work: list[float] = []  # tokens computed by each replica, for each second that it was there

    # ---- noting

    def note_ended(self, job: Job) -> None:
        self.num_answered += 1
        self.stays += job.ended_at - job.arrived_at
        self.num_output_tokens += job.output
        self._ended_at = max(self._ended_at, job.ended_at)
        if job.arrived_at < self._warm_up:
            self._early.note(job)
            return
        self._answers.note(job)
        self.num_prompt_tokens += job.num_prompt
        self.num_cached_tokens += job.num_cached

    def note_failed(self, job: Job) -> None:
        self.failures[job.failure] += 1
        self._num_failed += job.arrived_at >= self._warm_up
        self.stays += job.ended_at - job.arrived_at

    def note_time(self, seconds: float, busy_seconds: float) -> None:
        """Count the time that a replica was there: one that is gone, or one still there when the last request
        arrives.
        """
        self.replica_seconds += seconds
        self.busy_seconds += busy_seconds

    def note_replica(self, replica: Replica, seconds: float) -> None:
        """Count what a replica did in all its time."""
        self.num_preemptions += replica.num_preemptions
        self.gaps = Histogram.sum([self.gaps, replica.gaps])
        if seconds:
            self._work.append((replica.num_tokens_read + replica.num_tokens_written) / seconds)

    # ---- figures

    def ttft(self, fraction: float) -> float:
        """Return the seconds to the first token; nan if nothing was answered."""
        return quantile(self._answers.ttft, fraction)

    def latency(self, fraction: float) -> float:
        """Return the seconds to the last token."""
        return quantile(self._answers.latency, fraction)

    def gap(self, fraction: float) -> float:
        """Return the seconds between two tokens of a stream, within a percent."""
        return self.gaps.quantile(fraction)

    @property
    def seconds(self) -> float:
        """Return the seconds until the last answer."""
        return self._ended_at

    @property
    def tokens_per_second(self) -> float:
        """Return the output tokens a second."""
        return self.num_output_tokens / self.seconds if self.seconds else math.nan

    def goodput(self, objective: Objective) -> float:
        """Return the share of requests, refused ones included, that were answered as promised."""
        counted = len(self._answers.ttft) + self._num_failed
        return len(self._answers.kept(objective)) / counted if counted else math.nan

    def share_of_status(self, status: str) -> float:
        """Return the share of all requests that were answered with this status."""
        failed = sum(count for reason, count in self.failures.items() if reason.startswith(status))
        return failed / self.num_arrived if self.num_arrived else math.nan

    @property
    def hit_rate(self) -> float:
        """Return the share of prompt tokens found in a prefix cache."""
        return self.num_cached_tokens / self.num_prompt_tokens if self.num_prompt_tokens else math.nan

    @property
    def imbalance(self) -> float:
        """Return the largest of the replicas' rates in tokens a second, over their mean: 1 is even."""
        return max(self._work) * len(self._work) / sum(self._work) if self._work and sum(self._work) else math.nan

    @property
    def utilisation(self) -> float:
        """Return the share of the replicas' time in which a step ran."""
        return self.busy_seconds / self.replica_seconds if self.replica_seconds else math.nan

    def cost_per_million(self, price: float, objective: Objective | None = None) -> float:
        """Return the cost of a million output tokens, or of those alone that came as promised, at `price` for a
        replica's hour; nan if there are none. The warm-up's tokens are included, as its time is paid as well. If the
        load is more than the replicas can do, they work on after the last arrival, which is not paid for here:
        refusals and goodput show that it was.
        """
        num_tokens = self.num_output_tokens
        if objective is not None:
            num_tokens = sum(self._answers.kept(objective)) + sum(self._early.kept(objective))
        return self.replica_seconds / 3600 * price / num_tokens * 1e6 if num_tokens else math.nan


def quantile(values: Sequence[float], fraction: float) -> float:
    """Return the smallest value that `fraction` of them do not exceed; nan for no values."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(fraction * len(values)) - 1)]
