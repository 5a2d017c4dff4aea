"""Shared parts of a view: a card with title, text and picture; a clip; a link and a file that open at one frame."""

import base64
import io
import re
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from tests.page.conftest import PATIENCE_MS, Open, Tab, new_page, settle, wait_until
from tests.page.test_clip import FRAMES
from tests.support.processes import Server

CLIPBOARD = "navigator.clipboard.readText()"
PLACE = "Place in the journey"
BETWEEN = {"journey_stop": "dots", "journey_between": 0.4}
PICTURE = "document.querySelector('.journey canvas').toDataURL()"


def share(page: Page, entry: str | re.Pattern[str]) -> None:
    page.locator("header.top").get_by_role("button", name="Share…").click()
    page.get_by_role("button", name=entry).click()


def shared(page: Page, entry: str | re.Pattern[str], *, patience_ms: float = PATIENCE_MS) -> Path:
    with page.expect_download(timeout=patience_ms) as download:
        share(page, entry)
    path = download.value.path()
    return path.rename(path.with_name(download.value.suggested_filename))


def test_a_card_has_title_text_and_picture(page: Page, open_view: Open) -> None:
    open_view("why", layer=1, head=3)
    file = shared(page, "card (PNG)")
    assert file.name == "lightwell-why.png"
    card = Image.open(io.BytesIO(file.read_bytes())).convert("RGB")
    assert card.size == (1200, 630)
    paper = card.getpixel((1190, 620))
    drawn = [
        sum(card.getpixel((x, y)) != paper for x in range(56, 1144, 4) for y in range(top, end, 2))
        for top, end in ((30, 84), (90, 125), (150, 560), (570, 600))  # title, text, picture, source
    ]
    assert min(drawn) > 100, drawn
    open_view("chat")  # without a picture
    assert Image.open(io.BytesIO(shared(page, "card (PNG)").read_bytes())).size == (1200, 630)


TITLE = """() => { const { prototype } = CanvasRenderingContext2D, { fillText } = prototype; window.written = [];
    prototype.fillText = function (...all) { window.written.push(all[0]); return fillText.call(this, ...all); } }"""


def test_a_card_of_the_journey_has_the_present_stop_as_its_title_and_stops_it(page: Page, open_view: Open) -> None:
    open_view("journey", journey_stop="softmax")
    page.get_by_role("button", name="Play", exact=True).click()
    stop = page.locator(".journey-stops .on h2")
    page.evaluate(TITLE)
    shared(page, "card (PNG)")
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()
    assert stop.inner_text() in " ".join(page.evaluate("window.written"))


def test_home_has_no_picture_for_a_card(page: Page, open_view: Open) -> None:
    open_view("home")
    page.locator("header.top").get_by_role("button", name="Share…").click()
    expect(page.get_by_role("button", name="link to this view")).to_be_visible()
    expect(page.get_by_role("button", name="card (PNG)")).to_have_count(0)


def test_a_link_opens_the_same_frame(page: Page, open_view: Open) -> None:
    open_view("journey", **BETWEEN)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    slider = page.get_by_role("slider", name=PLACE)
    place, picture = slider.input_value(), page.evaluate(PICTURE)
    assert float(place) % 1 == pytest.approx(0.4)
    share(page, "link to this view")
    expect(page.locator("header.top").get_by_role("status")).to_have_text("Copied")
    link = page.evaluate(CLIPBOARD)
    page.goto("about:blank")
    page.goto(link)
    settle(page)
    expect(slider).to_have_value(place)
    wait_until(page, lambda: page.evaluate(PICTURE) == picture)


def test_a_file_that_is_saved_while_the_picture_plays_opens_at_that_frame(
    page: Page, open_view: Open, offline_tab: Tab, request: pytest.FixtureRequest
) -> None:
    open_view("journey", **BETWEEN)
    slider = page.get_by_role("slider", name=PLACE)
    page.get_by_role("button", name="Play", exact=True).click()
    expect(slider).not_to_have_value(re.compile(r"\.4$"))
    file = shared(page, "this view (HTML)")
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()  # it has stopped
    place = float(slider.input_value())
    with offline_tab.used(request.session) as alone:
        alone.goto(file.as_uri())
        alone.locator("main h1").wait_for()
        settle(alone)
        assert float(alone.get_by_role("slider", name=PLACE).input_value()) == pytest.approx(place, abs=0.02)
        expect(alone.locator(".problem")).to_have_count(0)


@pytest.mark.nightly  # a film of ten seconds
def test_a_clip_lasts_ten_seconds(open_page: Page, server: Server) -> None:
    page = open_page
    page.set_viewport_size({"width": 700, "height": 700})
    page.goto(f"{server.url}/#view=journey&text=The+king")
    settle(page)
    file = shared(page, re.compile("clip of 10 s"), patience_ms=2 * PATIENCE_MS)
    assert file.name == "journey.webm"
    film = file.read_bytes()
    assert 10_000 < len(film) < 5_000_000
    with new_page(page.context.browser, bypass_csp=True) as player:
        seen = player.evaluate(FRAMES, base64.b64encode(film).decode())
    assert 9.5 < seen["seconds"] < 30  # longer where the machine draws fewer than ten frames a second
    assert min(seen["size"]) > 300
