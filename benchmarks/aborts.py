"""Measures how long a client that leaves keeps its slot: milliseconds from its close until the server's gauges show it
free.

At each stage of a request's life a client closes its connection; /metrics is polled without pause until the slot, the
cache blocks and the captured bytes are given back, and until the handler of the request has ended. What is printed is
the end of the first poll that shows it, so it is an upper bound; the column "poll" says by how much it may be too high.

A stage is within its bound when 95 of 100 leave within the longest steps (the same share of them) and 10 ms; on the
built-in model also within 50 ms. With running streams two steps count: the gauges are those of the last step, so a slot
that is free since the beginning of a step is shown at its end.

    python -m benchmarks.aborts --repeats 20 [-- MODEL --flag ...]
"""

import argparse
import asyncio
import contextlib
import math
import random
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.load import percentile
from tests.support.processes import Server, serve
from tests.support.wire import JSON_HEADERS, Head, Wire, WireError, json_content, samples

NUM_PLACES = 8
"""Sequences that the measured server runs at once: as many streams leave a new request in the queue."""
NUM_BESIDE = 4
ALLOWANCE_MS = 10.0
BUILT_IN_MS = 50.0
SHARE = 0.95
PATIENCE = 60.0
_SLOW = 1.0
Moment = Literal["sent", "waiting", "running", "captured", "streaming", "reading"]


@dataclass(frozen=True)
class Stage:
    """A request, and the moment at which its client leaves."""

    name: str
    path: str
    body: dict[str, Any]
    moment: Moment
    beside: int = 0
    """Streams that run in the background all the time."""
    accept: str = "application/json"

    @property
    def headers(self) -> dict[str, str]:
        return {**JSON_HEADERS, "Accept": self.accept}


@dataclass
class Times:
    """Milliseconds from the close, one value of each for each repeat."""

    free: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    poll: list[float] = field(default_factory=list)
    """Milliseconds by which it may have been earlier: since the start of the last poll that did not show it."""
    step: float = float("nan")


@dataclass(frozen=True)
class Look:
    """The state that one poll found. Times are seconds on one clock."""

    began: float
    ended: float
    values: dict[str, float]

    def gauge(self, name: str) -> float:
        return self.values[f"lightwell_{name}"]

    @property
    def num_requests(self) -> float:
        return self.gauge("num_requests_running") + self.gauge("num_requests_waiting")

    def num_ended(self, path: str) -> float:
        """Return how many handlers of the route ended, successfully or not."""
        prefix = f'lightwell_http_requests_total{{method="POST",route="{path}"'
        return sum(value for name, value in self.values.items() if name.startswith(prefix))


def stages(context: int) -> list[Stage]:
    """Return every stage, for a model that reads `context` tokens. Prompts are token ids, so that their lengths are
    known.
    """
    draw = random.Random(3)

    def prompt(length: int) -> list[int]:
        return [draw.randrange(256, 2000) for _ in range(length)]

    rest = {"ignore_eos": True, "temperature": 0}
    short = {"prompt": prompt(8), "max_tokens": context - 8, **rest}
    long = {"prompt": [prompt(context - 8) for _ in range(24)], "max_tokens": 1, **rest}
    traced = [prompt(context - 8) for _ in range(16)]
    points = {"points": ["attn.hook_z"], "layers": 0}
    attention = {"input": prompt(context), "layers": "all", "heads": "all"}
    flow = {"input": prompt(min(context, 384)), "method": "flow", "layers": -1}
    text = {"prompt": "Once upon a time, " * 20_000, "max_tokens": 1}
    binary = "application/vnd.safetensors"
    completions = "/v1/completions"
    return [
        Stage("queued", completions, short, "waiting", beside=NUM_PLACES),
        Stage("its text being tokenised", completions, text, "sent"),
        Stage("prefilling", completions, long, "running"),
        Stage("prefilling beside streams", completions, long, "running", beside=NUM_BESIDE),
        Stage("generating", completions, short, "running"),
        Stage("streaming", completions, {**short, "stream": True}, "streaming"),
        Stage("streaming beside streams", completions, {**short, "stream": True}, "streaming", beside=NUM_BESIDE),
        Stage("waiting for a trace", "/v1/trace", {"input": traced, **points}, "running", accept=binary),
        Stage("a trace beside streams", "/v1/trace", {"input": traced, **points}, "running", NUM_BESIDE, binary),
        Stage("reading a large tensor", "/v1/attention", attention, "reading", accept=binary),
        Stage("waiting for a flow", "/v1/rollout", flow, "captured"),
        Stage("waiting for circuits", "/v1/circuits", {"compose": True}, "captured"),
    ]


class Bench:
    """One server, the connection that polls it, and the streams that run in the background."""

    def __init__(self, server: Server, poller: Wire) -> None:
        self._server = server
        self._poller = poller
        self._draw = random.Random(5)
        self._turns = 0
        """Background streams that ended and began again: a repeat that saw one counts for nothing."""

    async def look(self) -> Look:
        began = time.perf_counter()
        answer = await self._poller.ask("GET", "/metrics")
        return Look(began, time.perf_counter(), samples(answer.body.decode()))

    async def until(self, is_there: Any, what: str) -> Look:
        """Return the first poll for which `is_there(look)` is true. Raises RuntimeError after a minute."""
        end = time.monotonic() + PATIENCE
        while not is_there(look := await self.look()):
            if time.monotonic() > end:
                raise RuntimeError(f"not seen within {PATIENCE:.0f} s: {what}")
        return look

    async def step_seconds(self, stage: Stage) -> float:
        """Return the seconds of one of the longer steps of this request when its client stays; 0 when it needs none."""
        last = await self.look()
        wire = await Wire.open(self._server.host, self._server.port)
        staying = asyncio.create_task(wire.ask("POST", stage.path, json_content(stage.body), stage.headers))
        seconds: list[float] = []
        while not staying.done():
            look = await self.look()
            if num_steps := int(look.gauge("engine_steps_total") - last.gauge("engine_steps_total")):
                seconds += [(look.ended - last.ended) / num_steps] * num_steps
                last = look
        await staying
        wire.close()
        return percentile(seconds, SHARE) if seconds else 0.0

    async def measure(self, stage: Stage, repeats: int) -> Times:
        times = Times()
        async with self.beside(stage):
            times.step = 1e3 * await self.step_seconds(stage)
            tries = 0
            while len(times.free) < repeats:
                tries += 1
                if tries > 4 * repeats:
                    raise RuntimeError(f"{stage.name}: the request is over before its client can leave")
                await self.leave_once(stage, times)
        return times

    async def leave_once(self, stage: Stage, times: Times) -> None:
        """Add one repeat, unless the moment was missed or a background stream changed."""
        await self.until(lambda look: look.num_requests == stage.beside, "the streams beside, and nobody else")
        before, turns = await self.look(), self._turns
        wire = await Wire.open(self._server.host, self._server.port, receive_buffer=1 << 16)
        await wire.send("POST", stage.path, json_content(stage.body), stage.headers)
        try:
            await self.await_moment(stage, wire, before)
        except (TimeoutError, WireError):
            wire.close()
            return
        await asyncio.sleep(self._draw.uniform(0, 0.01))  # anywhere in a step
        was_there = self.is_taken(await self.look(), before, stage)
        closed = time.perf_counter()
        wire.close()
        free = ended = None
        began = closed
        while free is None or ended is None:
            look = await self.look()
            if free is None and not self.is_taken(look, before, stage):
                free, poll = look.ended - closed, look.ended - began
            if ended is None and look.num_ended(stage.path) > before.num_ended(stage.path):
                ended = look.ended - closed
            began = look.began
            if look.ended - closed > PATIENCE:
                raise RuntimeError(f"{stage.name}: still not free after {PATIENCE:.0f} s")
        if turns == self._turns and (was_there or stage.moment == "sent"):
            times.free.append(1e3 * free)
            times.ended.append(1e3 * ended)
            times.poll.append(1e3 * poll)

    async def await_moment(self, stage: Stage, wire: Wire, before: Look) -> None:
        """Wait for the stage's moment. Raises TimeoutError when it passed unseen, WireError when the answer was over
        first.
        """
        async with asyncio.timeout(5):
            if stage.moment == "sent":
                await asyncio.sleep(0.03)
            elif stage.moment in ("streaming", "reading"):
                pieces = wire.pieces(await read_ok(wire))
                for _ in range(5 if stage.moment == "streaming" else 1):
                    await anext(pieces)
                if stage.moment == "reading":
                    await asyncio.sleep(_SLOW)  # long enough for every buffer on the way to be full
            else:
                while not self.is_taken(await self.look(), before, stage):
                    pass

    def is_taken(self, look: Look, before: Look, stage: Stage) -> bool:
        """Return whether the request holds a slot, blocks or captured bytes."""
        if look.gauge("inflight_capture_bytes") > before.gauge("inflight_capture_bytes"):
            return True
        if stage.moment == "waiting":
            return look.gauge("num_requests_waiting") > 0
        holds_blocks = not stage.beside and look.gauge("kv_cache_usage_ratio") > 0
        return look.num_requests > before.num_requests or holds_blocks

    @contextlib.asynccontextmanager
    async def beside(self, stage: Stage) -> AsyncIterator[None]:
        """Run the background streams, each begun again when it ends."""
        body = {"prompt": "The king", "max_tokens": 480, "ignore_eos": True, "stream": True}

        async def stream(number: int) -> None:
            while True:
                wire = await Wire.open(self._server.host, self._server.port)
                try:
                    await wire.ask("POST", "/v1/completions", json_content({**body, "seed": number}), JSON_HEADERS)
                finally:
                    wire.close()
                self._turns += 1

        tasks = [asyncio.create_task(stream(number)) for number in range(stage.beside)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.until(lambda look: look.num_requests == 0, "an idle server")


async def read_ok(wire: Wire) -> Head:
    head = await wire.read_head()
    if head.status != 200:
        raise RuntimeError(f"{head.status}: {(await wire.read_body(head)).decode(errors='replace'):.300}")
    return head


async def run(server: Server, repeats: int, most_ms: float, only: str) -> bool:
    """Print the table. Return True when every stage whose name has `only` stays within its bound, and within
    `most_ms`.
    """
    poller = await Wire.open(server.host, server.port)
    model = (await poller.ask("GET", "/v1/models")).body
    context = int(model.partition(b'"max_model_len":')[2].partition(b",")[0].strip(b"} ]"))
    bench, sound = Bench(server, poller), True
    print("| client leaves while | step ms | free ms: median | p95 | handler over ms: p95 | poll ms | bound | within |")
    print("|---|---|---|---|---|---|---|---|")
    for stage in (stage for stage in stages(context) if only in stage.name):
        times = await bench.measure(stage, repeats)
        late = percentile(times.free, SHARE)
        bound = min(times.step * (2 if stage.beside else 1) + ALLOWANCE_MS, most_ms)
        poll = percentile(times.poll, 0.5)
        is_within = late - poll <= bound
        sound &= is_within
        figures = f"{times.step:.1f} | {percentile(times.free, 0.5):.1f} | {late:.1f}"
        figures += f" | {percentile(times.ended, SHARE):.1f} | {poll:.1f} | {bound:.1f}"
        print(f"| {stage.name} | {figures} | {'yes' if is_within else 'NO'} |")
        sys.stdout.flush()
    poller.close()
    return sound


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--only", default="", help="stages whose name has this in it")
    parser.add_argument("serve", nargs="*", help="arguments for `lightwell serve` (after --)")
    options = parser.parse_args()
    is_built_in = not options.serve or options.serve[0].startswith("-")
    with serve([*options.serve, "--max-num-seqs", str(NUM_PLACES)]) as server:
        sound = asyncio.run(run(server, options.repeats, BUILT_IN_MS if is_built_in else math.inf, options.only))
    sys.exit(0 if sound else 1)


if __name__ == "__main__":
    main()
