"""axe-core finds no serious barrier in any view, light or dark, wide or narrow."""

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, expect

from benchmarks.processes import Server
from tests.page.conftest import TEXT, settle
from tests.page.test_page import VIEWS


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_serious(browser: Browser, server: Server, view: str, scheme: str) -> None:
    context = browser.new_context(
        bypass_csp=True,  # axe is a script of the test's
        color_scheme="dark" if scheme == "dark" else "light",
        viewport={"width": 390, "height": 800} if scheme == "dark" else {"width": 1280, "height": 900},
    )
    page = context.new_page()
    page.goto(f"{server.url}/#view={view}&text={TEXT}")
    expect(page.locator(f"#view-{view} h1")).to_be_visible()
    settle(page)
    found = Axe().run(page)
    context.close()
    serious = [
        f"{violation['impact']}: {violation['help']}: {[node['html'][:120] for node in violation['nodes'][:3]]}"
        for violation in found.response["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
    assert not serious
