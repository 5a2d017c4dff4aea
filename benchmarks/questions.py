"""Load test with mixed routes: under load, every answer must equal the answer of an idle server bit for bit.

First each request of a pool is sent to the idle server; then `--clients` clients send them in random order for
`--seconds` seconds. The test counts different and lost answers and samples the memory of all server processes. The exit
status is 1 if an answer differs or is lost, or if the peak of memory grows by more than `--growth` from the first half
to the second.

    python -m benchmarks.mixed_load --clients 32 --seconds 120
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.load import percentile
from tests.support.processes import Server, serve

STORIES = (
    "Once upon a time there was a",
    "The king had three daughters, and the youngest was",
    "In a deep forest, far from any road, lived an old woman who",
    "“What will you give me,” said the fox, “if I carry you across the river?”",
    "The wind blew all night, and in the morning the ship",
    "A poor tailor sat by his window and",
)
PER_ANSWER = {"id", "created"}
"""Fields that are new in every answer."""


@dataclass(frozen=True)
class Question:
    kind: str
    path: str
    body: dict[str, Any]
    accept: str = "application/json"
    method: str = "POST"


@dataclass
class Tally:
    """The answers to one kind of request."""

    seconds: list[float] = field(default_factory=list)
    different: int = 0
    lost: int = 0
    first_failure: str = ""


def questions() -> list[Question]:
    """Return the pool: every kind with every story, lengths and seeds drawn once."""
    draw = random.Random(7)
    pool: list[Question] = []
    for index, story in enumerate(STORIES):
        length = draw.randrange(20, 80)
        greedy = {"prompt": story, "max_tokens": length, "temperature": 0, "logprobs": 3}
        seeded = {"prompt": story, "max_tokens": length, "temperature": 0.9, "top_p": 0.9, "seed": index}
        watched = {**seeded, "attention": {"layers": [0, 5], "heads": "all", "encoding_format": "base64"}}
        chat = {"messages": [{"role": "user", "content": story}], "max_tokens": length, "seed": index}
        heads = {"layers": [index % 6], "heads": "all"}
        pool += [
            Question("completion, greedy", "/v1/completions", greedy),
            Question("completion, seeded", "/v1/completions", seeded),
            Question("completion, streamed", "/v1/completions", {**seeded, "stream": True}),
            Question("completion, attention", "/v1/completions", watched),
            Question("chat", "/v1/chat/completions", chat),
            Question("attention, binary", "/v1/attention", {"input": story, **heads}, "application/vnd.safetensors"),
            Question("attention, JSON", "/v1/attention", {"input": [story, story[::-1]], **heads, "reduce": "mean"}),
            Question("embeddings", "/v1/embeddings", {"input": [story, story.upper()]}),
            Question("tokenize", "/tokenize", {"prompt": story}),
            *looks(story, index),
        ]
    long = " ".join(STORIES)
    pool.append(
        Question("completion, long", "/v1/completions", {"prompt": long * 2, "max_tokens": 40, "temperature": 0})
    )
    pool.append(Question("attention, long", "/v1/attention", {"input": long * 2, "layers": "all", "heads": 0}))
    return pool


def looks(story: str, index: int) -> list[Question]:
    """Return requests that inspect a pass, two of them with an intervention."""
    binary = "application/vnd.safetensors"
    points = ["hook_resid_post", "attn.hook_z", "mlp.hook_post", "attn.hook_pattern"]
    ablation = [{"point": "attn.hook_z", "layer": index % 6, "head": [0, 3], "op": "zero"}]
    changed = {"prompt": story, "max_tokens": 20, "temperature": 0, "interventions": ablation}
    return [
        Question("trace", "/v1/trace", {"input": story, "points": points, "layers": index % 6}, binary),
        Question("next, changed", "/v1/next", {"input": story, "full": True, "interventions": ablation}, binary),
        Question("lens", "/v1/lens", {"input": story, "target": " king"}, binary),
        Question("contributions", "/v1/contributions", {"input": story, "target": " king", "layers": 2}, binary),
        Question("heads", "/v1/heads", {"input": story}, binary),
        Question("completion, changed", "/v1/completions", changed),
    ]


async def ask(client: httpx.AsyncClient, question: Question) -> object:
    """Return the answer without ids, times and other fields that differ between equal requests.

    Raises:
        RuntimeError: a status other than 200, or an incomplete stream.
    """
    headers = {"Accept": question.accept}
    answer = await client.request(question.method, question.path, json=question.body, headers=headers)
    if answer.status_code != 200:
        raise RuntimeError(f"{answer.status_code}: {answer.text[:300]}")
    return meaning(question, answer.content)


def meaning(question: Question, content: bytes) -> object:
    """Return the part of an answer that must be equal for equal questions: all except ids, times and such fields.

    Raises RuntimeError for an incomplete stream.
    """
    if question.body.get("stream"):
        return joined_streams(content.decode())
    if question.accept != "application/json":
        return content
    body = {key: value for key, value in json.loads(content).items() if key not in PER_ANSWER}
    body.get("usage", {}).pop("prompt_tokens_details", None)  # how much came from the prefix cache
    return body


def joined_streams(text: str) -> dict[int, tuple[str, str | None]]:
    """Return the whole text of each choice and the reason it ended: how they were cut into events, and mixed, may
    differ.
    """
    if not text.rstrip().endswith("data: [DONE]"):
        raise RuntimeError(f"the stream does not end with [DONE] but with {text[-200:]!r}")
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    by_index: dict[int, list[Any]] = defaultdict(list)
    for choice in choices:
        by_index[choice["index"]].append(choice)
    return {
        index: ("".join(choice["text"] for choice in mine), mine[-1]["finish_reason"])
        for index, mine in by_index.items()
    }


@dataclass
class Watch:
    """Memory of the server over time."""

    samples: list[dict[int, int]] = field(default_factory=list)
    """Bytes by process id, once a second."""

    async def run(self, server: Server) -> None:
        while True:
            self.samples.append(await asyncio.to_thread(server.resident_bytes))
            await asyncio.sleep(1)

    @property
    def sizes(self) -> list[int]:
        return [sum(sample.values()) for sample in self.samples]

    @property
    def growth(self) -> float:
        """Return the peak of the second half over the peak of the first: large answers come and go, a leak raises
        the peaks.
        """
        half = max(1, len(self.sizes) // 2)
        return max(self.sizes[-half:]) / max(self.sizes[:half]) - 1


async def mixed_load(server: Server, clients: int, seconds: float) -> tuple[dict[str, Tally], Watch]:
    pool = questions()
    limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
    tallies: dict[str, Tally] = defaultdict(Tally)
    watch = Watch()
    async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=120) as client:
        alone = [await ask(client, question) for question in pool]
        give_up = time.monotonic() + seconds

        async def one_client(number: int) -> None:
            draw = random.Random(number)
            while time.monotonic() < give_up:
                index = draw.randrange(len(pool))
                await compare(client, pool[index], alone[index], tallies[pool[index].kind])

        watching = asyncio.create_task(watch.run(server))
        await asyncio.gather(*(one_client(number) for number in range(clients)))
        watching.cancel()
    return tallies, watch


async def compare(client: httpx.AsyncClient, question: Question, expected: object, tally: Tally) -> None:
    started = time.perf_counter()
    try:
        answer = await ask(client, question)
    except (httpx.HTTPError, RuntimeError) as error:
        tally.lost += 1
        tally.first_failure = tally.first_failure or f"{type(error).__name__}: {error}"
        return
    tally.seconds.append(time.perf_counter() - started)
    if answer != expected:
        tally.different += 1
        tally.first_failure = tally.first_failure or first_difference(expected, answer)


def first_difference(expected: object, got: object, path: str = "answer") -> str:
    """Return the path of the first difference between two answers, and both values."""
    if isinstance(expected, dict) and isinstance(got, dict) and expected.keys() == got.keys():
        parts = [(f"{path}.{key}", expected[key], got[key]) for key in expected if expected[key] != got[key]]
    elif isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        pairs = enumerate(zip(expected, got, strict=True))
        parts = [(f"{path}[{index}]", one, other) for index, (one, other) in pairs if one != other]
    else:
        return f"{path}: expected {expected!r:.200}, got {got!r:.200}"
    where, one, other = parts[0]
    return first_difference(one, other, where)


def report(tallies: dict[str, Tally], watch: Watch) -> bool:
    """Print the table. Return True when nothing differs and nothing is lost."""
    print("| request | answers | different | lost | p50 ms | p99 ms |\n|---|---|---|---|---|---|")
    for kind, tally in sorted(tallies.items()):
        times = [1e3 * seconds for seconds in tally.seconds]
        figures = f"{percentile(times, 0.5):.0f} | {percentile(times, 0.99):.0f}"
        print(f"| {kind} | {len(times)} | {tally.different} | {tally.lost} | {figures} |")
    print(f"\n{sum(len(tally.seconds) for tally in tallies.values())} answers;", end=" ")
    print(f"memory {watch.sizes[0] / 2**20:.0f} MiB at first, {watch.sizes[-1] / 2**20:.0f} at last,", end=" ")
    print(f"{max(watch.sizes) / 2**20:.0f} at most; peak of the second half over the first: {watch.growth:+.1%}")
    tenths = watch.samples[:: max(1, len(watch.samples) // 10)]
    for pid in tenths[0]:
        sizes = " ".join(f"{sample.get(pid, 0) / 2**20:.0f}" for sample in tenths)
        print(f"memory of process {pid} over time, MiB: {sizes}")
    for kind, tally in sorted(tallies.items()):
        if tally.first_failure:
            print(f"\n{kind}: {tally.first_failure}")
    return not any(tally.different or tally.lost for tally in tallies.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--growth", type=float, default=0.05, help="memory growth that is still flat")
    parser.add_argument("serve", nargs="*", help="arguments for `lightwell serve` (after --)")
    options = parser.parse_args()
    with serve(options.serve) as server:
        tallies, watch = asyncio.run(mixed_load(server, options.clients, options.seconds))
    sound = report(tallies, watch)
    sys.exit(0 if sound and watch.growth <= options.growth else 1)


if __name__ == "__main__":
    main()
