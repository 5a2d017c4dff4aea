"""A view that is taken away: a file that shows it without a server, and a frame in another origin's page."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, Page, Request, Route, expect

from tests.page.chats import Scripted, answers, open_chat, send, stream_of, write
from tests.page.conftest import FRAMING_ORIGIN, TEXT, VIEWS, Open, Tab, ask, new_page, settle, written
from tests.page.test_accessibility import serious
from tests.support.processes import Server

NOTHING_MORE = "This file contains only the views that were seen before it was saved"


def save(page: Page, folder: Path) -> Path:
    """Save the open view by the menu of the header; return the file."""
    page.locator("header.top").get_by_role("button", name="Share…").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="this view (HTML)").click()
    file = folder / download.value.suggested_filename
    download.value.save_as(file)
    return file


Opened = Callable[[Path], AbstractContextManager[Page]]


@pytest.fixture
def opened(offline_tab: Tab, request: pytest.FixtureRequest) -> Opened:
    """opened(file): the file without a network; it fails if it sent a request, or if its script failed."""

    @contextmanager
    def opened(file: Path) -> Iterator[Page]:
        with offline_tab.used(request.session) as page:
            page.goto(file.as_uri())
            page.locator("main h1").wait_for()
            settle(page)
            yield page

    return opened


def is_of_next_layer(request: Request) -> bool:
    """Return whether Attention asks in advance: for all heads of a layer other than 1, which it does last."""
    body = json.loads(request.post_data or "{}")
    return request.url.endswith("/v1/attention") and body.get("layers") in (0, 2) and "heads" not in body


def weight_of(server: Server, head: int) -> str:
    body = {"input": TEXT, "layers": 1, "heads": head, "query_positions": 7}
    return written(ask(server, "/v1/attention", body)["data"][0]["attention"][0][0][0][6])


def test_a_saved_view_shows_the_heads_that_had_come_and_says_what_it_lacks(
    page: Page, open_view: Open, opened: Opened, server: Server, tmp_path: Path
) -> None:
    with page.expect_request(is_of_next_layer):  # the other heads of the layer are here
        open_view("attention", layer=1, head=4, query=7, key=6)
    page.locator("#head").select_option("3")
    settle(page)
    file = save(page, tmp_path)
    assert file.name == "lightwell-attention.html"
    assert file.stat().st_size < 500_000
    with opened(file) as alone:
        expect(alone.locator("header.top")).to_contain_text(NOTHING_MORE)
        for head in (3, 4, 5):
            alone.locator("#head").select_option(str(head))
            expect(alone.locator(".readout", has_text=weight_of(server, head)).first).to_be_visible()
        alone.locator(".head-pictures canvas").nth(1).hover(position={"x": 120, "y": 120})
        expect(alone.locator(".problem")).to_have_count(0)
        alone.locator("#layer").select_option("3")
        expect(alone.locator(".problem:visible")).to_contain_text(NOTHING_MORE)
        expect(alone.locator(".wall canvas").first).to_be_visible()
        link = alone.get_by_role("link", name="Open in Lightwell")
        expect(link).to_have_attribute("href", re.compile(f"^{re.escape(server.url)}/#view=attention&.*head=5"))


def test_views_of_every_kind_can_be_saved(open_view: Open, opened: Opened, tmp_path: Path) -> None:
    """Save the views that need most: several answers at once, and generated text, which no answer repeats. That the
    code of every view fits is tested in tests/server/dialects/test_one_file.py.
    """
    page = open_view("chat", chat_mode="text", write_max_tokens=4)
    write(page)
    story = page.locator(".prose").inner_text()
    files = {}
    views = page.get_by_role("navigation", name="Views").get_by_role("button")
    for view in ("chat", "home", "next", "flow"):
        views.nth(VIEWS.index(view)).click()
        page.locator(f"#view-{view} h1").wait_for()
        settle(page)
        files[f"view-{view}"] = save(page, tmp_path)
    for name, file in files.items():
        with opened(file) as alone:
            assert alone.locator("main").get_attribute("id") == name
            expect(alone.locator(".problem")).to_have_count(0)
            if name == "view-home":
                shares = alone.locator(".home-next .number")
                before = shares.all_inner_texts()
                alone.get_by_label("temperature").fill("0.5")
                expect(shares.first).not_to_have_text(before[0])
                expect(alone.locator(".problem")).to_have_count(0)
            if name == "view-chat":
                assert alone.locator(".prose").inner_text() == story


def test_a_saved_conversation_shows_its_turns(page: Page, server: Server, opened: Opened, tmp_path: Path) -> None:
    open_chat(page, server)
    Scripted(page, stream_of("It is **Paris**."))
    send(page, "France?")
    answers(page).get_by_role("button", name="Regenerate").click()
    expect(page.get_by_label("Version 2 of 2")).to_be_visible()
    with opened(save(page, tmp_path)) as alone:
        expect(alone.locator(".turn.of-user")).to_contain_text("France?")
        expect(alone.locator(".markdown strong")).to_have_text("Paris")
        expect(alone.locator("#message, .chat-list")).to_have_count(0)
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Server").click()
    settle(page)
    assert "France?" not in save(page, tmp_path).read_text(encoding="utf-8"), "another view's file has no conversation"


def test_a_saved_conversation_holds_no_other_conversation(page: Page, server: Server, tmp_path: Path) -> None:
    open_chat(page, server)
    Scripted(page, stream_of("Paris."))
    send(page, "Where is Lyon?")
    answers(page).get_by_role("button", name="X-ray").click()
    expect(answers(page).locator(".prose button").first).to_be_visible()
    assert "Where is Lyon?" in save(page, tmp_path).read_text(encoding="utf-8")
    page.get_by_role("button", name="New chat").click()
    send(page, "Poland?")
    content = save(page, tmp_path).read_text(encoding="utf-8")
    assert "Poland?" in content
    assert "Where is Lyon?" not in content


def test_a_saved_view_holds_no_key_and_no_earlier_text_and_its_texts_are_no_markup(
    page: Page, open_view: Open, opened: Opened, tmp_path: Path
) -> None:
    key, private = "sk-of-somebody", "The secret of the zebra"
    nasty = "Once <!-- <script> </script><b id=mark>bold</b> $& \u2028 there"
    with page.expect_request(is_of_next_layer):
        open_view("attention", text=private)
    error = {"message": "No key.", "type": "authentication_error", "param": None, "code": "invalid_api_key"}
    page.route("**/v1/attention", lambda route: route.fulfill(status=401, json={"error": error}))
    page.get_by_label("Text", exact=True).fill(nasty)
    page.get_by_label("API key").fill(key)
    page.unroute("**/v1/attention")
    with page.expect_request(lambda each: "/v1/attention" in each.url and "authorization" in each.headers) as sent:
        page.get_by_role("button", name="Use it").click()
    assert sent.value.headers["authorization"] == f"Bearer {key}"
    settle(page)
    file = save(page, tmp_path)
    text = file.read_text(encoding="utf-8")
    assert key not in text
    assert "zebra" not in text
    with opened(file) as alone:
        expect(alone.locator("#mark")).to_have_count(0)
        expect(alone).to_have_title("Attention · Lightwell")
        expect(alone.locator(".tokens").first).to_contain_text("bold")


def test_an_embedded_page_is_the_view_alone(open_view: Open, page: Page, server: Server) -> None:
    page.goto(f"{server.url}/?embed=1#view=why&text={TEXT}&layer=1&head=3")
    expect(page.locator(".why-steps")).to_be_visible()
    settle(page)
    for part in ("header.top", "nav", ".shared"):
        expect(page.locator(part)).to_have_count(0)
    with page.context.expect_page() as whole:
        page.get_by_role("link", name="Open in Lightwell").click()
    whole.value.wait_for_load_state()
    assert whole.value.url.startswith(f"{server.url}/#view=why&")
    expect(whole.value.locator("#head")).to_have_value("3")


def test_axe_finds_nothing_serious_and_nothing_is_wider_than_a_phone(
    open_view: Open, open_page: Page, tmp_path: Path
) -> None:
    file = save(open_view("why", layer=1, head=3), tmp_path)
    page = open_page
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(file.as_uri())
    page.locator(".why-steps").wait_for()
    settle(page)
    found = serious(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1280, "height": 900})
    page.emulate_media(color_scheme="light")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    found += serious(page, runOnly=["color-contrast"])
    assert not found


def test_the_keyboard_alone_saves_a_view(open_view: Open, tmp_path: Path) -> None:
    page = open_view("heads")
    page.locator("header.top").get_by_role("button", name="Share…").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert download.value.suggested_filename == "lightwell-heads.html"
    expect(page.locator("header.top").get_by_role("status")).to_contain_text("Saved, ")
    expect(page.locator("header.top").get_by_role("button", name="Share…")).to_be_focused()


def test_only_pages_of_named_origins_frame_the_view_and_no_frame_asks_for_a_key(
    browser: Browser, guarded: Server
) -> None:
    def embed(route: Route) -> None:
        address = "/?embed=1" if route.request.url.endswith("view.html") else "/"
        frame = f'<iframe id="it" src="{guarded.url}{address}"></iframe>'
        route.fulfill(content_type="text/html", body=frame)

    with new_page(browser) as page:
        page.route("http://*.invalid/*", embed)
        # Chromium forbids such a page to send requests to the loopback interface itself.
        page.route(f"{guarded.url}/**", lambda route: route.fulfill(response=route.fetch()))
        page.goto(f"{FRAMING_ORIGIN}/view.html")
        frame = page.frame_locator("#it")
        expect(frame.get_by_role("alert")).to_contain_text("this server needs an API key")
        expect(frame.locator("input")).to_have_count(0)
        for address in ("http://stranger.invalid/view.html", f"{FRAMING_ORIGIN}/whole.html"):
            with page.expect_console_message(lambda message: "frame-ancestors" in message.text):
                page.goto(address)
            expect(page.frame_locator("#it").locator("#app")).to_have_count(0)


def test_no_policy_of_a_file_lets_another_script_run(server: Server) -> None:
    """Check the skeleton of a file: one script, named by its digest, and no network."""
    page = urlopen(f"{server.url}/web/saved/lens.html", timeout=60).read().decode()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy
