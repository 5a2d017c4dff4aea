"""The output of `client.show` in a notebook, in Chromium and without a network: each view with the API's numbers."""

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import FrameLocator, Page, expect

from lightwell_client import Client, PageView
from tests.page.conftest import FORMER, TEXT, Tab, ask, take_precision, written
from tests.source_tree import ROOT
from tests.support.processes import Server

VIEWS = json.loads((ROOT / "server/web/page/requests.json").read_text(encoding="utf-8"))
NASTY = f"{TEXT} </script><b id=mark>\"' &amp;"


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def notebook(offline_tab: Tab, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page without a network that shows a cell's output; the test fails if a script fails."""
    with offline_tab.used(request.session) as page:
        yield page


def shown(notebook: Page, view: PageView) -> FrameLocator:
    """Show a view as a notebook does; return its frame when it is drawn."""
    notebook.set_content(view._repr_html_())
    frame = notebook.frame_locator("iframe")
    frame.locator(f"#view-{FORMER.get(view.view, view.view)} h1").wait_for()
    expect(frame.locator("[aria-busy=true], .progress.active, .boot")).to_have_count(0)
    return frame


@pytest.mark.parametrize("view", VIEWS)
def test_a_notebook_shows_a_view_with_all_that_it_asks(notebook: Page, client: Client, view: str) -> None:
    """Check the view's entry in server/web/page/requests.json: the view reports a request missing from it."""
    frame = shown(notebook, client.show(view, NASTY, layer=2, head=5, query=7, key=3))
    expect(frame.locator(".problem")).to_have_count(0)
    expect(frame.locator("#mark")).to_have_count(0)
    expect(frame.locator("main canvas, main .bars").first).to_be_visible()


def test_the_numbers_are_the_apis_for_each_head_that_was_asked_for(
    notebook: Page, client: Client, server: Server
) -> None:
    take_precision(server)
    frame = shown(notebook, client.show("attention", TEXT, layer=1, head=[3, 6], query=7, key=6))
    for head in (3, 6):
        body = {"input": TEXT, "layers": 1, "heads": head, "query_positions": 7}
        weight = ask(server, "/v1/attention", body)["data"][0]["attention"][0][0][0][6]
        frame.locator("#head").select_option(str(head))
        expect(frame.locator(".readout", has_text=written(weight)).first).to_be_visible()
    frame.locator("#head").select_option("0")
    expect(frame.locator(".problem:visible")).to_contain_text(
        "This file contains only the views that were seen before it was saved"
    )
