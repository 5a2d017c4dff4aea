"""A page that is clicked through does not grow."""

from playwright.sync_api import Browser, CDPSession, Page

from benchmarks.page import heap, open_view, settle
from benchmarks.processes import Server
from tests.page.conftest import TEXT, launch
from tests.page.test_page import VIEWS

WARM_ROUNDS, ROUNDS = 6, 8
MOST_GROWTH = 5000
"""Bytes a view: Playwright's book of requests and noise take up to 1,600; whoever keeps a view's picture, or an answer,
keeps many times that. `benchmarks/page.py` looks closer.
"""


def walk(page: Page, rounds: int) -> None:
    for _ in range(rounds):
        for number in range(len(VIEWS)):
            open_view(page, number)


def least_heap(session: CDPSession) -> float:
    """What is left after several collections: some of the garbage goes in the next one only."""
    return min(heap(session) for _ in range(4))


def test_memory_is_flat_however_often_views_are_opened(browser: Browser, server: Server) -> None:
    # compiled code lies in the same heap, and grows for long: without a compiler only the page's own objects are seen
    chromium = launch(browser.browser_type, "--js-flags=--jitless --no-flush-bytecode")
    page = chromium.new_page()
    page.set_default_timeout(20_000)
    page.goto(f"{server.url}/#view=attention&text={TEXT}")
    settle(page)
    session = page.context.new_cdp_session(page)
    for _ in range(2):  # collecting empties caches that the next rounds fill again, so that the first look is too low
        walk(page, WARM_ROUNDS // 2)
        before = least_heap(session)
    walk(page, ROUNDS)
    growth = (least_heap(session) - before) / (ROUNDS * len(VIEWS))
    chromium.close()
    assert growth < MOST_GROWTH
