"""Helpers for the view Chat: sends messages, and lets the page receive answers that a test writes."""

import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import Locator, Page, Route, expect

from tests.page.conftest import TEXT, take_precision
from tests.support.processes import Server

ROUTE = "**/v1/chat/completions"


def open_chat(page: Page, server: Server, **state: Any) -> Page:
    """Open the view with an empty history."""
    if page.url.startswith("http"):  # a new page has no history
        page.evaluate("localStorage.clear(); sessionStorage.clear()")
        page.goto("about:blank")
    page.goto(f"{server.url}/#{urlencode({'view': 'chat', **state})}")
    expect(page.locator("#message")).to_be_focused()
    return page


def open_text(page: Page, server: Server, **state: Any) -> Page:
    """Open the mode Text of the view with an empty history; the field has the text."""
    take_precision(server)
    return open_chat(page, server, **{"chat_mode": "text", "text": TEXT, **state})


def begin_text(page: Page, text: str) -> None:
    """Begin another text."""
    page.get_by_role("button", name="New text", exact=True).click()
    page.locator("#message").fill(text)


def write(page: Page) -> None:
    """Let the model continue the text in the field, and wait for the end."""
    page.locator("#write").click()
    expect(page.get_by_role("button", name="Continue", exact=True)).to_be_visible()


def chips(page: Page) -> list[str]:
    """Return the tokens of a continued text as they are shown, in order."""
    return page.locator(".prose button").all_inner_texts()


def settings(page: Page, **fields: str) -> None:
    """Type values into the fields of the settings, by their labels with _ for a space; the settings stay open."""
    if not page.locator(".chat-settings").count():
        page.get_by_role("button", name="Settings", exact=True).click()
    for name, value in fields.items():
        field = page.locator(".chat-settings").get_by_label(name.replace("_", " "), exact=True)
        field.fill(value)
        field.blur()


def send(page: Page, text: str) -> None:
    """Send a message and wait for the end of the answer."""
    page.locator("#message").fill(text)
    page.locator("#message").press("Enter")
    ended(page)


def ended(page: Page) -> None:
    expect(page.get_by_role("button", name="Stop", exact=True)).to_have_count(0)
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_visible()


def answers(page: Page) -> Locator:
    return page.locator(".turn.of-assistant")


def event(delta: dict[str, Any], reason: str | None = None, ids: Sequence[int] = (1,)) -> str:
    choice = {"index": 0, "delta": delta, "token_ids": list(ids), "finish_reason": reason}
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


def stream_of(text: str, *, reasoning: str = "", calls: Sequence[dict[str, Any]] = ()) -> str:
    """Return the events of an answer, a few characters in each."""
    events = [event({"role": "assistant", "content": ""}, ids=())]
    events += [event({"reasoning_content": part}) for part in re.findall(r"(?s).{1,9}", reasoning)]
    events += [event({"content": part}) for part in re.findall(r"(?s).{1,9}", text)]
    if calls:
        events.append(event({"tool_calls": list(calls)}))
    return "".join([*events, event({}, "tool_calls" if calls else "stop"), "data: [DONE]\n\n"])


class Scripted:
    """Answers the page's chats with given texts, one after another, and keeps the requests' bodies."""

    def __init__(self, page: Page, *streams: str) -> None:
        self.bodies: list[dict[str, Any]] = []
        self._streams = list(streams)
        page.route(ROUTE, self._answer)

    def _answer(self, route: Route) -> None:
        self.bodies.append(route.request.post_data_json)
        stream = self._streams.pop(0) if len(self._streams) > 1 else self._streams[0]
        route.fulfill(status=200, content_type="text/event-stream", body=stream)
