"""Text fields of one line: typed text stays until it is accepted, even if the page is drawn again meanwhile."""

import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import Open, settle

pytestmark = pytest.mark.usefixtures("kept_page")

FIELDS = [
    ("contributions", "Next word", "girl", "contributions_target"),
    ("lens", "Follow", "fox", "lens_target"),
    ("chat", "Most tokens", "7", "write_max_tokens"),
]


def draw_again(page: Page) -> None:
    """Choose another word and temperature from outside of the field, and wait for all answers to be drawn."""
    page.evaluate("location.hash = location.hash.replace('query=8', 'query=7') + '&write_temperature=0.5'")
    page.wait_for_url("**write_temperature=0.5**")
    settle(page)


@pytest.mark.parametrize(("view", "label", "typed", "name"), FIELDS)
def test_what_is_typed_stays_while_answers_are_drawn(
    view: str, label: str, typed: str, name: str, open_view: Open
) -> None:
    """Check that an answer that draws the field again before Enter does not discard the typed text."""
    page = open_view(view, query=8, chat_mode="text")
    if view == "chat":
        page.get_by_role("button", name="Settings", exact=True).click()
    field = page.get_by_label(label, exact=True)
    before = field.input_value()
    field.click()
    field.press("ControlOrMeta+a")
    page.keyboard.type(typed)
    draw_again(page)
    expect(field).to_have_value(typed)
    expect(field).to_be_focused()
    assert f"{name}=" not in page.url, "nothing is taken over before Enter"
    page.keyboard.press("Escape")
    expect(field).to_have_value(before)
    field.press("ControlOrMeta+a")
    page.keyboard.type(typed)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{name}={typed}**")
    expect(field).to_have_value(typed)


def test_what_is_chosen_elsewhere_replaces_what_is_typed(open_view: Open) -> None:
    page = open_view("contributions", query=8)
    field = page.get_by_label("Next word", exact=True)
    field.click()
    page.keyboard.type("gi")
    page.evaluate("location.hash += '&contributions_target=+king'")
    expect(field).to_have_value(" king")
