"""The page on a phone: buttons are large enough, the shared bar is one line, a wide table keeps its main columns."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.page.chats import write
from tests.page.conftest import Open, box_of, show, wait_until
from tests.page.test_accessibility import are_headings_in_order, nameless, opened_views, serious
from tests.support.processes import Server

WIDTH, HEIGHT = 390, 844
SMALLEST = 24  # CSS pixels, WCAG 2.2, 2.5.8

# WCAG 2.5.8 exempts a link or a word in a sentence, which is as high as its line, and a checkbox with a label.
SMALL = """(smallest) => [...document.querySelectorAll(
  "button, a, input, select, textarea, summary, label:has([type=checkbox])")]
  .filter((one) => one.checkVisibility() && !one.matches(".skip, [type=checkbox], p > a, .prose button"))
  .map((one) => ({ one, box: one.getBoundingClientRect() }))
  .filter(({ box }) => Math.min(box.width, box.height) < smallest)
  .map(({ one, box }) => `${one.outerHTML.slice(0, 90)}: ${box.width} x ${box.height}`)"""


NARROWED = "html.narrowed * { letter-spacing: -.12em !important; }"
"""Makes text as narrow as the narrowest fonts do: a control of one short word must be large enough without it."""


@pytest.fixture
def phone(page: Page) -> Page:
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    return page


def test_every_control_is_large_enough_and_no_view_has_a_barrier_or_scrolls_sideways(
    open_page: Page, server: Server
) -> None:
    """Open all views, dark and on a phone; everything that can be used has a name, and the headings are in order."""
    phone = open_page
    phone.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    phone.emulate_media(color_scheme="dark")
    show(phone, server, "chat", chat_mode="text", write_max_tokens=20)
    write(phone)
    phone.locator(".prose button").nth(1).click()
    phone.add_style_tag(content=NARROWED)
    for view in opened_views(phone):
        assert phone.evaluate("document.documentElement.scrollWidth") <= WIDTH, view
        assert not serious(phone), view
        assert not nameless(phone), view
        assert are_headings_in_order(phone), view
        if view == "attention":
            phone.locator(".fold").click()
        for is_narrowed in (True, False):
            phone.evaluate("is => { document.documentElement.classList.toggle('narrowed', is); }", is_narrowed)
            assert not phone.evaluate(SMALL, SMALLEST), f"{view}, {'narrowed' if is_narrowed else 'as it is'}"


def test_the_shared_bar_is_one_line_that_opens(phone: Page, open_view: Open) -> None:
    open_view("attention", layer=2, head=5)
    bar = phone.get_by_role("region", name="What is looked at")
    assert box_of(bar)["height"] < 50
    fold = bar.get_by_role("button", name="Once upon a time there was a little girl layer 2, head 5")
    expect(fold).to_have_attribute("aria-expanded", "false")
    fold.press("Enter")
    phone.locator("#head").select_option("4")
    phone.get_by_role("button", name="token 3, ").first.click()
    phone.wait_for_url("**query=3**")
    labels = phone.locator(".segments button, .top .quiet").all()
    cut = "element => element.scrollWidth > element.clientWidth + 1"
    assert not [each.inner_text() for each in labels if each.evaluate(cut)]
    bar.get_by_role("button", name="layer 2, head 4 Close").click()
    expect(phone.locator("#head")).to_be_hidden()


def test_what_the_shared_bar_must_say_is_seen_though_it_is_folded(phone: Page, open_view: Open) -> None:
    open_view("attention", text="word " * 600)
    expect(phone.get_by_role("button", name="Keep the first 512 tokens")).to_be_visible()


def test_the_weights_of_a_wide_table_stay_in_sight(phone: Page, open_view: Open) -> None:
    open_view("why", layer=1, head=3, query=8)
    table = phone.get_by_role("table", name="From scores to weights")
    row = table.get_by_role("row").nth(3)
    for scrolled in (0, 1000):
        table.evaluate("(table, left) => { table.parentElement.scrollLeft = left; }", scrolled)
        frame = box_of(table.locator("xpath=.."))
        name, weight = box_of(row.get_by_role("rowheader")), box_of(row.get_by_role("cell").last)
        assert name["x"] >= frame["x"] - 1
        assert weight["x"] + weight["width"] <= frame["x"] + frame["width"] + 1
        assert name["x"] + name["width"] <= weight["x"]


def test_the_card_of_a_tapped_token_is_on_the_screen_with_the_token(phone: Page, open_view: Open) -> None:
    open_view("chat", chat_mode="text", write_max_tokens=120, write_seed=7)
    write(phone)
    card = phone.get_by_role("complementary", name="The chosen token")
    for place in (3, 60, 100):
        token = phone.locator(".prose button").nth(place)
        token.click()
        expect(card.locator("tbody tr").first).to_be_in_viewport()
        expect(token).to_be_in_viewport(ratio=1)
        wait_until(phone, lambda token=token: box_of(token)["y"] + box_of(token)["height"] <= box_of(card)["y"])
        card.get_by_role("button", name="Close").click()


def test_what_is_out_of_sight_at_a_side_has_a_cue(phone: Page, open_view: Open) -> None:
    for view, box in (("lens", ".lens-scroll"), ("flow", ".flow-scroll"), ("why", ".scrolled")):
        open_view(view, query=8)
        scrolled = phone.locator(box).first
        for left, cue in ((0, "right"), (30, "left right"), (10_000, "left")):
            scrolled.evaluate("(box, left) => { box.scrollLeft = left; }", left)
            expect(scrolled).to_have_attribute("data-more", re.compile(f"^ *{cue} *$"))


CHOSEN = """() => {
  const frame = document.querySelector(".wall-frame");
  const canvas = frame.querySelector("canvas:last-child");
  const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const last = data.findLastIndex((value, i) => i % 4 === 3 && value > 0);
  return [Math.floor(last / 4 / width) * canvas.clientHeight / canvas.height, frame.scrollTop, frame.clientHeight];
}"""
"""A script that returns the end of the chosen head's frame, and the visible range of the wall, in CSS pixels."""


def test_the_chosen_row_of_the_wall_is_seen_with_its_frame(phone: Page, open_view: Open) -> None:
    """Let the chosen head end at the wall's own end: its frame is wider."""
    open_view("attention", layer=3)
    wait_until(phone, lambda: phone.evaluate(CHOSEN)[0] > 0)
    end, _, _ = phone.evaluate(CHOSEN)
    phone.set_viewport_size({"width": WIDTH, "height": round((end - 2) / 0.7)})
    open_view("attention", layer=2)
    wait_until(phone, lambda: 0 < phone.evaluate(CHOSEN)[0] < end)  # a wall off the screen is painted later
    open_view("attention", layer=3)
    wait_until(phone, lambda: phone.evaluate(CHOSEN)[0] >= end)
    end, scrolled, height = phone.evaluate(CHOSEN)
    assert scrolled <= end <= scrolled + height + 2
