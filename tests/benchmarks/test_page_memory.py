"""Memory of the page: it does not grow while it is clicked through."""

from itertools import product
from urllib.parse import urlencode

import pytest

from benchmarks.page_memory import READ_VIEW, SETTLED, growth_share, open_page, open_view
from tests.page.conftest import TEXT, ask, chromium, server
from tests.page.test_page import VIEWS
from tests.support.chromium import Memory, Tab, open_tab
from tests.support.processes import Server

__all__ = ["chromium", "server"]  # fixtures

LONG_TEXT = " ".join([TEXT] * 50)
MOST_KEPT = 64 * 1024 * 1024
"""Most bytes of answers that are kept (core/fetching.js)."""
WARM_ROUNDS, ROUNDS = 6, 8
MOST_GROWTH = 5000
"""Bytes a view: caches that are still filling take up to 1,600; a leak of a view's picture, or of an answer, takes
many times that.
"""
MOST_SCRIPT_GROWTH = 2000
"""Bytes a view of the page's own objects alone: without those that Chromium keeps of each of the first 200 tasks that
took over 50 ms (benchmarks/page_memory.py), which a busy machine has more of.
"""


def open_all(tab: Tab, rounds: int) -> Memory:
    """Open every view, so many times; return what is then in use."""
    for _ in range(rounds):
        for number in range(len(VIEWS)):
            open_view(tab, number)
    open_view(tab, READ_VIEW)
    return tab.memory()


@pytest.mark.nightly
def test_memory_is_flat_however_often_views_are_opened(chromium: str, server: Server) -> None:
    # compiled code lies in the same heap, and grows for long: without a compiler only the page's own objects are seen
    with open_tab(chromium, ["--js-flags=--jitless --no-flush-bytecode"]) as tab:
        open_page(tab, server.url)
        for _ in range(
            2
        ):  # collecting empties caches that the next rounds fill again, so that the first look is too low
            before = open_all(tab, WARM_ROUNDS // 2)
        after = open_all(tab, ROUNDS)
    num_views = ROUNDS * len(VIEWS)
    assert (after.heap - before.heap) / num_views < MOST_GROWTH
    assert (after.script - before.script) / num_views < MOST_SCRIPT_GROWTH


def test_growth_is_that_of_the_line_through_the_sizes() -> None:
    assert growth_share([30, 40, 50, 60], [100, 101, 102, 103]) == pytest.approx(0.03)
    assert growth_share([30, 40, 50, 60], [100, 108, 92, 100]) < 0  # what goes up and down is not what grows


@pytest.mark.nightly
def test_answers_are_kept_up_to_a_bound(chromium: str, server: Server) -> None:
    model = ask(server, "/v1/capabilities")["stacks"]["decoder"]
    place = {"view": "attention", "attention_picture": "matrix", "text": LONG_TEXT}
    buffers = []
    with open_tab(chromium) as tab:
        open_page(tab, server.url)
        for kind in ("pattern", "scores"):
            for layer, head in product(range(model["num_layers"]), range(model["num_heads"])):
                state = {**place, "attention_kind": kind, "layer": layer, "head": head}
                tab.navigate(f"{server.url}/#{urlencode(state)}")
                name = f"Layer {layer}, head {head}"
                tab.wait_until(f"document.querySelector('.head-pictures').innerText.includes('{name}') && {SETTLED}")
            buffers.append(tab.memory().buffers)
        answer = 4 * tab.count(".shared .token") ** 2
    assert 2 * model["num_layers"] * model["num_heads"] * answer > 1.2 * MOST_KEPT
    assert 0.9 * MOST_KEPT < buffers[-1] < MOST_KEPT + 10 * answer
