"""Measures one long prompt among running streams: how long the streams pause while it is read.

Once every stream has had its first tokens, the long prompt is sent. The figures are the gaps between a stream's tokens
from there until the first stream ends; the time to the long one's first token shows the price of short gaps.
"""

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.comparison import OURS, in_order, ratio_to_best, shown, table
from benchmarks.load import Load, Timeline, stream_completion
from benchmarks.subjects import PROMPT_TOKENS, Served

STREAMS = 8
STREAM_TOKENS = 160
SETTLED_TOKENS = 24
"""Tokens that every stream has had before the long prompt is sent."""
LONG_TOKENS = 900
LONG_OUTPUT_TOKENS = 8


@dataclass(frozen=True)
class Stall:
    """The figures of one turn, in seconds."""

    worst_gap: float
    median_gap: float
    time_to_first_token: float
    """Time to the first token of the long prompt, in seconds."""

    @property
    def times_median(self) -> float:
        return self.worst_gap / self.median_gap


async def one_among_streams(host: str, port: int, bodies: Sequence[dict[str, Any]]) -> Load:
    """Send the last of `bodies` once all others have had SETTLED_TOKENS events; it is the first of the timelines."""
    *streams, long = bodies
    settled = asyncio.Event()
    unsettled = set(range(len(streams)))

    async def stream(index: int) -> Timeline:
        def note(num_events: int) -> None:
            if num_events >= SETTLED_TOKENS:
                unsettled.discard(index)
            if not unsettled:
                settled.set()

        timeline = await stream_completion(host, port, streams[index], note)
        note(SETTLED_TOKENS)  # one that ended is not waited for
        return timeline

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stream(index)) for index in range(len(streams))]
        await settled.wait()
        answered = await stream_completion(host, port, long)
    timelines = [answered, *(task.result() for task in tasks)]
    return Load(max(line.tokens_at[-1] for line in timelines) - timelines[1].started, timelines)


def stall(load: Load) -> Stall:
    """Return the gaps of the streams between the sending of the long prompt (the first timeline) and the end of the
    first stream. A gap that was open when the prompt was sent counts. Raises RuntimeError if a stream had ended before.
    """
    long, *streams = load.timelines
    end = min(line.tokens_at[-1] for line in streams)
    gaps = [
        later - earlier
        for line in streams
        for earlier, later in pairwise(line.tokens_at)
        if later > long.started and earlier < end
    ]
    if not gaps:
        raise RuntimeError("a stream had ended when the long prompt was sent")
    return Stall(max(gaps), statistics.median(gaps), long.time_to_first_token)


def measure(subjects: Sequence[Served], turns: int) -> dict[str, list[Stall]]:
    """Measure `turns` turns of each subject, after one to warm up."""
    found: dict[str, list[Stall]] = {subject.name: [] for subject in subjects}
    for turn in range(-1, turns):
        for subject in in_order(subjects, turn):
            seed = 700_000 + turn
            bodies = subject.bodies(STREAMS, seed, PROMPT_TOKENS, STREAM_TOKENS)
            bodies += subject.bodies(1, seed + 1000, LONG_TOKENS, LONG_OUTPUT_TOKENS)
            load = subject.drive(bodies, one_among_streams)
            if turn >= 0:
                found[subject.name].append(stall(load))
    return found


def table_of_stalls(title: str, found: dict[str, list[Stall]]) -> str:
    """Return a table of the medians of the turns."""
    head = ["engine", "worst gap ms", "median gap ms", "worst / median", "ours / best peer, worst gap", "TTFT of it ms"]
    rows = [[f"{title}, {LONG_TOKENS} tokens among {STREAMS} streams", *head]]
    worst = {name: [each.worst_gap for each in stalls] for name, stalls in found.items()}
    for name, stalls in found.items():
        rows.append([
            "",
            name,
            f"{1e3 * statistics.median(worst[name]):.1f}",
            f"{1e3 * statistics.median(each.median_gap for each in stalls):.1f}",
            f"{statistics.median(each.times_median for each in stalls):.2f}",
            shown(ratio_to_best(worst, higher_is_better=False)) if name == OURS else "",
            f"{1e3 * statistics.median(each.time_to_first_token for each in stalls):.0f}",
        ])  # fmt: skip
    return table(rows)
