"""A page that is clicked through does not grow."""

import pytest

from benchmarks.chromium import Tab, open_tab
from benchmarks.page_memory import growth, open_page, open_views
from benchmarks.processes import Server

WARM_ROUNDS, ROUNDS = 6, 8
MOST_GROWTH = 5000
"""Bytes a view: noise takes up to 1,600; whoever keeps a view's picture, or an answer, keeps many times that."""


def walk(tab: Tab, rounds: int) -> int:
    return sum(1 for _ in range(rounds) for _ in open_views(tab))


def least_heap(tab: Tab) -> int:
    """What is left after several collections: some of the garbage goes in the next one only."""
    return min(tab.memory().heap for _ in range(4))


def test_memory_is_flat_however_often_views_are_opened(chromium: str, server: Server) -> None:
    # compiled code lies in the same heap, and grows for long: without a compiler only the page's own objects are seen
    with open_tab(chromium, ["--js-flags=--jitless --no-flush-bytecode"]) as tab:
        open_page(tab, server.url)
        for _ in range(
            2
        ):  # collecting empties caches that the next rounds fill again, so that the first look is too low
            walk(tab, WARM_ROUNDS // 2)
            before = least_heap(tab)
        num_views = walk(tab, ROUNDS)
        grown = (least_heap(tab) - before) / num_views
    assert grown < MOST_GROWTH


def test_growth_is_that_of_the_line_through_the_sizes() -> None:
    assert growth([30, 40, 50, 60], [100, 101, 102, 103]) == pytest.approx(0.03)
    assert growth([30, 40, 50, 60], [100, 108, 92, 100]) < 0  # what goes up and down is not what grows
