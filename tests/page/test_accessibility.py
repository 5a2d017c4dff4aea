"""axe-core finds no serious barrier, all that can be used has a name, and pictures are told in words."""

from itertools import pairwise
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page, expect

from benchmarks.processes import Server
from tests.page.conftest import TEXT, Open, ask, settle, written
from tests.page.test_page import VIEWS

NAMED = {
    "application", "button", "checkbox", "combobox", "group", "image", "link", "radio", "region", "slider",
    "spinbutton", "table", "textbox",
}  # fmt: skip
"""Roles of the accessibility tree that say nothing without a name."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_serious(browser: Browser, server: Server, view: str, scheme: str) -> None:
    context = browser.new_context(
        bypass_csp=True,  # axe is a script of the test's
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": 390, "height": 800} if scheme == "dark" else {"width": 1280, "height": 900},
    )
    page = context.new_page()
    page.goto(f"{server.url}/#view={view}&text={TEXT}")
    expect(page.locator(f"#view-{view} h1")).to_be_visible()
    settle(page)
    found = Axe().run(page)
    context.close()
    serious = [
        f"{violation['impact']}: {violation['help']}: {[node['html'][:120] for node in violation['nodes'][:3]]}"
        for violation in found.response["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
    assert not serious


def spoken(page: Page) -> list[dict[str, str]]:
    """Role, name and description of all that a screen reader finds on the page."""
    session = page.context.new_cdp_session(page)
    nodes: list[dict[str, Any]] = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()

    def value(node: dict[str, Any], field: str) -> str:
        return str(node.get(field, {}).get("value", "")).strip()

    fields = ("role", "name", "description")
    return [{field: value(node, field) for field in fields} for node in nodes if not node["ignored"]]


@pytest.mark.parametrize("view", VIEWS)
def test_everything_has_a_name_and_headings_are_in_order(open_view: Open, view: str) -> None:
    page = open_view(view, write_max_tokens=3)
    if view == "write":
        page.locator("#write").click()
        page.locator(".prose button").nth(1).click()
    settle(page)
    assert not [node for node in spoken(page) if node["role"] in NAMED and not node["name"]]
    headings = page.locator("h1, h2, h3, h4").evaluate_all("all => all.map(one => Number(one.tagName[1]))")
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(headings)), headings


def pictures(page: Page) -> dict[str, str]:
    """What is said of each picture that can be walked: its description, by its name."""
    return {node["name"]: node["description"] for node in spoken(page) if node["role"] == "application"}


def test_a_heads_picture_tells_its_largest_weights(open_view: Open, server: Server) -> None:
    page = open_view("attention", layer=4, head=7)
    weights = ask(server, "/v1/attention", {"input": TEXT, "layers": 4, "heads": 7})["data"][0]["attention"][0][0]
    largest = max(max(row) for row in weights)
    (said,) = [text for name, text in pictures(page).items() if name.startswith("Layer 4, head 7")]
    assert f": {written(largest)}" in said
    assert said.count(" → key ") == 4


@pytest.mark.parametrize(
    ("view", "name", "words"),
    [
        ("why", "q, k, their products", "ends at"),
        ("contributions", "Parts of the logit", "Largest parts: "),
        ("contributions", "Length of the vector", "highest"),
        ("lens", "The word that each layer would say", "After girl: embed: "),
        ("embeddings", "Cosines of", "Largest: "),
    ],
)
def test_pictures_are_told_in_numbers(open_view: Open, view: str, name: str, words: str) -> None:
    page = open_view(view, layer=1, head=3)
    (said,) = [text for picture, text in pictures(page).items() if picture.startswith(name)]
    assert words in said
    assert any(sign.isdigit() for sign in said)


def test_waiting_and_refusals_are_announced(open_view: Open) -> None:
    page = open_view("lens")
    page.route("**/v1/lens", lambda route: None)  # never answered
    page.get_by_label("Text", exact=True).fill("The old king")
    expect(page.get_by_role("status").get_by_text("Asking the server…").first).to_be_visible()
    page.unroute("**/v1/lens")
    page.get_by_label("Text", exact=True).fill("word " * 600)
    expect(page.get_by_role("alert")).to_contain_text("Refused (400)")
