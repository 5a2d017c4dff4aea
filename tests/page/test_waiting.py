"""While an answer is under way: a skeleton after half a second, and nothing that jumps. Controls in one row."""

import re
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.page.conftest import TEXT, Open, new_page, settle, wait_until
from tests.support.processes import Server

MOVED = """
window.moved = [];
const add = ({ value, sources }) => moved.push([value, sources.map(({ node }) => node?.className ?? "?").join(", ")]);
new PerformanceObserver((list) => list.getEntries().forEach(add)).observe({ type: "layout-shift", buffered: true });
"""
"""Collects the browser's own measure of elements that moved without an input: the moved share of the window, times the
way as a share of its height.
"""
OPACITY = """
(element, times) => {
  element.style.animation = "none";
  element.offsetHeight; // lays it out, so that the animations begin again
  element.style.animation = "";
  const appears = element.getAnimations().find(({ animationName }) => animationName === "appear");
  return times.map((time) => {
    appears.currentTime = time;
    return getComputedStyle(element).opacity;
  });
}
"""
"""The opacity of an element, milliseconds after it appeared."""
MOST_MOVED = 0.1
"""The value that web.dev calls good for the sum over a page's life."""


@pytest.fixture
def held(browser: Browser) -> Iterator[tuple[Page, list[Route]]]:
    """Yield a page, and the list in which its requests for pictures wait until they are continued."""
    with new_page(browser) as page:
        routes: list[Route] = []
        page.add_init_script(MOVED)
        for name in ("attention", "explain", "lens", "next", "heads", "embeddings"):
            page.route(f"**/v1/{name}", lambda route: routes.append(route))  # noqa: PLW0108  Playwright marks functions
        yield page, routes


def release(page: Page, routes: list[Route]) -> None:
    """Continue the waiting requests, and later ones, until the page is drawn."""

    def is_drawn() -> bool:
        while routes:
            routes.pop(0).continue_()
        return page.locator("[aria-busy=true], .progress.active").count() == 0

    wait_until(page, is_drawn)


@pytest.mark.parametrize("view", ["attention", "why", "lens", "next", "heads", "embeddings"])
def test_a_skeleton_keeps_the_place_of_an_answer(held: tuple[Page, list[Route]], server: Server, view: str) -> None:
    page, routes = held
    page.goto(f"{server.url}/#{urlencode({'view': view, 'text': TEXT})}")
    wait_until(page, lambda: len(routes) > 0)
    skeleton = page.locator(".answer > .progress.active").first
    expect(skeleton).to_contain_text("Asking the server…")
    assert skeleton.evaluate(OPACITY, [400, 600]) == ["0", "1"]  # nothing flashes if the answer is quick
    release(page, routes)
    moved = page.evaluate("moved")
    assert sum(value for value, _ in moved) <= MOST_MOVED, moved


def test_a_skeleton_tells_how_long_the_last_answer_took(held: tuple[Page, list[Route]], server: Server) -> None:
    page, routes = held
    page.clock.install()
    page.goto(f"{server.url}/#{urlencode({'view': 'lens', 'text': TEXT})}")
    skeleton = page.locator("#view-lens .answer > .progress.active").first
    expect(skeleton).to_have_text("Asking the server…")
    wait_until(page, lambda: len(routes) > 0)
    page.clock.run_for(4000)
    release(page, routes)
    page.get_by_label("Text", exact=True).fill("The old king")
    page.keyboard.press("Enter")
    expect(skeleton).to_contain_text(re.compile(r"usually ([4-9]|\d\d) s"))  # the time of a busy machine is added
    release(page, routes)


def test_controls_without_room_are_behind_a_button(page: Page, open_view: Open) -> None:
    page.set_viewport_size({"width": 1000, "height": 900})
    open_view("attention", layer=1, head=3)
    row = page.locator(".one-row").first
    last = row.get_by_role("button", name="Continue and watch")
    height = row.evaluate("one => one.offsetHeight")
    assert height < 40
    expect(row.locator(":scope > .toolbar > [inert]").last).to_contain_text("Continue and watch")
    more = row.get_by_role("button", name="More")
    more.focus()
    page.keyboard.press("Enter")
    expect(row.get_by_role("button", name="Less")).to_be_focused()
    expect(row.locator("[inert]")).to_have_count(0)
    last.click()
    settle(page)
    row.get_by_role("button", name="Less").click()
    assert row.evaluate("one => one.offsetHeight") == height


def test_the_chosen_part_of_a_long_choice_is_seen_on_a_phone(page: Page, open_view: Open) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    open_view("weights", weights_show="units")
    row = page.locator(".one-row").first
    expect(row.get_by_role("button", name="two neurons")).to_be_in_viewport(ratio=1)
    row.get_by_role("button", name="More").click()
    for name in ("overview", "sizes of any model"):
        expect(row.get_by_role("button", name=name)).to_be_in_viewport(ratio=1)
