"""Asks one server for answers under ever new schemas, hostile ones among them, and leaves many in the middle.

    python -m benchmarks.structured.endurance --minutes 60

The cache is so small that sequences are preempted. Prints, by the minute, what was answered, the longest time that
/health took (a process of its own asks every 20 ms), and the memory of the server's processes; ends with status 1 where
an answer was a failure of the server (5xx), or wrong, or the memory grew over the second half of the time.
"""

import argparse
import asyncio
import http.client
import json
import multiprocessing
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import httpx

from benchmarks.comparison import table
from benchmarks.structured.answers import fault, lines_of
from benchmarks.structured.drawn import of_keywords, of_models
from benchmarks.structured.hostile import cases
from model.sampling.grammar.gbnf import gbnf_grammar
from model.sampling.grammar.json_schema import json_schema_grammar
from model.sampling.grammar.structural_tags import structural_tag_grammar
from model.sampling.grammar.texts import choice_grammar, lark_or_ebnf_grammar, regex_grammar
from tests import tiny
from tests.support.processes import Server, serve

CLIENTS = 12
MOST_TOKENS = 300
MOST_GROWTH = 0.05
"""The most that the memory may grow over the second half of the time, as a share."""
FIELDS = {
    json_schema_grammar: "guided_json",
    regex_grammar: "guided_regex",
    choice_grammar: "guided_choice",
    gbnf_grammar: "grammar",
    lark_or_ebnf_grammar: "guided_grammar",
    structural_tag_grammar: "structural_tag",
}
"""The field of a body by what reads its value."""
GAVE_UP = "hostile: grammar_refused within the stream"
"""The end of an answer whose grammar meets a limit of llguidance's after some tokens."""
PREEMPTIONS = "lightwell_num_preemptions_total"


def bodies(seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield bodies without end, each with its kind: a schema that is new, one that came before, or a hostile value."""
    chance = random.Random(seed)
    known: list[Any] = []
    hostile = [{FIELDS[write]: value} for write, value in cases().values()]
    for start in range(seed, seed + 10**6):
        new = [*of_models(150, start), *of_keywords(50, start)]
        chance.shuffle(new)
        for schema in new:
            known = [*known[-30:], schema]
            yield "new", {"guided_json": schema}
            if chance.random() < 0.2:
                yield "known", {"guided_json": chance.choice(known)}
            if chance.random() < 0.1:
                yield "hostile", chance.choice(hostile)


async def ask(client: httpx.AsyncClient, kind: str, fields: dict[str, Any], chance: random.Random) -> str:
    """Send a body as a stream, leave every third one in the middle, and return in a word how it ended."""
    body = {"prompt": "Once upon a time", "max_tokens": MOST_TOKENS, "temperature": 1.0, "stream": True}
    body |= {"seed": chance.randrange(2**31), **fields}
    leaves_after = chance.randrange(40) if chance.random() < 0.33 else None
    text, end = "", None
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            await answer.aread()
            return f"{kind}: {answer.status_code}"
        number = 0
        async for line in lines_of(answer):
            if leaves_after is not None and number >= leaves_after:
                return f"{kind}: left"
            if not line.startswith("data: {"):
                continue
            number += 1
            part = json.loads(line.removeprefix("data: "))
            if "error" in part:
                return f"{kind}: {part['error'].get('code')} within the stream"
            text += part["choices"][0]["text"]
            end = part["choices"][0]["finish_reason"] or end
    if kind in ("new", "known") and end == "stop" and (wrong := fault(text, fields["guided_json"])):
        print(f"INVALID {fields}: {text!r}: {wrong}", flush=True)
        return f"{kind}: INVALID"
    return f"{kind}: {end}"


async def load(url: str, seed: int, until: float, is_free: bool, seen: Counter[str]) -> None:
    """Ask from several clients until the time has come, and count how requests ended."""
    waiting = repeat(("free", {})) if is_free else bodies(seed)

    async def client(number: int) -> None:
        chance = random.Random(seed + number)
        while time.monotonic() < until:
            kind, fields = next(waiting)
            try:
                seen[await ask(http_client, kind, fields, chance)] += 1
            except httpx.HTTPError as error:
                seen[f"{kind}: {type(error).__name__}"] += 1

    async with httpx.AsyncClient(base_url=url, timeout=120) as http_client, asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(client(number))


def loaded(url: str, seed: int, until: float, is_free: bool, found: Any) -> None:
    """Run the clients in this process, and send the counts."""
    seen: Counter[str] = Counter()
    asyncio.run(load(url, seed, until, is_free, seen))
    found.put(seen)


def watch(host: str, port: int, longest: Any) -> None:
    """Ask for /health every 20 ms, and keep the longest time of an answer until it is read."""
    connection = http.client.HTTPConnection(host, port, timeout=60)
    while True:
        began = time.perf_counter()
        connection.request("GET", "/health")
        connection.getresponse().read()
        longest.value = max(longest.value, time.perf_counter() - began)
        time.sleep(0.02)


def preemptions(server: Server) -> int:
    """Return how many sequences were preempted so far."""
    with urlopen(f"{server.url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(int(float(line.split()[-1])) for line in lines if line.startswith(PREEMPTIONS))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--free", action="store_true", help="ask for free text: what a busy machine alone does")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    rows, readings = [["minute", "longest /health, ms", "memory, MB", "of each process", "preempted"]], []
    with TemporaryDirectory(prefix="lightwell-endurance-") as folder:
        tiny.make_variant("llama-gqa", Path(folder), max_position_embeddings=1024)
        flags = ["--max-model-len", "400", "--kv-cache-memory", "256KiB", "--max-queue-time", "600"]
        with serve([folder, *flags]) as server:
            until, found, longest = time.monotonic() + 60 * options.minutes, context.Queue(), context.Value("d", 0.0)
            clients = context.Process(target=loaded, args=(server.url, options.seed, until, options.free, found))
            watching = context.Process(target=watch, args=(server.host, server.port, longest), daemon=True)
            clients.start()
            watching.start()
            while time.monotonic() < until:
                time.sleep(min(60.0, max(0.0, until - time.monotonic())))
                memory = server.resident_bytes().values()
                readings.append(sum(memory) / 1e6)
                took, longest.value = longest.value, 0.0
                each = ", ".join(f"{size / 1e6:.0f}" for size in memory)
                row = [f"{1e3 * took:.0f}", f"{readings[-1]:.1f}", each, str(preemptions(server))]
                rows.append([str(len(readings)), *row])
                print(rows[-1], flush=True)
            seen: Counter[str] = found.get()
            watching.kill()
            clients.join()
    half, quarter = readings[len(readings) // 2 :], max(1, len(readings) // 4)
    growth = statistics.mean(half[-quarter:]) / statistics.mean(half[:quarter]) - 1
    print(table(rows), "", *(f"{count:7} {name}" for name, count in sorted(seen.items())), sep="\n")
    print(f"\nmemory over the second half: {growth:+.2%} (at most {MOST_GROWTH:.0%})")
    failed = [name for name in seen if name.split(": ")[1][:1] == "5" or name.endswith(("INVALID", "Error", "stream"))]
    failed = [name for name in failed if name != GAVE_UP]
    print("failures: " + (", ".join(failed) or "none"))
    return int(bool(failed) or growth > MOST_GROWTH)


if __name__ == "__main__":
    raise SystemExit(main())
