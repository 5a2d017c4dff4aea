"""The view Why: its steps have the API's numbers and add up; another key is chosen at its weight."""

from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.conftest import TEXT, Open, ask, settle, written
from tests.support.processes import Server

pytestmark = pytest.mark.usefixtures("kept_page")

HERE = {"layer": 1, "head": 3, "query": 8, "key": 6}


@pytest.fixture
def why(open_view: Open) -> Page:
    return open_view("why", **HERE)


def step(page: Page, title: str) -> Locator:
    return page.locator(".why-step", has=page.get_by_role("heading", name=title))


def explained(server: Server) -> dict[str, Any]:
    body = {"input": TEXT, "layer": 1, "head": 3, "query_position": 8}
    arrays = ask(server, "/v1/explain", body)["data"][0]["arrays"]
    return {name: array["data"] for name, array in arrays.items()}


def test_every_step_has_the_apis_number_and_the_products_are_walked_largest_first(why: Page, server: Server) -> None:
    truth = explained(server)
    expect(why.locator("#why-sum")).to_have_text(written(truth["dots"][6]))
    expect(why.locator("#why-dot")).to_have_text(written(truth["dots"][6]))
    expect(why.locator("#why-score")).to_have_text(written(truth["scores"][6]))
    expect(why.locator("#why-weight")).to_have_text(written(truth["weights"][6]))
    length = sum(value**2 for value in truth["output"]) ** 0.5
    expect(why.locator("#why-output")).to_have_text(written(length))
    products = truth["products"][6]
    largest = max(range(len(products)), key=products.__getitem__)
    step(why, "Multiply number by number").locator("canvas[role=application]").focus()
    why.keyboard.press("ArrowRight")
    readout = step(why, "Multiply number by number").locator(".readout")
    expect(readout).to_contain_text(f"number {largest}:")
    expect(readout).to_contain_text(f"= {written(products[largest])}")
    why.get_by_role("button", name="unchanged").click()
    expect(readout).to_contain_text("number 0:")
    why.wait_for_url("**why_order=natural**")


def test_a_key_is_chosen_in_the_softmax_table(why: Page, server: Server) -> None:
    why.get_by_role("button", name="key 4, there").click()
    why.wait_for_url("**key=4**")
    expect(why.locator("#why-dot")).to_have_text(written(explained(server)["dots"][4]))
    expect(why.get_by_role("heading", name="Why does")).to_contain_text("there")
    why.get_by_role("button", name="key 8, girl").click()  # the query itself
    expect(why.locator("#why-weight")).to_have_text(written(explained(server)["weights"][8]))
    expect(why.locator(".problem")).to_have_count(0)


def test_a_key_behind_the_query_is_said_to_be_masked(open_view: Open) -> None:
    page = open_view("why", layer=1, head=3, query=4, key=6)
    expect(page.locator("#why-score")).to_contain_text("masked")
    expect(step(page, "From the dot to the score")).to_contain_text("key 6 comes after query 4")
    expect(page.get_by_role("heading", name="Why does")).to_contain_text("no weight")


def test_the_weighted_values_choose_a_key_by_keyboard(why: Page, server: Server) -> None:
    weights = explained(server)["weights"]
    second = sorted(range(len(weights)), key=lambda key: -weights[key])[1]
    step(why, "Sum over all keys").locator("canvas[role=application]").focus()
    for key in ("ArrowDown", "Enter"):
        why.keyboard.press(key)
    expect(why.locator("#why-weight")).to_have_text(written(weights[second]))
    settle(why)


@pytest.mark.parametrize("view", ["why", "contributions"])
def test_a_position_past_the_end_is_the_last_word(open_view: Open, view: str) -> None:
    """Open a link of another model, which had more tokens."""
    page = open_view(view, **{**HERE, "query": 400, "key": 300})
    expect(page.locator("h2 .word.query")).to_have_text("girl8")
    expect(page.locator(".problem")).to_have_count(0)


@pytest.mark.parametrize("view", ["attention", "journey"])
def test_views_of_the_whole_text_open_with_what_its_last_token_looks_at_except_the_first(
    open_view: Open, server: Server, view: str
) -> None:
    """Choose a head with the largest weight on the first token: the first and the last token do not count."""
    weights = np.array(ask(server, "/v1/attention", {"input": TEXT})["data"][0]["attention"])[..., -1, :]
    others = weights[..., 1:-1]
    layer, head = np.argwhere(weights[..., 0] > others.max(-1))[0]
    page = open_view(view, layer=layer, head=head)
    page.wait_for_url(f"**key={1 + others[layer, head].argmax()}")
    assert "query" not in page.url  # the last of any text


@pytest.mark.parametrize("first", ["why", "motion"])
def test_it_opens_with_the_strongest_pair_that_tells_something(open_view: Open, server: Server, first: str) -> None:
    """The pair's key is not the first token, where heads put unused weight, and not the query itself."""
    page = open_view(first, layer=2, head=5)
    body = {"input": TEXT, "layers": 2, "heads": 5}
    weights = np.array(ask(server, "/v1/attention", body)["data"][0]["attention"])[0, 0]
    weights[:, 0] = 0
    np.fill_diagonal(weights, 0)
    query, key = np.unravel_index(weights.argmax(), weights.shape)
    page.wait_for_url(f"**query={query}&key={key}**")
    if first == "motion":
        return
    tokens = ask(server, "/tokenize", {"prompt": TEXT, "return_token_strs": True})["token_strs"]
    expect(page.locator("h2 .word.query")).to_have_text(f"{tokens[query].strip()}{query}")
    expect(page.locator("h2 .word.key")).to_have_text(f"{tokens[key].strip()}{key}")
    expect(page.locator("#why-weight")).to_have_text(written(weights[query, key]))
    page.locator("#head").select_option("4")  # a pair in the address stays
    settle(page)
    expect(page.locator("h2 .word.query")).to_have_text(f"{tokens[query].strip()}{query}")
    page.get_by_label("Text", exact=True).fill("The sea was calm")
    expect(page.get_by_role("heading", name="Why does")).not_to_contain_text(tokens[key].strip())
    expect(page.locator("h2 .word.key")).not_to_have_text("The0")


@pytest.mark.parametrize("view", ["why", "weights"])
def test_subscripts_can_be_read(open_view: Open, view: str) -> None:
    page = open_view(view, **HERE)
    expect(page.locator("sub").first).to_be_attached()
    sizes = page.locator("sub").evaluate_all("all => all.map((one) => parseFloat(getComputedStyle(one).fontSize))")
    assert min(sizes) >= 11
