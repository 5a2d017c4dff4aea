"""A streaming client that costs little: it shares the cores with the server, so its own time is in the figures.

Speaks just enough HTTP/1.1 for one answer in chunks. Knows the wire of /v1/completions and nothing else. Times are
those of `vllm bench serve`.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any


class Unanswered(RuntimeError):
    """A status other than 200, an error event, or a stream without its end."""


@dataclass
class Timeline:
    """What one client saw. Seconds on one clock."""

    started: float
    tokens_at: list[float] = field(default_factory=list)
    """When each event that carried text arrived."""
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def time_to_first_token(self) -> float:
        return self.tokens_at[0] - self.started

    @property
    def latency(self) -> float:
        """Of the whole answer: up to the last event with text."""
        return self.tokens_at[-1] - self.started

    @property
    def time_per_output_token(self) -> float:
        """After the first one. Counts tokens, where `gaps` counts events, and so does not mind tokens held back."""
        return (self.tokens_at[-1] - self.tokens_at[0]) / max(1, self.completion_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Between events: inter-token latencies."""
        return [later - earlier for earlier, later in pairwise(self.tokens_at)]


@dataclass(frozen=True)
class Load:
    """What all clients saw together."""

    seconds: float
    """From the first request to the end of the last answer."""
    timelines: Sequence[Timeline]
    """Of each request that was answered whole."""
    unanswered: Sequence[str] = ()
    """Why, of each other request."""

    @property
    def tokens_per_second(self) -> float:
        return sum(timeline.completion_tokens for timeline in self.timelines) / self.seconds


async def closed_loop(host: str, port: int, bodies: Sequence[dict[str, Any]], concurrency: int) -> Load:
    """Sends `bodies` with `concurrency` clients, each of which sends its next as soon as its last is answered.

    Raises:
        ExceptionGroup: of Unanswered, or of what ended a connection.
    """
    waiting = list(reversed(bodies))
    timelines: list[Timeline] = []

    async def client() -> None:
        while waiting:
            timelines.append(await stream_completion(host, port, waiting.pop()))

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(client())
    return Load(time.perf_counter() - started, timelines)


async def open_loop(host: str, port: int, bodies: Sequence[dict[str, Any]], arrivals: Sequence[float]) -> Load:
    """Sends each body at its time of `arrivals`, in seconds from now, whether or not those before it are answered."""
    timelines: list[Timeline] = []
    unanswered: list[str] = []

    async def request(body: dict[str, Any], due: float) -> None:
        await asyncio.sleep(started + due - time.perf_counter())
        try:
            timelines.append(await stream_completion(host, port, body))
        except (Unanswered, OSError, asyncio.IncompleteReadError) as error:
            unanswered.append(str(error))

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for body, due in zip(bodies, arrivals, strict=True):
            group.create_task(request(body, due))
    return Load(time.perf_counter() - started, timelines, unanswered)


def poisson_arrivals(count: int, rate: float, seed: int) -> list[float]:
    """When `count` requests come, at `rate` a second in the mean, in seconds from the start.

    Drawn gaps are scaled so that the last request comes at count / rate: all seeds offer the same load.
    """
    draw = random.Random(seed)
    times = list(accumulate(draw.expovariate(rate) for _ in range(count)))
    return [at * count / rate / times[-1] for at in times]


async def stream_completion(
    host: str, port: int, body: dict[str, Any], on_event: Callable[[int], None] | None = None
) -> Timeline:
    """One streamed answer. `on_event` is called as they come with the number of events that carried text so far.

    Raises Unanswered, and what ends a connection: OSError, IncompleteReadError.
    """
    content = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    timeline = Timeline(started=time.perf_counter())
    reader, writer = await asyncio.open_connection(host, port)
    try:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        if " 200 " not in answer.partition("\r\n")[0]:
            raise Unanswered(f"{answer.splitlines()[0]}: {(await reader.read(2000)).decode(errors='replace')}")
        await read_events(reader, timeline, on_event)
    finally:
        writer.close()
    return timeline


async def read_events(
    reader: asyncio.StreamReader, timeline: Timeline, on_event: Callable[[int], None] | None = None
) -> None:
    """Reads a chunked body of server-sent events up to `[DONE]`."""
    pending = b""
    while size := int(await reader.readline(), 16):
        pending += (await reader.readexactly(size + 2))[:-2]
        now = time.perf_counter()
        *events, pending = pending.split(b"\n\n")
        for event in events:
            data = event.partition(b"data: ")[2]
            if data == b"[DONE]":
                return
            note_event(json.loads(data), now, timeline)
        if on_event is not None:
            on_event(len(timeline.tokens_at))
    raise Unanswered("the stream ended without [DONE]")


def note_event(chunk: dict[str, Any], now: float, timeline: Timeline) -> None:
    if "error" in chunk:
        raise Unanswered(f"the stream failed: {chunk['error']}")
    if usage := chunk.get("usage"):
        timeline.prompt_tokens = usage["prompt_tokens"]
        timeline.completion_tokens = usage["completion_tokens"]
    if chunk["choices"]:
        timeline.tokens_at.append(now)


def percentile(values: Sequence[float], fraction: float) -> float:
    """Between the two nearest ranks in proportion, as numpy does it; nan of nothing."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    rank = fraction * (len(ordered) - 1)
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (rank - below) * (ordered[above] - ordered[below])
