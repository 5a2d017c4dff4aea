"""How the page asks: nothing twice at once, again where it was busy, and anew when the server is another one."""

import json
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, Request, Route, expect

from benchmarks.processes import Server, free_port, serve
from tests import tiny
from tests.page.conftest import TEXT, Open, ask, settle, written
from tests.page.test_page import VIEWS


@pytest.mark.parametrize("view", VIEWS)
def test_parts_of_a_view_that_ask_the_same_share_one_request(page: Page, open_view: Open, view: str) -> None:
    asked: Counter[str] = Counter()

    def count(request: Request) -> None:
        if request.method == "POST":
            asked[f"{request.url} {request.post_data}"] += 1

    page.on("request", count)
    open_view(view)
    assert not [request for request, times in asked.items() if times > 1]


def test_what_a_busy_server_refused_is_asked_again_after_the_wait_it_asks_for(open_view: Open, server: Server) -> None:
    page = open_view("attention", layer=1, head=3, query=7, key=6)
    refusals = 0

    def refuse(route: Route) -> None:
        nonlocal refusals
        if refusals == 2 or '"layers":2' not in (route.request.post_data or ""):
            route.continue_()
            return
        refusals += 1
        error = {"message": "The queue is full.", "type": "rate_limit_error", "param": None, "code": "queue_full"}
        route.fulfill(
            status=429, headers={"Retry-After": "1"}, content_type="application/json", body=json.dumps({"error": error})
        )

    page.route("**/v1/attention", refuse)
    page.locator("#layer").select_option("2")
    problem = page.locator(".view .problem")
    expect(problem).to_contain_text("The queue is full.")
    expect(problem).to_contain_text("It is asked again after 1 s")
    expect(problem).to_have_count(0)
    assert refusals == 2
    page.unroute_all(behavior="wait")
    weights = ask(server, "/v1/attention", {"input": TEXT, "layers": 2, "heads": 3})["data"][0]["attention"][0][0]
    expect(page.locator(".readout", has_text=written(weights[7][6])).first).to_be_visible()


@pytest.mark.parametrize("view", ["attention", "contributions", "next", "why"])
def test_a_refusal_that_several_parts_got_is_said_once_with_what_helps_here(open_view: Open, view: str) -> None:
    page = open_view(view, text="word " * 600)
    problems = page.locator(".problem:visible")
    expect(problems).to_have_count(1)
    expect(problems).to_contain_text("Shorten the text.")
    expect(problems).not_to_contain_text("truncate")
    page.get_by_role("button", name="Keep the first 512 tokens").click()
    expect(page.get_by_text("512 tokens.")).to_be_visible()
    settle(page)
    expect(page.locator(".problem")).to_have_count(0)


def opened(browser: Browser, url: str) -> Page:
    page = browser.new_page()
    page.goto(f"{url}/#{urlencode({'view': 'attention', 'text': 'abc', 'layer': 0, 'head': 1, 'query': 2, 'key': 1})}")
    settle(page)
    return page


def weight(server: Server) -> str:
    body: dict[str, Any] = {"input": "abc", "layers": 0, "heads": 1}
    return written(ask(server, "/v1/attention", body)["data"][0]["attention"][0][0][2][1])


def test_a_server_that_began_anew_with_other_weights_is_noticed(browser: Browser, tmp_path: Path) -> None:
    """The second one has the same name and shape, and the page asked nothing while there was none."""
    port = free_port()
    folders = [tiny.make("llama", tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    with serve([str(folders[0]), "--served-model-name", "same"], port=port) as first:
        page = opened(browser, first.url)
        before = weight(first)
        expect(page.locator(".readout", has_text=before).first).to_be_visible()
    with serve([str(folders[1]), "--served-model-name", "same"], port=port) as second:
        now = weight(second)
        assert now != before
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # as when its tab is come back to
        expect(page.locator(".readout", has_text=now).first).to_be_visible()
        expect(page.locator(".readout", has_text=before)).to_have_count(0)
    page.close()
