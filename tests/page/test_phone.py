"""The page on a phone: what is pressed is large enough, the shared bar is one line, a wide table keeps what matters."""

import pytest
from playwright.sync_api import FloatRect, Locator, Page, expect

from tests.page.conftest import Open, show
from tests.page.test_accessibility import opened_views, serious
from tests.support.processes import Server

WIDTH, HEIGHT = 390, 844
SMALLEST = 24  # CSS pixels, WCAG 2.2, 2.5.8

# A link or a word in a sentence is as high as its line, and a checkbox is pressed by its label: 2.5.8 counts neither.
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


def box_of(element: Locator) -> FloatRect:
    found = element.bounding_box()
    assert found is not None
    return found


def test_every_control_is_large_enough_and_no_view_has_a_barrier_or_scrolls_sideways(
    open_page: Page, server: Server
) -> None:
    """Open all views, dark and on a phone."""
    phone = open_page
    phone.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    phone.emulate_media(color_scheme="dark")
    show(phone, server, "write", write_max_tokens=20)
    phone.locator("#write").click()
    phone.locator(".prose button").nth(1).click()
    expect(phone.locator("#go-on")).to_be_visible()
    phone.add_style_tag(content=NARROWED)
    for view in opened_views(phone):
        assert phone.evaluate("document.documentElement.scrollWidth") <= WIDTH, view
        assert not serious(phone), view
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
