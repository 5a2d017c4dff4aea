"""The frame of the page: one selection for all views, in the URL; keys; the server's loss and return; security."""

from playwright.sync_api import expect

from benchmarks.processes import Server
from tests.page.conftest import Open, ask, written


def test_the_pages_numbers_are_the_apis(open_view: Open, server: Server) -> None:
    page = open_view("attention", layer=1, head=3, query=7, key=6)
    body = {"input": "Once upon a time there was a little girl", "layers": 1, "heads": 3, "query_positions": 7}
    weight = ask(server, "/v1/attention", body)["data"][0]["attention"][0][0][0][6]
    expect(page.locator(".readout").first).to_contain_text(written(weight))
