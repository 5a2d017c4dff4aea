"""The weights view: the census and the geometry of the API, a matrix chosen, a head's circuits."""

import pytest
from playwright.sync_api import expect

from tests.page.conftest import Open, ask, settle, written
from tests.support.processes import Server

pytestmark = pytest.mark.usefixtures("kept_page")


def test_the_census_is_the_apis_and_its_largest_component_is_found_by_keyboard(open_view: Open, server: Server) -> None:
    page = open_view("weights")
    census = ask(server, "/v1/models/fables/parameters")
    card = page.locator("section.card").first
    expect(card).to_contain_text(f"{census['total']:,}".replace(",", "\u202f"))
    card.get_by_text("As a table").click()
    expect(card.locator("tbody tr")).to_have_count(len(census["rows"]))
    expect(card.locator("tbody tr", has_text="unembedding")).to_contain_text("tied to embed.weight")
    card.locator("canvas[role=application]").focus()
    page.keyboard.press("ArrowRight")
    expect(card.locator(".readout")).to_contain_text("18.2 %")


def test_a_matrix_is_chosen_and_its_cosines_are_the_apis(open_view: Open, server: Server) -> None:
    page = open_view("weights", layer=2)
    page.get_by_label("Matrix").select_option("blocks.{layer}.mlp.W_out")
    settle(page)
    answer = ask(server, "/v1/models/fables/geometry?matrix=blocks.2.mlp.W_out")["data"][0]
    card = page.locator("section.card").nth(1)
    expect(card).to_contain_text(written(answer["cosines"]["std"]))
    expect(card).to_contain_text(written(answer["baseline"]["welch_bound"]))
