"""A streaming client that costs little: it shares the cores with the server, so its own time is in the figures.

Speaks just enough HTTP/1.1 for one answer in chunks. Knows the wire of /v1/completions and nothing else.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any


@dataclass
class Timeline:
    """What one client saw. Seconds on one clock."""

    started: float
    tokens_at: list[float] = field(default_factory=list)
    """When each event that carried text arrived."""
    finished: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def time_to_first_token(self) -> float:
        return self.tokens_at[0] - self.started

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.tokens_at)]


@dataclass(frozen=True)
class Load:
    """What all clients saw together."""

    seconds: float
    timelines: Sequence[Timeline]

    @property
    def tokens_per_second(self) -> float:
        return sum(timeline.completion_tokens for timeline in self.timelines) / self.seconds


async def closed_loop(host: str, port: int, bodies: Sequence[dict[str, Any]], concurrency: int) -> Load:
    """Sends `bodies` with `concurrency` clients, each of which sends its next as soon as its last is answered.

    Raises:
        RuntimeError: a status other than 200, an error event, or a stream without its end.
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


async def stream_completion(
    host: str, port: int, body: dict[str, Any], on_event: Callable[[int], None] | None = None
) -> Timeline:
    """One streamed answer. `on_event` is called as they come with the number of events that carried text so far."""
    content = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    timeline = Timeline(started=time.perf_counter())
    reader, writer = await asyncio.open_connection(host, port)
    try:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        if " 200 " not in answer.partition("\r\n")[0]:
            raise RuntimeError(f"{answer.splitlines()[0]}: {(await reader.read(2000)).decode(errors='replace')}")
        await read_events(reader, timeline, on_event)
    finally:
        writer.close()
    timeline.finished = time.perf_counter()
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
    raise RuntimeError("the stream ended without [DONE]")


def note_event(chunk: dict[str, Any], now: float, timeline: Timeline) -> None:
    if "error" in chunk:
        raise RuntimeError(f"the stream failed: {chunk['error']}")
    if usage := chunk.get("usage"):
        timeline.prompt_tokens = usage["prompt_tokens"]
        timeline.completion_tokens = usage["completion_tokens"]
    if chunk["choices"]:
        timeline.tokens_at.append(now)


def percentile(values: Sequence[float], fraction: float) -> float:
    """Nearest rank; nan of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] if ordered else float("nan")
