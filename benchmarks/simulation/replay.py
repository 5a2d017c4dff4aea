"""Compares a real run with what the simulation predicts for it: the same arrivals, the same figures, the error of each.

It knows what `benchmarks.recorded_load` wrote of a run. It starts no server.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.recorded_load import Record
from benchmarks.simulation.cluster import AdmissionLimits, Cluster, Setup
from benchmarks.simulation.job import Job
from benchmarks.simulation.outcome import quantile
from benchmarks.simulation.step import EngineLimits
from benchmarks.simulation.step_times import StepTimes
from benchmarks.simulation.workload import replayed


@dataclass(frozen=True, slots=True)
class Overheads:
    """What step times leave out: seconds of a step in addition to the network, more of it for each sequence (whose
    tokens are sent, by processes that may share the worker's cores), and of a request on its way there and back.
    """

    step: float = 0.0
    sequence: float = 0.0
    request: float = 0.0

    @classmethod
    def of(cls, alone: Sequence[Record], waves: Sequence[Sequence[Record]], times: StepTimes) -> "Overheads":
        """Return the overheads of requests that had a worker to themselves, one after the other, and of waves that
        came at once. They are medians, so that one hiccup does not count.
        """
        step, requests = statistics.median(_beside(record, 1, times) for record in alone), []
        for record in alone:
            assert record.ttft is not None
            requests.append(record.ttft - times.seconds(record.prompt_tokens, 0, 0) - max(0.0, step))
        # Who has its first token last sees only steps in which each of the wave has one.
        last = [max(wave, key=lambda record: record.ttft or 0.0) for wave in waves]
        num = len(waves[0])
        more = statistics.median(_beside(record, num, times) for record in last) - max(0.0, step)
        return cls(max(0.0, step), max(0.0, more / (num - 1)), max(0.0, statistics.median(requests)))

    def added_to(self, times: StepTimes) -> StepTimes:
        """Return the step times with the overheads of steps added."""
        return replace(times, base=times.base + self.step, per_sequence=times.per_sequence + self.sequence)


def _beside(record: Record, sequences: int, times: StepTimes) -> float:
    """Return the seconds between its tokens beyond those of steps of `sequences` such sequences."""
    keys = round(sequences * (record.prompt_tokens + record.output_tokens / 2))
    return record.time_per_output_token - times.seconds(0, sequences, keys)


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run, real or not: seconds, tokens a second, and the share of prompt tokens that a cache held."""

    ttft: tuple[float, float, float]
    """p50, p90 and p99."""
    latency: tuple[float, float, float]
    tokens_per_second: float
    hit_rate: float
    num_answered: int

    @classmethod
    def of(cls, answered: Sequence[Record]) -> "Figures":
        ttfts = [record.ttft for record in answered if record.ttft is not None]
        latencies = [record.latency for record in answered]
        seconds = max(record.arrival + record.latency for record in answered) - min(each.arrival for each in answered)
        num_prompt = sum(record.prompt_tokens for record in answered)
        return cls(
            _quantiles(ttfts),
            _quantiles(latencies),
            sum(record.output_tokens for record in answered) / seconds,
            sum(record.cached_tokens for record in answered) / num_prompt,
            len(answered),
        )


def _quantiles(values: Sequence[float]) -> tuple[float, float, float]:
    return quantile(values, 0.5), quantile(values, 0.9), quantile(values, 0.99)


def setup_of(run: Mapping[str, Any], overheads: Overheads, *, seed: int = 0) -> Setup:
    """Return the simulation of what served a recorded run: workers of one server."""
    return Setup(
        replicas=run["num_workers"],
        times=overheads.added_to(StepTimes(**run["step_times"])),
        limits=EngineLimits(
            max_num_seqs=run["max_num_seqs"],
            max_num_batched_tokens=run.get("max_num_batched_tokens", 2048),
            num_blocks=run["num_blocks"] - 1,
            block_size=run["block_size"],
        ),
        policy=run["routing"],
        admission=AdmissionLimits(shared=True),
        seed=seed,
    )


def predict(setup: Setup, records: Sequence[Record], overheads: Overheads) -> list[Record]:
    """Return what would become of the same requests; those that failed in the real run do not come."""
    jobs: list[Job] = []
    Cluster(setup, jobs.append).run(replayed(records))
    answered = [job for job in jobs if not job.failure]
    return [
        Record(
            arrival=job.arrived_at,
            prompt_tokens=job.num_prompt,
            group=job.arrival.group,
            prefix_tokens=job.arrival.prefix_tokens,
            max_tokens=job.arrival.max_tokens,
            output_tokens=job.output,
            cached_tokens=job.num_cached,
            ttft=job.first_token_at - job.arrived_at + overheads.request,
            end=job.ended_at + overheads.request,
        )
        for job in answered
    ]


HEAD = ["run", "workers", "", "TTFT p50 / p90 / p99 ms", "E2E p50 / p90 / p99 ms", "tokens/s", "hit rate"]


def rows_of(name: str, num_workers: int, real: Figures, predicted: Mapping[str, Figures]) -> list[list[str]]:
    """Return rows of a table under HEAD: what was measured, then each prediction and its error in percent."""
    rows = [[name, str(num_workers), "measured", *_cells(real)]]
    for title, figures in predicted.items():
        rows.append(["", "", title, *_cells(figures)])
        rows.append(["", "", "error", *_errors(figures, real)])
    return rows


def _cells(figures: Figures) -> list[str]:
    times = [" / ".join(f"{1e3 * each:.0f}" for each in three) for three in (figures.ttft, figures.latency)]
    return [*times, f"{figures.tokens_per_second:.0f}", f"{figures.hit_rate:.3f}"]


def _errors(figures: Figures, real: Figures) -> list[str]:
    """Return the error of each figure; hit rates are shares, so their error is in points."""
    times = [
        " / ".join(_percent(ours, theirs) for ours, theirs in zip(own, other, strict=True))
        for own, other in ((figures.ttft, real.ttft), (figures.latency, real.latency))
    ]
    points = f"{100 * (figures.hit_rate - real.hit_rate):+.1f} points"
    return [*times, _percent(figures.tokens_per_second, real.tokens_per_second), points]


def _percent(ours: float, real: float) -> str:
    return f"{100 * (ours / real - 1):+.1f} %" if real else "-"
