"""The server view: what /metrics counts appears while it happens."""

from playwright.sync_api import expect

from benchmarks.processes import Server
from tests.page.conftest import Open, ask


def test_work_is_seen_while_it_is_done(open_view: Open, server: Server) -> None:
    page = open_view("server")
    expect(page.locator(".gauges li")).to_have_count(10)
    ask(server, "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": True})
    out = page.locator(".gauges li", has_text="Tokens out").locator("strong")
    expect(out).not_to_have_text("0/s")
    expect(page.locator("tr", has_text="POST /v1/completions").first).to_contain_text("200")
    expect(page.locator("tr", has_text="Time to first token")).to_contain_text("ms")
