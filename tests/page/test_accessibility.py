"""axe-core finds no serious barrier, all that can be used has a name, and pictures are described in words."""

import re
from collections.abc import Callable, Container, Iterator
from itertools import pairwise
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.page.conftest import TEXT, VIEWS, Open, ask, settle, show, written
from tests.support.contrast import contrast
from tests.support.processes import Server

NAMED = {
    "application", "button", "checkbox", "combobox", "group", "image", "link", "radio", "region", "slider",
    "spinbutton", "table", "textbox",
}  # fmt: skip
"""Roles of the accessibility tree that need a name."""


def opened_views(page: Page) -> Iterator[str]:
    """Open one view after another from the list; yield the name of each."""
    for number, view in enumerate(VIEWS):
        page.get_by_role("navigation", name="Views").get_by_role("button").nth(number).click()
        expect(page.locator(f"#view-{view} h1")).to_be_visible()
        settle(page)
        yield view


def nameless(page: Page) -> list[dict[str, str]]:
    """Return the nodes without a name in the accessibility tree that need one."""
    return [node for node in spoken(page) if node["role"] in NAMED and not node["name"]]


def are_headings_in_order(page: Page) -> bool:
    """Return whether there is one h1, first, and no level is left out."""
    levels = page.locator("h1, h2, h3, h4").evaluate_all("all => all.map((one) => Number(one.tagName[1]))")
    return levels[0] == 1 and levels.count(1) == 1 and all(after <= before + 1 for before, after in pairwise(levels))


IMPACTS = ("minor", "moderate", "serious", "critical")


def violations(page: Page, context: Any, **options: Any) -> list[dict[str, Any]]:
    """Return axe's findings in a part of the page, with axe's options. A page with a policy refuses its script."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(Axe().axe_script)
    # a description of all that is right takes most of the time
    run = "([part, options]) => axe.run(part, options).then((found) => found.violations)"
    found: list[dict[str, Any]] = page.evaluate(run, [context, {"resultTypes": ["violations"], **options}])
    return found


def serious(page: Page, *, impacts: Container[str] = IMPACTS, **options: Any) -> list[str]:
    """Return the problems of these impacts that axe finds on the page; options: axe's own. An answer is pale while its
    successor loads, and then not checked.
    """
    return [
        f"{violation['impact']}: {violation['help']}: {[node['html'][:120] for node in violation['nodes'][:3]]}"
        for violation in violations(page, {"exclude": [[".answer.stale"]]}, **options)
        if violation["impact"] in impacts
    ]


def open_menu(page: Page) -> None:
    page.get_by_role("button", name="Save…").first.click()
    expect(page.get_by_role("button", name="picture (PNG)").first).to_be_visible()


def open_token_card(page: Page) -> None:
    page.locator("#write").click()
    page.locator(".prose button").nth(1).click()
    expect(page.get_by_role("complementary", name="The chosen token")).to_be_visible()
    settle(page)


def be_refused(page: Page) -> None:
    error = {"message": "No.", "type": "invalid_request_error", "param": "input", "code": "context_length_exceeded"}
    page.route("**/v1/attention", lambda route: route.fulfill(status=400, json={"error": error}))
    page.get_by_label("Text", exact=True).fill("The old king")
    expect(page.locator(".problem").first).to_be_visible()
    settle(page)


def lose_the_key(page: Page) -> None:
    error = {"message": "No key.", "type": "authentication_error", "param": None, "code": "invalid_api_key"}
    page.route("**/v1/attention", lambda route: route.fulfill(status=401, json={"error": error}))
    page.get_by_label("Text", exact=True).fill("The old king")
    expect(page.get_by_label("API key")).to_be_visible()
    settle(page)  # an answer is pale while its successor loads


def open_term(page: Page) -> None:
    page.get_by_role("button", name="residual stream", exact=True).click()
    expect(page.get_by_role("tooltip")).to_be_visible()


@pytest.mark.parametrize(
    ("view", "act"),
    [
        ("lens", open_term),
        ("attention", open_menu),
        ("chat", open_token_card),
        ("attention", be_refused),
        ("attention", lose_the_key),
    ],
)
def test_axe_finds_nothing_serious_in_what_opens(
    open_page: Page, server: Server, view: str, act: Callable[[Page], None]
) -> None:
    """Check both schemes, the light one on a phone, and only the contrast in the dark one."""
    page = show(open_page, server, view, chat_mode="text", write_max_tokens=4)
    act(page)
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    found = serious(page, runOnly=["color-contrast"])
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 390, "height": 800})
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    found += serious(page)
    assert not found


@pytest.mark.nightly  # all views, four times
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_any_view(
    open_page: Page, server: Server, scheme: Literal["light", "dark"], width: int
) -> None:
    open_page.set_viewport_size({"width": width, "height": 900})
    open_page.emulate_media(color_scheme=scheme)
    show(open_page, server, "attention")
    found = {view: serious(open_page) for view in opened_views(open_page)}
    assert not any(found.values()), found


INKS = ("ink", "muted", "accent", "query", "key", "value", "positive", "negative", "good", "bad")
GROUNDS = ("paper", "raised", "sunk")
PAIRS = (
    *((ink, ground) for ink in INKS for ground in GROUNDS),
    *((ink, "bad-ground") for ink in ("ink", "muted", "accent")),  # a problem, with its advice and its buttons
    ("accent-ink", "accent"),
)


def test_every_ink_can_be_read_on_every_ground(open_view: Open) -> None:
    """Check for a ratio of at least 4.5: WCAG 2.2, 1.4.3, level AA."""
    page = open_view("attention")
    names = sorted({name for pair in PAIRS for name in pair})
    read = (
        "names => names.map((name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim())"
    )
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in schemes:
        page.emulate_media(color_scheme=scheme)
        expect(page.locator("html")).to_have_attribute("data-theme", scheme)
        colours = dict(zip(names, page.evaluate(read, names), strict=True))
        for ink, ground in PAIRS:
            assert contrast(colours[ink], colours[ground]) >= 4.5, f"{scheme}: {ink} on {ground}"


def test_query_key_and_sign_are_not_told_by_colour_alone(open_view: Open) -> None:
    page = open_view("contributions", query=7, key=6)
    expect(page.locator(".token.is-query").first).to_have_css("border-top-style", "solid")
    expect(page.locator(".token.is-key").first).to_have_css("border-top-style", "dashed")
    expect(page.locator(".bars .positive").first).to_have_css("background-image", "none")
    expect(page.locator(".bars .negative").first).to_have_css("background-image", re.compile("gradient"))


def spoken(page: Page) -> list[dict[str, str]]:
    """Return role, name and description of all that a screen reader finds on the page."""
    session = page.context.new_cdp_session(page)
    nodes: list[dict[str, Any]] = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()

    def value(node: dict[str, Any], field: str) -> str:
        return str(node.get(field, {}).get("value", "")).strip()

    fields = ("role", "name", "description")
    return [{field: value(node, field) for field in fields} for node in nodes if not node["ignored"]]


def pictures(page: Page) -> dict[str, str]:
    """Return the description of each picture that can be walked through, by its name."""
    return {node["name"]: node["description"] for node in spoken(page) if node["role"] == "application"}


def test_a_heads_picture_tells_its_largest_weights(open_view: Open, server: Server) -> None:
    page = open_view("attention", layer=4, head=7)
    weights = ask(server, "/v1/attention", {"input": TEXT, "layers": 4, "heads": 7})["data"][0]["attention"][0][0]
    largest = max(max(row) for row in weights)
    (said,) = [text for name, text in pictures(page).items() if name.startswith("Layer 4, head 7")]
    assert f": {written(largest)}" in said
    assert said.count(" → key ") == 4


def test_pictures_are_told_in_numbers(open_view: Open) -> None:
    told = {
        "why": [("q, k, their products", "ends at")],
        "contributions": [("Parts of the logit", "Largest parts: "), ("Length of the vector", "highest")],
        "motion": [("Arrows that are added", "the longest are")],
        "lens": [("The word that each layer would say", "After “girl”: embed: ")],
        "embeddings": [("Cosines of", "Largest: ")],
    }
    for view, named in told.items():
        found = pictures(open_view(view, layer=1, head=3))
        for name, words in named:
            (said,) = [text for picture, text in found.items() if picture.startswith(name)]
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
