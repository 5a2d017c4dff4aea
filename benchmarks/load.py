"""Streaming client with little overhead: it shares the cores with the server, so its own time affects the figures.

During a load it only records received bytes with their times, in uvloop's event loop; they are parsed afterwards. It
implements just enough HTTP/1.1 for one chunked answer of /v1/completions. Times are defined as in `vllm bench serve`.
"""

import asyncio
import json
import random
import time
from bisect import bisect_left
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

_EVENT = b"data: {"
_DONE = b"data: [DONE]"


def run(load: Coroutine[Any, Any, T]) -> T:
    """Run a load as `asyncio.run` does, in a loop that costs half as much."""
    return uvloop.run(load)


class Unanswered(RuntimeError):
    """A status other than 200, an error event, or a stream without its end."""


@dataclass
class Timeline:
    """The events of one client. Times are seconds on one clock."""

    started: float
    tokens_at: list[float] = field(default_factory=list)
    """When each event that carried text arrived."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    text: str = ""

    @property
    def time_to_first_token(self) -> float:
        return self.tokens_at[0] - self.started

    @property
    def latency(self) -> float:
        """Return the latency of the whole answer: up to the last event with text."""
        return self.tokens_at[-1] - self.started

    @property
    def time_per_output_token(self) -> float:
        """Return the time per output token after the first one. It counts tokens, where `gaps` counts events, so
        tokens held back do not matter.
        """
        return (self.tokens_at[-1] - self.tokens_at[0]) / max(1, self.completion_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Return the gaps between events: inter-token latencies."""
        return [later - earlier for earlier, later in pairwise(self.tokens_at)]


@dataclass(frozen=True)
class Load:
    seconds: float
    """Seconds from the first request to the end of the last answer."""
    timelines: Sequence[Timeline]
    """Timelines of the requests that were answered completely."""
    unanswered: Sequence[str] = ()
    """Why each other request was not answered."""

    @property
    def tokens_per_second(self) -> float:
        return sum(timeline.completion_tokens for timeline in self.timelines) / self.seconds


async def closed_loop(host: str, port: int, bodies: Sequence[dict[str, Any]], concurrency: int) -> Load:
    """Send `bodies` with `concurrency` clients; each sends its next request as soon as the previous one is answered.

    Raises:
        Unanswered: requests had no answer; raised after all were sent.
        ExceptionGroup: of OSError, if a connection fails.
    """
    waiting = list(reversed(bodies))
    exchanges: list[Exchange] = []

    async def client() -> None:
        while waiting:
            exchanges.append(await exchange(host, port, waiting.pop()))

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(client())
    seconds = time.perf_counter() - started
    return Load(seconds, [each.timeline() for each in exchanges])


async def open_loop(host: str, port: int, bodies: Sequence[dict[str, Any]], arrivals: Sequence[float]) -> Load:
    """Send each body at its time of `arrivals`, in seconds from now, whether or not those before it are answered."""
    exchanges: list[Exchange] = []
    timelines: list[Timeline] = []
    unanswered: list[str] = []

    async def request(body: dict[str, Any], due: float) -> None:
        await asyncio.sleep(started + due - time.perf_counter())
        try:
            exchanges.append(await exchange(host, port, body))
        except OSError as error:
            unanswered.append(str(error))

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for body, due in zip(bodies, arrivals, strict=True):
            group.create_task(request(body, due))
    seconds = time.perf_counter() - started
    for each in exchanges:
        try:
            timelines.append(each.timeline())
        except Unanswered as error:
            unanswered.append(str(error))
    return Load(seconds, timelines, unanswered)


def poisson_arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Return when `count` requests come, at `rate` a second on average, in seconds from the start.

    Random gaps are scaled so that the last request comes at count / rate: all seeds offer the same load.
    """
    draw = random.Random(seed)
    times = list(accumulate(draw.expovariate(rate) for _ in range(count)))
    return [at * count / rate / times[-1] for at in times]


async def stream_completion(
    host: str, port: int, body: dict[str, Any], on_event: Callable[[int], None] | None = None
) -> Timeline:
    """Stream one answer. `on_event` is called as they come with the number of events so far.

    Raises Unanswered, and OSError where there is no connection.
    """
    return (await exchange(host, port, body, on_event)).timeline()


async def exchange(
    host: str, port: int, body: dict[str, Any], on_event: Callable[[int], None] | None = None, *, streams: bool = True
) -> "Exchange":
    """Send one request and return the received bytes, not parsed. Raises OSError if the connection fails."""
    asked = {"stream": True, "stream_options": {"include_usage": True}} if streams else {}
    content = json.dumps(body | asked).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    loop = asyncio.get_running_loop()
    kept = Exchange(loop.create_future(), on_event)
    transport, _ = await loop.create_connection(lambda: kept, host, port)
    try:
        transport.write(head.encode() + content)
        await kept.ended
    finally:
        transport.close()
    return kept


class Exchange(asyncio.Protocol):
    """Records received data with the time. The data is parsed after the load, so parsing does not slow it."""

    def __init__(self, ended: "asyncio.Future[None]", on_event: Callable[[int], None] | None) -> None:
        self.ended = ended
        """Set when the stream has ended, successfully or not."""
        self._on_event = on_event
        self._started = time.perf_counter()
        self._pieces: list[bytes] = []
        self._times: list[float] = []
        self._tail = b""
        """The last bytes: the end of a stream and the start of an event may be split between two pieces."""
        self._num_events = 0

    def data_received(self, data: bytes) -> None:
        self._times.append(time.perf_counter())
        self._pieces.append(data)
        seen = self._tail + data
        if self._on_event is not None:
            self._num_events += seen.count(_EVENT) - self._tail.count(_EVENT)
            self._on_event(self._num_events)
        if _DONE in seen and not self.ended.done():
            self.ended.set_result(None)
        self._tail = seen[-len(_DONE) :]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    @property
    def ended_at(self) -> float:
        return self._times[-1] if self._times else self._started

    @property
    def status(self) -> int:
        """Return the status of the answer; 0 without one."""
        return int((self._head().split(maxsplit=2)[1:2] or ["0"])[0])

    def header(self, name: str) -> str:
        """Return the value of a header, named in lower case; empty if it is missing."""
        return self._head().lower().partition(f"\r\n{name}:")[2].partition("\r\n")[0].strip()

    @property
    def has_whole_body(self) -> bool:
        """Return whether a body of the announced length came."""
        return len(self.body) == int(self.header("content-length") or -1)

    @property
    def body(self) -> bytes:
        """Return the bytes after the head."""
        return b"".join(self._pieces).partition(b"\r\n\r\n")[2]

    def _head(self) -> str:
        return b"".join(self._pieces).partition(b"\r\n\r\n")[0].decode("latin-1")

    def timeline(self) -> Timeline:
        """Return when which event came. Raises Unanswered."""
        answer = b"".join(self._pieces)
        rest = answer.partition(b"\r\n\r\n")[2]
        if self.status != 200:
            status = self._head().partition("\r\n")[0]
            raise Unanswered(f"{status or 'no answer'}: {rest[:2000].decode(errors='replace')}")
        ends = [*accumulate(map(len, self._pieces))]  # of each piece, in bytes from the start of the answer
        timeline = Timeline(self._started)
        for data, end in events_in(answer, len(answer) - len(rest)):
            if data == b"[DONE]":
                return timeline
            try:
                event = json.loads(data)
            except ValueError:
                raise Unanswered(f"an event is no JSON: {data[:2000].decode(errors='replace')!r}") from None
            note_event(event, self._times[bisect_left(ends, end)], timeline)
        raise Unanswered("the stream ended without [DONE]")


def events_in(answer: bytes, start: int) -> Iterator[tuple[bytes, int]]:
    """Return the data of each whole event of a body in chunks that begins at `start`, and where the chunk that ends
    it ends.
    """
    pending = b""
    while (line := answer.find(b"\r\n", start)) >= 0:
        size = int(answer[start:line], 16)
        end = line + 2 + size
        if not size or end > len(answer):
            return
        *events, pending = (pending + answer[line + 2 : end]).split(b"\n\n")
        for event in events:
            yield event.partition(b"data: ")[2], end
        start = end + 2


def note_event(chunk: dict[str, Any], now: float, timeline: Timeline) -> None:
    if "error" in chunk:
        raise Unanswered(f"the stream failed: {chunk['error']}")
    if usage := chunk.get("usage"):
        timeline.prompt_tokens = usage["prompt_tokens"]
        timeline.completion_tokens = usage["completion_tokens"]
    if chunk["choices"]:
        timeline.tokens_at.append(now)
        timeline.text += chunk["choices"][0]["text"]


def percentile(values: Sequence[float], fraction: float) -> float:
    """Interpolate between the two nearest ranks, as numpy does; nan for no values."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    rank = fraction * (len(ordered) - 1)
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (rank - below) * (ordered[above] - ordered[below])
