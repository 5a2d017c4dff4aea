"""A server with the default model, and Debian's Chromium connected to it: no other network, and no unnoticed error."""

import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import ROUND_HALF_UP, Context
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, expect, sync_playwright

from tests.support.processes import Server, serve

TEXT = "Once upon a time there was a little girl"


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    with serve(["--served-model-name", "fables"]) as running:
        yield running


_NO_PRECEDENCE = ("setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice")


@pytest.fixture(scope="package")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program: Debian's Chromium, without the right of root's processes to be scheduled first: the answer that a
    page waits for would starve while the browser paints the page waiting.
    """
    found = shutil.which("chromium")
    if found is None and not os.environ.get("TEST_TOOLS"):
        pytest.skip("chromium is missing: Debian's package chromium has it")
    assert found, "chromium is missing: Debian's package chromium has it"
    if os.geteuid() != 0 or subprocess.run([*_NO_PRECEDENCE, "true"], check=False).returncode:
        return found
    program = tmp_path_factory.mktemp("chromium") / "chromium"
    program.write_text(f'#!/bin/sh\nexec {" ".join(_NO_PRECEDENCE)} {found} "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.fixture(scope="package")  # no longer: Playwright's loop runs in this thread, where async tests want their own
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # no sandbox: in containers, where tests run as root, Chromium's own cannot start
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


class Watched:
    """What went wrong in a page: its script's errors, and its requests to any host but its server."""

    def __init__(self, page: Page, host: str) -> None:
        self.errors: list[str] = []
        self.strangers: list[str] = []
        self._host = host
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.route("**/*", self._asked)

    def _said(self, message: ConsoleMessage) -> None:
        # A refused request is the test's business, not the script's fault.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def _asked(self, route: Route) -> None:
        if urlsplit(route.request.url).netloc not in ("", self._host):
            self.strangers.append(route.request.url)
            route.abort()
        else:
            route.continue_()


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator[Page]:
    """A fresh tab in a fresh profile; the test fails if a script broke or another host was requested."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(20_000)
    tab = context.new_page()
    watched = Watched(tab, urlsplit(server.url).netloc)
    yield tab
    tab.unroute_all(behavior="ignoreErrors")  # the page asks beforehand: an answer may still be on its way
    context.close()
    assert not watched.errors
    assert not watched.strangers


Open = Callable[..., Page]


@pytest.fixture
def open_view(page: Page, server: Server) -> Open:
    """open_view("attention", layer=1): the page at that view, its first answers drawn."""

    def open_it(view: str, **state: Any) -> Page:
        page.goto(f"{server.url}/#{urlencode({'view': view, 'text': TEXT, **state})}")
        page.locator(f"#view-{view} h1").wait_for()
        settle(page)
        return page

    return open_it


def settle(page: Page) -> None:
    """Wait until nothing on the page waits for an answer (its policy forbids Playwright's wait_for_function)."""
    expect(page.locator("[aria-busy=true], .progress.active, .boot")).to_have_count(0, timeout=60_000)


@contextmanager
def slow_answers(page: Page) -> Iterator[None]:
    """Let the page receive 20 kB a second: otherwise a small model writes 400 tokens before they can be stopped."""
    session = page.context.new_cdp_session(page)
    conditions = {"offline": False, "latency": 0, "uploadThroughput": -1}
    session.send("Network.emulateNetworkConditions", {**conditions, "downloadThroughput": 20_000})
    yield
    session.send("Network.emulateNetworkConditions", {**conditions, "downloadThroughput": -1})
    session.detach()


def ask(server: Server, route: str, body: dict[str, Any] | None = None) -> Any:
    """Return the JSON of a route, requested without the page."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + route, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def written(value: float) -> str:
    """Return a number as the page writes it: four significant digits, a true minus, short exponents
    (core/numbers.js).
    """
    plain = value == 0 or 1e-3 <= abs(value) < 1e6
    # JavaScript rounds ties away from 0, Python to even; numbers of bfloat16 are ties often
    value = float(Context(prec=4 if plain else 3, rounding=ROUND_HALF_UP).create_decimal_from_float(value))
    shown = f"{value:.4g}" if plain else re.sub(r"e([+-])0*", r"e\1", f"{value:.2e}")
    return shown.replace("-", "−")


def percent(share: float) -> str:
    """Return a share as the page writes it: three significant digits."""
    return f"{written(float(f'{share * 100:.3g}'))} %"
