"""How the page sends requests: none twice at once, again if the server was busy, and all of them if the server was
replaced.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Request, Route, expect

from tests import tiny
from tests.page.conftest import TEXT, Open, ask, settle, written
from tests.page.test_page import VIEWS
from tests.support.processes import Server, free_port, serve


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


def asks_head(request: Request, route: str, head: int) -> bool:
    return request.url.endswith(route) and bool(re.search(rf'"heads?":{head},', request.post_data or ""))


def test_what_is_no_longer_wanted_is_cancelled(open_view: Open, server: Server) -> None:
    page = open_view("why", layer=1, head=3, query=7, key=6)
    page.route("**/v1/explain", lambda route: None if asks_head(route.request, "explain", 4) else route.continue_())
    with page.expect_request(lambda request: asks_head(request, "explain", 4)):
        page.locator("#head").select_option("4")
    with page.expect_event("requestfailed", lambda request: asks_head(request, "explain", 4)):
        page.locator("#head").select_option("5")
    weights = ask(server, "/v1/attention", {"input": TEXT, "layers": 1, "heads": 5})["data"][0]["attention"][0][0]
    expect(page.locator("#why-weight")).to_have_text(written(weights[7][6]))
    expect(page.locator(".problem")).to_have_count(0)


def test_one_head_is_fetched_first_and_in_binary(page: Page, open_view: Open) -> None:
    with page.expect_response(lambda response: asks_head(response.request, "attention", 4)) as answered:
        open_view("attention", layer=1, head=4)
    request = answered.value.request
    assert request.headers["accept"] == "application/vnd.safetensors"
    assert answered.value.headers["content-type"] == "application/vnd.safetensors"
    body = json.loads(request.post_data or "")
    assert (body["layers"], body["heads"]) == (1, 4)


def test_the_page_asks_only_what_everyone_may(page: Page, open_view: Open, server: Server) -> None:
    """Check that every path is documented; the page's own files are below /web/."""
    asked: set[tuple[str, str]] = set()
    page.on("request", lambda request: asked.add((request.method.lower(), urlsplit(request.url).path)))
    for view in VIEWS:
        open_view(view, write_max_tokens=3)
        if view == "write":
            page.locator("#write").click()
            page.locator(".prose button").nth(1).click()
            settle(page)
    documented = [
        (method, re.compile(re.sub(r"\{[^}]*\}", "[^/]+", path)))
        for path, methods in ask(server, "/openapi.json")["paths"].items()
        for method in methods
    ]
    assert len(asked) > 2 * len(VIEWS)
    assert not {
        (method, path)
        for method, path in asked
        if path != "/"
        and not path.startswith("/web/")
        and not any(method == known and pattern.fullmatch(path) for known, pattern in documented)
    }


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
    """Start a second server with the same name and shape; the page requested nothing while none was running."""
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


def test_a_view_opened_while_the_server_is_away_comes_when_it_is_back(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    folder = str(tiny.make("llama", tmp_path / "model"))
    with serve([folder], port=port) as first:
        page = opened(browser, first.url)
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Next token").click()
    problem = page.locator(".view .problem")
    expect(problem).to_contain_text("The server does not answer.")
    expect(problem).to_contain_text("It is asked again as soon as it answers.")
    with serve([folder], port=port):
        expect(page.locator("#view-next .likeliest")).to_be_visible(timeout=30_000)
        expect(page.locator(".problem")).to_have_count(0)
    page.close()


def test_a_browser_that_keeps_failed_imports_is_asked_under_another_address(page: Page, open_view: Open) -> None:
    """Fail each request for the view's own address, as a browser does that keeps the first failure."""
    open_view("attention")
    page.route(re.compile(r"/views/next\.js$"), lambda route: route.abort())
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Next token").click()
    expect(page.locator("#view-next .likeliest")).to_be_visible()


def test_a_view_of_another_version_of_the_page_asks_for_a_reload(page: Page, open_view: Open) -> None:
    open_view("attention")
    page.route("**/views/next.js*", lambda route: route.fulfill(status=404))
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Next token").click()
    expect(page.locator(".view .problem")).to_contain_text("The page was updated")
    page.unroute("**/views/next.js*")
    page.get_by_role("button", name="Reload the page").click()
    expect(page.locator("#view-next .likeliest")).to_be_visible()
