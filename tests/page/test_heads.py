"""The heads view: the scores on the page are the API's, heads are found with the keyboard, and opened."""

import re
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.conftest import TEXT, Open, ask, saved, settle, written
from tests.support.processes import Server

pytestmark = pytest.mark.usefixtures("kept_page")


def scores(server: Server, text: str | None = None) -> tuple[list[str], list[list[list[float]]]]:
    """Return names of the measures, and their values [layer][head][measure] in float32, from the API's answer."""
    entry = ask(server, "/v1/heads", {} if text is None else {"input": text})["data"][0]
    return entry["measures"], np.array(entry["arrays"]["scores"]["data"], np.float32).tolist()


def scatter(page: Page) -> Locator:
    return page.get_by_role("application", name=re.compile("Heads as points"))


def test_random_tokens_written_twice_tell_the_induction_heads_and_the_address_keeps_the_axes(
    open_view: Open, server: Server
) -> None:
    page = open_view("heads", layer=3, head=2)
    measures, values = scores(server)
    said = page.locator(".heads-found .readout").inner_text()
    shown = re.search(r"induction (\S+),", said)
    assert shown, said
    assert float(shown[1]) == pytest.approx(values[3][2][measures.index("induction")], rel=0.01)
    expect(page.locator(".heads-found .hint").first).to_contain_text("4 sequences of 50 random tokens")
    page.locator("#heads_x").select_option("self")
    page.locator("#heads_y").select_option("first_token")
    page.wait_for_url(re.compile("heads_x=self&heads_y=first_token"))
    page.reload()
    settle(page)
    expect(page.get_by_role("heading", name="First token against self")).to_be_visible()


def test_scores_and_the_strongest_heads_are_the_apis_and_open_in_attention(open_view: Open, server: Server) -> None:
    page = open_view("heads", layer=3, head=2, heads_on="text")
    measures, values = scores(server, TEXT)
    for name, value in zip(measures, values[3][2], strict=True):
        expect(page.locator(".heads-found .readout")).to_contain_text(f"{name.replace('_', ' ')} {written(value)}")
    strongest: list[dict[str, Any]] = ask(server, "/v1/heads", {"input": TEXT})["data"][0]["strongest"]["first_token"]
    card = page.locator("section.card", has=page.get_by_role("heading", name="First token"))
    rows = card.locator("tbody tr")
    expect(rows).to_have_count(len(strongest))
    for i, each in enumerate(strongest):
        expect(rows.nth(i)).to_contain_text(f"layer {each['layer']} head {each['head']}")
        expect(rows.nth(i)).to_contain_text(written(float(np.float32(each["score"]))))
    rows.first.get_by_role("button").click()
    page.locator("#view-attention").wait_for()
    expect(page.locator("#layer")).to_have_value(str(strongest[0]["layer"]))
    expect(page.locator("#head")).to_have_value(str(strongest[0]["head"]))


def test_the_keyboard_walks_heads_by_their_scores_and_opens_one(open_view: Open, server: Server) -> None:
    page = open_view("heads", layer=2, head=1, heads_on="text", heads_x="entropy", heads_y="mean_distance")
    measures, values = scores(server, TEXT)
    entropy, distance = measures.index("entropy"), measures.index("mean_distance")
    heads = [(layer, head) for layer in range(len(values)) for head in range(len(values[0]))]

    def following(start: tuple[int, int], measure: int, by: int) -> tuple[int, int]:
        order = sorted(heads, key=lambda each: values[each[0]][each[1]][measure])
        return order[order.index(start) + by]

    right = following((2, 1), entropy, -1)
    scatter(page).press("ArrowLeft")
    expect(page.locator(".heads-found .readout")).to_contain_text(f"Layer {right[0]}, head {right[1]}:")
    down = following(right, distance, -1)
    scatter(page).press("ArrowDown")
    expect(page.locator(".heads-found .readout")).to_contain_text(f"Layer {down[0]}, head {down[1]}:")
    scatter(page).press("Enter")
    page.wait_for_url(re.compile(rf"view=attention\b.*layer={down[0]}\b.*head={down[1]}\b"))


def test_a_click_on_a_point_opens_its_head(open_view: Open, server: Server) -> None:
    page = open_view("heads", layer=5, head=7, heads_on="text", heads_x="entropy", heads_y="mean_distance")
    svg = saved(page, "picture (SVG)").read_text(encoding="utf-8")
    disc = re.search(r'<path d="M([-\d.]+) ([-\d.]+)a', svg)
    assert disc, "no head is drawn as a disc"
    scatter(page).hover(position={"x": float(disc[1]) - 4, "y": float(disc[2])})  # a path begins at its right end
    said = page.locator(".heads-found .readout")
    expect(said).not_to_contain_text("Layer 5, head 7:")
    named = re.match(r"Layer (\d+), head (\d+): ", said.inner_text())
    assert named, said.inner_text()
    layer, head = int(named[1]), int(named[2])
    measures, values = scores(server, TEXT)
    expect(said).to_contain_text(f"entropy {written(values[layer][head][measures.index('entropy')])}")
    page.mouse.down()
    page.mouse.up()
    page.wait_for_url(re.compile(rf"view=attention\b.*layer={layer}\b.*head={head}\b"))


def test_a_text_that_repeats_nothing_has_no_induction_and_says_so(open_view: Open) -> None:
    page = open_view("heads", text="The old king", heads_on="text")
    expect(page.locator(".heads-found .lack").first).to_contain_text("no token of it comes twice")
    page.locator("#heads_y").select_option("entropy")
    expect(scatter(page)).to_be_visible()
