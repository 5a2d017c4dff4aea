"""How the page sends requests: none twice at once, each again if the server was busy, and all again if the server was
replaced.
"""

import json
import re
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Page, Request, Route, expect

from tests.page.conftest import TEXT, VIEWS, Open, ask, requests_of, sent_to, settle, show, written
from tests.support.processes import Server


def test_a_view_asks_nothing_twice_and_only_what_everyone_may(page: Page, server: Server) -> None:
    """Check that every path is documented; the page's own files are below /web/."""
    documented = [
        (method, re.compile(re.sub(r"\{[^}]*\}", "[^/]+", path)))
        for path, methods in ask(server, "/openapi.json")["paths"].items()
        for method in methods
    ]
    seen = set()
    for number, view in enumerate(VIEWS):
        text = f"{TEXT} {number}"  # other views' cached answers would hide requests
        with requests_of(page) as requests:
            show(page, server, view, text=text, chat_mode="text", write_max_tokens=3)
            asked = Counter(f"{each.url} {each.post_data}" for each in requests if each.method == "POST")
            assert not [request for request, times in asked.items() if times > 1], view
            if view == "chat":
                page.locator("#write").click()
                page.locator(".prose button").nth(1).click()
                settle(page)
        paths = {(request.method.lower(), urlsplit(request.url).path) for request in requests}
        seen |= paths
        assert not {
            (method, path)
            for method, path in paths
            if path != "/"
            and not path.startswith("/web/")
            and not any(method == known and pattern.fullmatch(path) for known, pattern in documented)
        }
    assert len(seen) > len(VIEWS)


def test_what_a_busy_server_refused_is_asked_again_after_the_wait_it_asks_for(
    page: Page, open_view: Open, server: Server
) -> None:
    refusals = 0
    is_busy = True

    def refuse(route: Route) -> None:
        nonlocal refusals
        if not is_busy or '"layers":2' not in (route.request.post_data or ""):
            route.continue_()
            return
        refusals += 1
        error = {"message": "The queue is full.", "type": "rate_limit_error", "param": None, "code": "queue_full"}
        route.fulfill(
            status=429, headers={"Retry-After": "1"}, content_type="application/json", body=json.dumps({"error": error})
        )

    page.route("**/v1/attention", refuse)  # before the view is opened: it requests the next layer in advance
    open_view("attention", layer=1, head=3, query=7, key=6)
    page.locator("#layer").select_option("2")
    problem = page.locator(".view .problem")
    expect(problem).to_contain_text("The queue is full.")
    expect(problem).to_contain_text("The page retries after 1 s")
    with page.expect_request("**/v1/attention"):
        pass
    is_busy = False
    expect(problem).to_have_count(0)
    assert refusals >= 2
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


def test_a_refusal_that_several_parts_got_is_said_once_with_what_helps_here(open_view: Open) -> None:
    for view in ("attention", "contributions"):
        page = open_view(view, text="word " * 600)
        problems = page.locator(".problem:visible")
        expect(problems).to_have_count(1)
        expect(problems).to_contain_text("Shorten the text.")
        expect(problems).not_to_contain_text("truncate")
        page.get_by_role("button", name="Keep the first 512 tokens").click()
        expect(page.get_by_text("512 tokens.")).to_be_visible()
        settle(page)
        expect(page.locator(".problem")).to_have_count(0)


PLACE: dict[str, Any] = {"view": "attention", "text": TEXT, "layer": 0, "head": 1, "query": 2, "key": 1}


def weight(server: Server) -> str:
    body = {"input": TEXT, "layers": 0, "heads": 1}
    digits = 4 - (ask(server, "/version")["compute_dtype"] == "bfloat16")
    return written(ask(server, "/v1/attention", body)["data"][0]["attention"][0][0][2][1], digits)


def test_a_server_that_began_anew_with_other_weights_is_noticed(page: Page, server: Server, another: Server) -> None:
    """Replace the server by one with the same name; the page sends no request meanwhile."""
    show(page, server, **PLACE)
    before, now = weight(server), weight(another)
    assert now != before
    expect(page.locator(".readout", has_text=before).first).to_be_visible()
    page.wait_for_load_state("networkidle")
    page.route("**/*", sent_to(another, server.url, name="fables"))
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # as when its tab is come back to
    expect(page.locator(".readout", has_text=now).first).to_be_visible()
    expect(page.locator(".readout", has_text=before)).to_have_count(0)


def test_a_view_opened_while_the_server_is_away_comes_when_it_is_back(page: Page, server: Server) -> None:
    show(page, server, **PLACE)
    page.route("**/*", lambda route: route.abort("connectionrefused"))
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Next token").click()
    problem = page.locator(".view .problem")
    expect(problem).to_contain_text("The server does not answer.")
    expect(problem).to_contain_text("The page retries as soon as it answers.")
    page.unroute("**/*")
    expect(page.locator("#view-next .likeliest")).to_be_visible()
    expect(page.locator(".problem")).to_have_count(0)


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
