"""The amounts of How a word moves: sums by head and word equal the API's, and the parts sum to the logit."""

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.conftest import TEXT, Open, ask, settle, written
from tests.support.processes import Server

pytestmark = pytest.mark.usefixtures("kept_page")

HERE = {"layer": 1, "head": 3, "query": 8, "key": 6}


@pytest.fixture
def contributions(open_view: Open) -> Page:
    return open_view("contributions", **HERE)


def contributed(server: Server, **more: Any) -> dict[str, Any]:
    answer = ask(server, "/v1/contributions", {"input": TEXT, "query_positions": 8, **more})["data"][0]
    assert isinstance(answer, dict)
    return answer


def own_guess(server: Server) -> int:
    answer = ask(server, "/v1/next", {"input": TEXT, "num_tokens": 1})
    return int(answer["data"][0]["temperatures"][0]["tokens"][0]["token_id"])


def readout(page: Page, said: str) -> Locator:
    """Return the line below a picture that has just this text; the tooltip has the same text."""
    return page.locator(".readout", has_text=re.compile(f"^{re.escape(said)}$"))


def test_parts_heads_and_the_way_through_the_layers_are_the_apis(contributions: Page, server: Server) -> None:
    truth = contributed(server, target=own_guess(server))
    expect(contributions.get_by_role("heading", name="How", level=2)).to_contain_text(truth["target"]["token"].strip())
    expect(contributions.locator("#logit-sum")).to_have_text(written(truth["logits"][0]))
    steps = contributions.get_by_role("application", name="Parts of the logit and their sum")
    steps.focus()
    contributions.keyboard.press("ArrowLeft")
    expect(readout(contributions, f"logit: {written(truth['logits'][0])}")).to_be_visible()
    check_the_way(contributions, server)
    rows = truth["arrays"]["attributions"]["data"]
    contributions.get_by_role("application", name="Contribution of each layer and head").focus()
    contributions.keyboard.press("ArrowDown")
    expect(readout(contributions, f"layer 2, head 3: {written(sum(rows[2][3][0]))}")).to_be_visible()
    contributions.keyboard.press("Enter")
    expect(contributions.locator("#layer")).to_have_value("2")


def test_a_head_set_to_zero_adds_nothing_and_what_a_patch_puts_there_is_a_part(open_view: Open, server: Server) -> None:
    page = open_view("contributions", **HERE, contributions_measure="length", change="zero_head_l1_h3")
    page.get_by_role("application", name="Contribution of each layer and head").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    expect(readout(page, "layer 1, head 3: 0")).to_be_visible()
    given = {"change": "patch_stream_l1_p8", "change_source": "Once upon a time there was an old king"}
    changed = {
        "point": "blocks.1.hook_resid_post",
        "positions": 8,
        "op": "patch",
        "from": {"input": given["change_source"]},
    }
    page = open_view("contributions", **HERE, **given, change_show="difference", contributions_parts="largest")
    target = own_guess(server)
    before, after = (contributed(server, target=target, interventions=each) for each in ([], [changed]))
    expect(page.locator("#logit-sum")).to_have_text(written(after["logits"][0] - before["logits"][0]))
    assert after["component_names"].count("blocks.1.hook_resid_post.change") == 1
    steps = page.get_by_role("application", name="Parts of the logit and their sum")
    expect(steps).to_be_visible()


def test_lengths_by_word_of_one_head_are_the_apis(open_view: Open, server: Server) -> None:
    page = open_view("contributions", **HERE, contributions_measure="length", contributions_heads="one")
    norms = contributed(server)["arrays"]["norms"]["data"][1][3][0]
    words = page.locator("section.card", has=page.get_by_role("heading", name="Which word?"))
    expect(words.get_by_role("row", name="a (6)")).to_contain_text(written(norms[6]))
    words.get_by_role("row", name="a (2)").get_by_role("button").click()
    page.wait_for_url("**key=2**")


def test_a_text_of_two_tokens_is_refused_in_place_and_mended(contributions: Page, server: Server) -> None:
    contributions.get_by_label("Next word", exact=True).fill("girl")
    contributions.keyboard.press("Enter")
    expect(contributions.locator(".problem")).to_contain_text("'girl' is 2 tokens")
    contributions.get_by_role("button", name="Try it with a space before").click()
    settle(contributions)
    expect(contributions.locator(".problem")).to_have_count(0)
    truth = contributed(server, target=" girl")
    expect(contributions.locator("#logit-sum")).to_have_text(written(truth["logits"][0]))


def test_two_words_are_compared(open_view: Open, server: Server) -> None:
    page = open_view("contributions", **HERE, contributions_target=" king", contributions_versus=" queen")
    truth = contributed(server, target=" king", versus=" queen")
    expect(page.locator("#logit-sum")).to_have_text(written(truth["logits"][0]))
    expect(page.get_by_role("heading", name="How", level=2)).to_contain_text("rather than ·queen")


def test_the_strongest_way_leads_to_why(contributions: Page, server: Server) -> None:
    rows = contributed(server, target=own_guess(server))["arrays"]["attributions"]["data"]
    ways = [
        (abs(value), layer, head, key)
        for layer, heads in enumerate(rows)
        for head, queries in enumerate(heads)
        for key, value in enumerate(queries[0])
    ]
    _, layer, head, key = max(ways)
    card = contributions.locator("section.card", has=contributions.get_by_role("heading", name="Largest contributions"))
    card.get_by_role("button").first.click()
    expect(contributions.locator("#view-why h1")).to_be_visible()
    expect(contributions.locator("#layer")).to_have_value(str(layer))
    expect(contributions.locator("#head")).to_have_value(str(head))
    contributions.wait_for_url(f"**key={key}**")


def check_the_way(contributions: Page, server: Server) -> None:
    truth = ask(server, "/v1/trajectory", {"input": TEXT, "positions": 8})["data"][0]["arrays"]
    said = ask(server, "/v1/lens", {"input": TEXT, "positions": 8, "top_k": 1})["data"][0]["top_tokens"]
    contributions.get_by_role("application", name="Length of the vector").focus()
    contributions.keyboard.press("ArrowLeft")
    length, last_step = truth["norms"]["data"][0][-1], truth["steps"]["data"][0][-1]
    expect(contributions.locator(".readout", has_text="length of the vector")).to_contain_text(
        f"length of the vector {written(length)}, length of the step before {written(last_step)}"
    )
    words = contributions.locator(".said-path code")
    expect(words).to_have_text([state[0][0].replace(" ", "·") for state in said])
