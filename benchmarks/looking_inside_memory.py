"""How much memory many tracers can make the server take: the third table of benchmarks.looking_inside."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

from benchmarks.checkpoint import random_prompts
from tests.support.processes import Server
from tests.support.wire import samples

SAFETENSORS = "application/vnd.safetensors"

LONG_PROMPT = 512

CAPTURE_BUDGET = 256 << 20

BUDGET_LENGTHS = (256, 512, 768)
"""Prompt tokens: their patterns are 38, 151 and 340 MB."""


def long_prompt(length: int, seed: int) -> list[int]:
    """Return random token ids; no two prompts are alike."""
    return random_prompts(1, seed, length)[0]


@dataclass
class Pressure:
    """Measurements while many clients trace: `bytes_*` of all the server's processes, `answers` by status."""

    bytes_before: int
    bytes_peak: int = 0
    captured_peak: int = 0
    """Largest value of the gauge lightwell_inflight_capture_bytes."""
    captured_after: int = 0
    """The same gauge, once all answers are read."""
    answers: Counter[int] = field(default_factory=Counter)
    waits: list[int] = field(default_factory=list)
    """Retry-After of each 429, seconds."""


async def trace_in_turn(http: httpx.AsyncClient, index: int, seen: Pressure) -> None:
    """Run one client: all heads of all layers of prompts of each length in turn, forever."""
    turn = index
    while True:
        prompt = long_prompt(BUDGET_LENGTHS[turn % len(BUDGET_LENGTHS)], seed=1000 * index + turn)
        body = {"input": prompt, "points": ["attn.hook_pattern"], "layers": "all"}
        answer = await http.post("/v1/trace", json=body, headers={"Accept": SAFETENSORS})
        seen.answers[answer.status_code] += 1
        if answer.status_code == 429:  # and ask again
            seen.waits.append(int(answer.headers["Retry-After"]))
            await asyncio.sleep(seen.waits[-1])
        elif answer.status_code in (200, 413):
            turn += 1
        else:
            answer.raise_for_status()


async def watch_memory(server: Server, http: httpx.AsyncClient, seen: Pressure) -> None:
    """Read the server's memory and its own count of it as often as possible."""
    while True:
        held = await asyncio.to_thread(server.resident_bytes)
        seen.bytes_peak = max(seen.bytes_peak, sum(held.values()))
        seen.captured_peak = max(seen.captured_peak, await captured_bytes(http))
        await asyncio.sleep(0.02)


async def captured_bytes(http: httpx.AsyncClient) -> int:
    return int(samples((await http.get("/metrics")).text)["lightwell_inflight_capture_bytes"])


async def measure_pressure(server: Server, tracers: int, seconds: float) -> Pressure:
    async with httpx.AsyncClient(base_url=server.url, timeout=120.0, limits=httpx.Limits(max_connections=None)) as http:
        warm = {"input": long_prompt(BUDGET_LENGTHS[0], seed=0), "points": ["logits"], "positions": -1}
        (await http.post("/v1/trace", json=warm)).raise_for_status()  # the code for it is loaded, nothing is captured
        seen = Pressure(sum(server.resident_bytes().values()))
        tasks = [asyncio.create_task(trace_in_turn(http, index, seen)) for index in range(tracers)]
        tasks.append(asyncio.create_task(watch_memory(server, http, seen)))
        done, running = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for task in done:
            task.result()  # raises the task's exception
        give_up = time.monotonic() + 30
        while (left := await captured_bytes(http)) and time.monotonic() < give_up:
            await asyncio.sleep(0.1)
        seen.captured_after = left
    return seen
