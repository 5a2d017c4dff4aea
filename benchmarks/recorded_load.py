"""Sends requests with a known place in a run to a server, and notes what became of each: enough to replay the run
elsewhere.

A record file has one JSON object a line. A line with `"type": "run"` says what served the requests of the lines after
it (`Record` without a name: `"type": "request"`); times are seconds from the beginning of their run.
"""

import asyncio
import json
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.checkpoint import random_prompts
from benchmarks.load import Unanswered, exchange, poisson_arrivals

_VOCABULARY = 4096


@dataclass(frozen=True)
class Request:
    """What is requested, and when it is due in an open loop."""

    prompt: Sequence[int]
    max_tokens: int
    arrival: float = 0.0
    group: int | None = None
    """The group of prompts that begin alike, or None if it has none."""
    prefix_tokens: int = 0
    """How many tokens the prompts of the group have in common."""

    @property
    def body(self) -> dict[str, Any]:
        return {"prompt": self.prompt, "max_tokens": self.max_tokens, "temperature": 0, "ignore_eos": True}


@dataclass(frozen=True)
class Record:
    """What became of a request."""

    arrival: float
    """When it was sent, in seconds from the beginning of the run."""
    prompt_tokens: int
    group: int | None
    prefix_tokens: int
    max_tokens: int
    output_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache of its worker."""
    ttft: float | None = None
    """Seconds from `arrival` to the first token."""
    end: float | None = None
    """When its last token came, or when it was known why there is none."""
    worker: int | None = None
    error: str | None = None

    @property
    def latency(self) -> float:
        """Return the seconds from its arrival to its last token; only for answered requests."""
        assert self.end is not None
        return self.end - self.arrival

    @property
    def time_per_output_token(self) -> float:
        """Return the seconds per output token after the first one; only for answered requests."""
        assert self.ttft is not None
        return (self.latency - self.ttft) / max(1, self.output_tokens - 1)


def endless_requests(seed: int, *, prompt_tokens: int, max_tokens: int) -> Iterator[Request]:
    """Return prompts that share nothing, made as they are needed; `max_tokens` is the mean."""
    draw = random.Random(seed)
    for i in count():
        prompt = random_prompts(1, seed * 1_000_003 + i, prompt_tokens, _VOCABULARY)[0]
        yield Request(prompt, _near(max_tokens, draw))


def plain_requests(num: int, seed: int, *, prompt_tokens: int, max_tokens: int, rate: float) -> list[Request]:
    """Return prompts that share nothing and come as a Poisson process does, `rate` a second; `max_tokens` is the
    mean.
    """
    prompts = random_prompts(num, seed, prompt_tokens, _VOCABULARY)
    arrivals = poisson_arrivals(num, rate, seed)
    draw = random.Random(seed)
    return [Request(prompt, _near(max_tokens, draw), at) for prompt, at in zip(prompts, arrivals, strict=True)]


def _near(mean: int, draw: random.Random) -> int:
    """Return half to one and a half times `mean`: answers of one length would end together, so their next ones would
    begin together.
    """
    return draw.randint(mean - mean // 2, mean + mean // 2)


def grouped_requests(
    num: int, seed: int, *, groups: int, prefix_tokens: int, own_tokens: int, max_tokens: int, rate: float
) -> list[Request]:
    """Return prompts that begin with one of `groups` long prefixes, the i-th of them 1 / i as often as the first
    (Zipf).
    """
    prefixes = random_prompts(groups, seed, prefix_tokens, _VOCABULARY)
    ends = random_prompts(num, seed + 1, own_tokens, _VOCABULARY)
    draw = random.Random(seed + 2)
    chosen = draw.choices(range(groups), [1 / (1 + rank) for rank in range(groups)], k=num)
    return [
        Request(prefixes[group] + end, max_tokens, arrival, group, prefix_tokens)
        for group, end, arrival in zip(chosen, ends, poisson_arrivals(num, rate, seed), strict=True)
    ]


async def send_open(
    host: str, port: int, requests: Sequence[Request], workers: Mapping[str, int] | None = None
) -> list[Record]:
    """Send each at its arrival, whether or not those before it are answered. `workers`: as for `send`."""
    started = time.perf_counter()

    async def one(request: Request) -> Record:
        await asyncio.sleep(started + request.arrival - time.perf_counter())
        return await send(host, port, request, started, workers)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(request)) for request in requests]
    return [task.result() for task in tasks]


async def send_closed(
    host: str,
    port: int,
    requests: Iterator[Request],
    concurrency: int,
    seconds: float,
    workers: Mapping[str, int] | None = None,
) -> list[Record]:
    """Send them with `concurrency` clients, each of which sends its next as soon as its last is answered, for
    `seconds`; then wait for what was sent.
    """
    records: list[Record] = []
    started = time.perf_counter()

    async def client() -> None:
        while time.perf_counter() < started + seconds:
            records.append(await send(host, port, next(requests), started, workers))

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(client())
    return records


async def send(
    host: str, port: int, request: Request, started: float, workers: Mapping[str, int] | None = None
) -> Record:
    """Send one request of a run that began at `started`; `workers` maps a token of each worker to that worker."""
    sent = time.perf_counter()
    asked = (sent - started, len(request.prompt), request.group, request.prefix_tokens, request.max_tokens)
    try:
        line = (await exchange(host, port, request.body)).timeline()
    except (Unanswered, OSError) as error:
        return Record(*asked, end=time.perf_counter() - started, error=_reason(str(error)))
    word = line.text[: len(line.text) // line.completion_tokens] if line.completion_tokens else ""
    return Record(
        *asked,
        output_tokens=line.completion_tokens,
        cached_tokens=line.cached_tokens,
        ttft=line.time_to_first_token,
        end=line.tokens_at[-1] - started,
        worker=None if workers is None else workers.get(word),
    )


def _reason(message: str) -> str:
    """Return the code of an error that the server reported, or else what is known in a line."""
    code = re.search(r"""["']code["']: ["'](\w+)""", message)
    return code[1] if code else " ".join(message.split())[:200]


def append_run(file: Path, run: Mapping[str, Any], records: Sequence[Record]) -> None:
    """Add a run to a record file; `run` is what served it, as plain data."""
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps({"type": "run", **run}) + "\n")
        out.writelines(json.dumps({"type": "request", **asdict(record)}) + "\n" for record in records)


def read_runs(file: Path) -> list[tuple[dict[str, Any], list[Record]]]:
    """Read what `append_run` wrote. Raises ValueError for a line that is not of a record file."""
    runs: list[tuple[dict[str, Any], list[Record]]] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        fields = json.loads(line)
        kind = fields.pop("type", None)
        if kind == "run":
            runs.append((fields, []))
        elif kind == "request" and runs:
            runs[-1][1].append(Record(**fields))
        else:
            raise ValueError(f"{file}:{number}: a line of type {kind!r}; a run, then requests are accepted")
    return runs
