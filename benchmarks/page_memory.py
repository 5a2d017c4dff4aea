"""Measures whether the page's memory is flat while it is clicked through: its views, heads, layers and words.

What is read, after garbage collection, is the heap (V8's, Blink's, array buffers) and the renderer process as a whole.
Flat means, for the line fitted through the second half of the time: the heap grows by less than 2 % over that half, the
process by less than 5 %. The first half is for answers that are kept for the first time, for compiling code, and for
what Chromium itself records of the first 200 tasks that take over 50 ms and of the first 200 long frames, some 700
bytes for both: on a busy machine that is 500 bytes a view until the records are full. A page cannot empty them.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tests.support.chromium import Memory, Tab
from tests.support.processes import Server

MOST_HEAP_GROWTH, MOST_PROCESS_GROWTH = 0.02, 0.05
"""The most growth over the second half of the time, as shares of what there was at its beginning."""
CHECKED_MINUTES = 60
NUM_READINGS = 60
NUM_WORDS = 4
"""How many words of the text are clicked in turn: so few that all answers are kept before the second half."""
READ_VIEW = 1
"""The view shown while memory is read: Attention, so the page shows what it began with. The last one, Server, never
rests.
"""
HEADS_WALL = ".wall .canvases canvas:last-child"
SETTLED = (
    "document.querySelector('main.view[id]') !== null"
    " && document.querySelector('[aria-busy=true], .progress.active, .boot') === null"
)


@dataclass(frozen=True)
class Reading:
    minutes: float
    num_views: int
    """Views opened so far."""
    memory: Memory


def open_page(tab: Tab, url: str) -> None:
    tab.navigate(f"{url}/#view=attention")
    tab.wait_until(SETTLED)


def open_view(tab: Tab, number: int) -> None:
    tab.click(".rail button", number)
    tab.wait_until(SETTLED)


def walk(tab: Tab, turn: int) -> int:
    """Open every view once; in each, another layer or head and another word. Return how many views there are."""
    num_views = tab.count(".rail button")
    for number in range(num_views):
        open_view(tab, number)
        tab.press(("ArrowRight", "ArrowDown")[number % 2])
        tab.wait_until(SETTLED)
        if tab.count(".shared .token"):
            tab.click(".shared .token", (turn + number) % NUM_WORDS)
            tab.wait_until(SETTLED)
        if tab.count(HEADS_WALL):
            tab.click(HEADS_WALL, across=0.2 + 0.1 * (turn % 5), down=0.3 + 0.1 * (turn % 3))
            tab.wait_until(SETTLED)
    return num_views


def measure_memory(tab: Tab, server: Server, minutes: float) -> Iterator[Reading]:
    """Return readings at about equal distances in time, the last at the end, while the page is walked through."""
    open_page(tab, server.url)
    started, num_views, num_readings, turn = time.monotonic(), 0, 0, 0
    while num_readings < NUM_READINGS:
        num_views += walk(tab, turn)
        turn += 1
        passed = (time.monotonic() - started) / 60
        if passed >= (num_readings + 1) * minutes / NUM_READINGS:
            num_readings += 1
            open_view(tab, READ_VIEW)
            yield Reading(passed, num_views, tab.memory())


def growth_share(minutes: Sequence[float], sizes: Sequence[float]) -> float:
    """Return how much the line fitted through `sizes` rises from the first to the last minute, as a share of its
    beginning.
    """
    slope, start = np.polynomial.Polynomial.fit(minutes, sizes, 1).convert().coef[::-1]
    begin, finish = start + slope * minutes[0], start + slope * minutes[-1]
    return float(finish / begin - 1)


def report_memory(tab: Tab, server: Server, minutes: float) -> Iterator[str]:
    """Print the readings and how the second half of them grew; yield what is not flat."""
    print("| minutes | views opened | script MB | elements MB | buffers MB | heap MB | process MB |")
    print("|---|---|---|---|---|---|---|")
    readings = []
    for reading in measure_memory(tab, server, minutes):
        readings.append(reading)
        now = reading.memory
        sizes = (now.script, now.embedder, now.buffers, now.heap, now.renderer)
        written = " | ".join(f"{size / 1e6:.2f}" for size in sizes)
        print(f"| {reading.minutes:.1f} | {reading.num_views} | {written} |", flush=True)
    half = readings[len(readings) // 2 :]
    times = [reading.minutes for reading in half]
    for name, part, most in (("heap", "heap", MOST_HEAP_GROWTH), ("process", "renderer", MOST_PROCESS_GROWTH)):
        grown = growth_share(times, [getattr(reading.memory, part) for reading in half])
        print(f"\n{name}, second half: {100 * grown:+.2f} %")
        if grown > most:
            yield f"{name}: {100 * grown:+.2f} % in the second half of {minutes:.0f} minutes, over {100 * most:.0f} %"
