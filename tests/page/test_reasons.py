"""The reasons of an answer, in How a word moves: parts, sums and measurements are the API's, for the next word
and for the labels and scores of models without generation.
"""

from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests import tiny
from tests.page.conftest import TEXT, Open, ask, settle, show, written
from tests.page.test_accessibility import serious
from tests.support.processes import Server
from tests.support.shared import once, shared_server

PAIR = "Which girl lived there?"
EIFFEL = "They saw the Eiffel Tower in"


def card_of(page: Page) -> Locator:
    return page.locator("section.reasons")


def told(server: Server, by: str, verify: int = 0) -> dict[str, Any]:
    """Return the reasons of the next word, with the request that the page sends."""
    body = {"input": TEXT, "num_tokens": 6, "explain": {"by": by, "verify": verify}}
    reasons = ask(server, "/v1/next", body)["data"][0]["reasons"]
    assert isinstance(reasons, dict)
    return reasons


def read(page: Page, name: str, key: str) -> Locator:
    """Return the line below a picture, once a key has chosen one of its places."""
    page.get_by_role("application", name=name).press(key)
    return card_of(page).locator(".readout").first


def test_the_next_words_reasons_are_the_apis_by_word_head_and_layer(open_view: Open, server: Server) -> None:
    page = open_view("contributions", contributions_verify=0)
    card, words = card_of(page), told(server, "word")
    expect(card).to_contain_text(words["target"]["token"].strip())
    expect(page.locator("#reasons-value")).to_have_text(written(words["value"]))
    expect(page.locator("#reasons-sum")).to_have_text(written(words["sum"]))
    expect(read(page, "Contribution of each word, and the sum", "ArrowLeft")).to_contain_text(written(words["sum"]))
    group = card.get_by_role("group", name="Words by their contributions")
    for i, part in enumerate(words["parts"]):
        name = f"token {i}, {part['token'].strip()}, {written(part['value'])}"
        expect(group.get_by_role("button").nth(i)).to_have_accessible_name(name)
    card.get_by_role("button", name="head", exact=True).click()
    settle(page)
    (head,) = (part for part in told(server, "head")["parts"] if (part["layer"], part["head"]) == (2, 3))
    expect(read(page, "Contribution of each head to the answer", "ArrowDown")).to_have_text(
        f"layer 2, head 3: {written(head['value'])}"
    )
    card.get_by_role("button", name="layer", exact=True).click()
    settle(page)
    layer = told(server, "layer")["parts"][0]
    expect(read(page, "Contribution of each layer, and the sum", "ArrowRight")).to_contain_text(
        f"attn 0: {written(layer['attention'])}"
    )
    page.wait_for_url("**contributions_by=layer**")


def test_what_the_parts_predict_stands_beside_what_was_measured(open_view: Open, server: Server) -> None:
    """The bars are the measured changes, the largest first; the estimates are next to them."""
    page = open_view("contributions")
    card, reasons = card_of(page), told(server, "word", verify=8)
    rows = [row for row in reasons["verify"] if len(row["words"]) == 1]
    rows.sort(key=lambda row: -abs(reasons["value"] - row["measured"]))
    shown = card.get_by_role("table").locator("tbody tr")
    names = [f"{row['words'][0]['token'].strip()} ({row['words'][0]['position']})" for row in rows]
    expect(shown.locator("th")).to_have_text(names)
    expect(shown.locator(".number")).to_have_text([written(reasons["value"] - row["measured"]) for row in rows])
    expect(shown.locator(".note")).to_have_text([written(reasons["value"] - row["predicted"]) for row in rows])
    (both,) = [row for row in reasons["verify"] if len(row["words"]) > 1]
    expect(card).to_contain_text(f"Without all {len(both['words'])} words at once it is {written(both['measured'])}")


@pytest.mark.parametrize("model", ["fables", pytest.param("smollm2", marks=pytest.mark.nightly)])
def test_the_largest_bar_is_the_word_whose_removal_changes_the_logit_most(
    page: Page, server: Server, model: str
) -> None:
    at = server if model == "fables" else shared_server(model)
    show(page, at, "contributions", text=EIFFEL)
    body = {"input": EIFFEL, "num_tokens": 1, "explain": {"verify": 16}}
    reasons = ask(at, "/v1/next", body)["data"][0]["reasons"]
    (most,) = max(reasons["verify"][:-1], key=lambda row: abs(row["measured"] - reasons["value"]))["words"]
    name = f"{most['token'].strip()} ({most['position']})"
    expect(card_of(page).locator(".bars tbody tr").first.locator("th")).to_have_text(name)
    assert model == "fables" or name == "iffel (4)"


@pytest.fixture(scope="module", params=[pytest.param(3, marks=pytest.mark.nightly), 1])
def judge(request: pytest.FixtureRequest) -> tuple[int, Server]:
    """A model without generation: with a head of three labels, and with one of one label, which scores pairs."""
    num_labels = request.param
    folder = once(("judge", num_labels), lambda folder: tiny.make_classifier("bert", folder, num_labels=num_labels))
    return num_labels, shared_server(str(folder), "--dtype", "float32", "--threads", "1")


def test_a_model_that_says_no_words_tells_why_its_label_or_score_is_what_it_is(
    judge: tuple[int, Server], open_page: Page
) -> None:
    """Check the view on such a model, at the width of a small phone, in dark and light; axe finds no problem."""
    num_labels, server = judge
    page = open_page
    page.set_viewport_size({"width": 320, "height": 700})
    page.emulate_media(color_scheme="dark")
    show(page, server, "contributions", contributions_verify=3)
    explain = {"by": "word", "verify": 3}
    found = ask(server, "/v1/classify", {"input": TEXT, "explain": explain})["data"][0]
    card = card_of(page)
    expect(card.get_by_role("heading")).to_have_text("Why this label?")
    expect(card).to_contain_text(found["label"])
    expect(page.locator("#reasons-value")).to_have_text(written(found["reasons"]["value"]))
    expect(card.locator(".token")).to_have_count(len(found["reasons"]["parts"]))
    pair = card.get_by_label("Second text of a pair")
    expect(pair).to_have_count(1 if num_labels == 1 else 0)
    if num_labels == 1:
        pair.fill(PAIR)
        pair.press("Enter")
        expect(card.get_by_role("heading")).to_have_text("Why this score?")
        settle(page)
        body = {"text_1": TEXT, "text_2": PAIR, "explain": explain}
        reasons = ask(server, "/v1/score", body)["data"][0]["reasons"]
        expect(page.locator("#reasons-value")).to_have_text(written(reasons["value"]))
        expect(card.locator(".token")).to_have_count(len(reasons["parts"]))
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    assert not serious(page)
    page.emulate_media(color_scheme="light")
    assert not serious(page, runOnly=["color-contrast"])
