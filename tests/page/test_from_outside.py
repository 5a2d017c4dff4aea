"""Names, tokens and errors of the model and the server are shown as text, never as HTML; they may have any content."""

import json
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.page.conftest import Open

NASTY = '<img src=x onerror="document.title=1"><b id=mark>bold</b>'


def is_only_text(page: Page) -> None:
    expect(page.locator("#mark, img")).to_have_count(0)
    assert page.title().endswith("Lightwell")


def changed(value: Any, fields: set[str]) -> Any:
    """Return the JSON with a hostile string in each text below one of these fields."""

    def nasty(inner: Any) -> Any:
        if isinstance(inner, list):
            return [nasty(one) for one in inner]
        return NASTY if isinstance(inner, str) else inner

    if isinstance(value, list):
        return [changed(one, fields) for one in value]
    if isinstance(value, dict):
        return {name: nasty(one) if name in fields else changed(one, fields) for name, one in value.items()}
    return value


def alter_json(*fields: str) -> Any:
    def alter(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=changed(answer.json(), set(fields)))

    return alter


def alter_stream(route: Route) -> None:
    """Make each event's text and token nasty."""
    answer = route.fetch()
    lines = []
    for line in answer.text().split("\n"):
        if line.startswith("data: {"):
            line = f"data: {json.dumps(changed(json.loads(line[6:]), {'text', 'tokens'}))}"
        lines.append(line)
    route.fulfill(response=answer, body="\n".join(lines))


def alter_tensors(*fields: str) -> Any:
    """Alter the metadata of safetensors as alter_json does JSON: a length of 8 bytes, a header of JSON, the numbers."""

    def alter(route: Route) -> None:
        answer = route.fetch()
        body = answer.body()
        end = 8 + int.from_bytes(body[:8], "little")
        header = json.loads(body[8:end])
        entries = {name: json.loads(said) for name, said in header["__metadata__"].items() if name.endswith(".0")}
        header["__metadata__"] |= {name: json.dumps(changed(entry, set(fields))) for name, entry in entries.items()}
        head = json.dumps(header).encode()
        route.fulfill(response=answer, body=len(head).to_bytes(8, "little") + head + body[end:])

    return alter


def test_a_written_token(open_view: Open) -> None:
    page = open_view("chat", chat_mode="text", write_max_tokens=3)
    page.route("**/v1/completions", alter_stream)
    page.locator("#write").click()
    expect(page.locator(".prose button").first).to_contain_text("<img src=x")
    page.locator(".prose button").first.click()
    expect(page.get_by_role("complementary", name="The chosen token")).to_contain_text("<img src=x")
    is_only_text(page)


@pytest.mark.parametrize(
    ("view", "route", "fields"),
    [
        ("lens", "lens", ["top_tokens", "tokens"]),
        ("next", "next", ["token", "tokens"]),
        ("attention", "attention", ["tokens", "key_tokens"]),
        ("contributions", "contributions", ["tokens", "token", "target_token"]),
    ],
)
def test_tokens_of_a_look(page: Page, open_view: Open, view: str, route: str, fields: list[str]) -> None:
    page.route(f"**/v1/{route}", alter_tensors(*fields))
    open_view(view, layer=1, head=3)
    expect(page.locator(".view").get_by_text("<img").first).to_be_visible()
    is_only_text(page)


def test_the_models_name(page: Page, open_view: Open) -> None:
    page.route("**/v1/capabilities", alter_json("model"))
    page.route("**/models", alter_json("id"))
    open_view("server")
    expect(page.locator("header .model")).to_contain_text(NASTY)
    expect(page.locator(".server-view")).to_contain_text(NASTY)
    is_only_text(page)


def test_an_error(page: Page, open_view: Open) -> None:
    error = {"message": NASTY, "type": "invalid_request_error", "param": None, "code": None}
    page.route("**/v1/attention", lambda route: route.fulfill(status=400, json={"error": error}))
    open_view("attention")
    expect(page.locator(".view .problem").first).to_contain_text(NASTY)
    is_only_text(page)
