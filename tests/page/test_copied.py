"""What "Copy as…" gives runs as it is, and its menus leave the keyboard where it was."""

import os
import subprocess
import sys

import pytest
from playwright.sync_api import Browser, Page, expect

from benchmarks.processes import Server, serve
from tests.page.conftest import Open, settle


def copied(page: Page, place: int, what: str) -> str:
    page.get_by_role("button", name="Copy as…").nth(place).click()
    page.get_by_role("button", name=what, exact=True).click()
    expect(page.get_by_text("Copied")).to_have_count(1)
    return str(page.evaluate("navigator.clipboard.readText()"))


def output_of(*command: str, **environment: str) -> str:
    everything = {**os.environ, **environment}
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, env=everything, check=False)
    assert run.returncode == 0, f"{command[-1]}\n{run.stderr}"
    return run.stdout


VIEWS = (
    "write", "attention", "why", "contributions", "lens", "next", "heads", "flow", "stacks", "embeddings", "weights",
)  # fmt: skip


def run_both(page: Page, place: int) -> None:
    """What the menu gives runs as curl and as Python, and the keyboard is where it was."""
    answer = output_of("bash", "-c", copied(page, place, "curl"))
    assert answer.startswith("{")
    assert '"error"' not in answer[:20]
    assert output_of(sys.executable, "-c", copied(page, place, "Python"))
    expect(page.get_by_role("button", name="Copy as…").nth(place)).to_be_focused()


@pytest.mark.parametrize("view", VIEWS)
def test_a_views_request_runs_as_curl_and_as_python(open_view: Open, view: str) -> None:
    page = open_view(view, write_max_tokens=3)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    run_both(page, 0)


@pytest.mark.parametrize("place", [1, 2], ids=["geometry", "circuits"])
def test_what_is_asked_of_the_weights_runs_as_well(open_view: Open, place: int) -> None:
    page = open_view("weights", layer=2, weights_matrix="blocks.{layer}.mlp.W_out", weights_axis="columns")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    run_both(page, place)


def test_a_copied_request_names_the_key_but_does_not_hold_it(browser: Browser) -> None:
    with serve(["--api-key", "sesame"]) as guarded:
        context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        page = context.new_page()
        page.goto(f"{guarded.url}/#view=lens&text=The+old+king")
        page.get_by_label("API key").fill("sesame")
        page.get_by_role("button", name="Use it").click()
        settle(page)
        for what, *command in (("curl", "bash", "-c"), ("Python", sys.executable, "-c")):
            text = copied(page, 0, what)
            assert "sesame" not in text
            assert "fables" in output_of(*command, text, LIGHTWELL_API_KEY="sesame")
        context.close()


def test_copying_works_where_browsers_lend_no_clipboard(browser: Browser, server: Server) -> None:
    """Plain http of another host's name is no secure context: navigator.clipboard is missing there."""
    page = browser.new_page()
    outer = "http://elsewhere.invalid"

    def forward(route) -> None:  # type: ignore[no-untyped-def]
        route.fulfill(response=route.fetch(url=route.request.url.replace(outer, server.url)))

    page.route("**/*", forward)
    page.goto(f"{outer}/#view=lens&text=The+old+king")
    settle(page)
    assert page.evaluate("navigator.clipboard === undefined")
    page.get_by_role("button", name="Copy as…").first.click()
    page.get_by_role("button", name="curl", exact=True).click()
    expect(page.get_by_text("Copied")).to_have_count(1)
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Write").click()
    page.locator("#prompt").fill("")
    page.locator("#prompt").press("Control+v")
    assert page.locator("#prompt").input_value().startswith(f"curl -s '{outer}/v1/lens' --json")
    page.close()
