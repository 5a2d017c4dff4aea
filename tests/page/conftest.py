"""A server with the default model, and Debian's Chromium connected to it: no other network, and no unnoticed error."""

import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import ROUND_HALF_UP, Context
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np
import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    FloatRect,
    Locator,
    Page,
    Request,
    Route,
    ViewportSize,
    expect,
    sync_playwright,
)

from tests.support.chromium import find_chromium
from tests.support.processes import Server
from tests.support.shared import once, shared_server

TEXT = "Once upon a time there was a little girl"
PATIENCE_MS = 60_000
"""Milliseconds within which a condition must become true; a busy machine needs seconds."""
SIZE: ViewportSize = {"width": 1280, "height": 900}
expect.set_options(timeout=PATIENCE_MS)
VIEWS = (
    "home", "chat", "journey", "attention", "why", "heads", "moves", "flow", "embeddings", "lens", "next", "patching",
    "weights", "server",
)  # fmt: skip
"""The views, in the order of the list."""
FORMER = {"contributions": "moves", "motion": "moves"}
"""Former names of views, which addresses may still have, and the present ones."""
KEY = "sk-of-somebody"
FRAMING_ORIGIN = "http://notebook.invalid"
PROXY_PATH = "/deep/down"


@pytest.fixture(scope="package")
def server() -> Server:
    """The server that most tests share; other processes use it at the same time."""
    return shared_server("--served-model-name", "fables")


@pytest.fixture(scope="package")
def guarded() -> Server:
    """A server with a key and an allowed frame, which hands out no weights."""
    return shared_server("--api-key", KEY, "--weights-access", "off", "--embed-origins", FRAMING_ORIGIN)


@pytest.fixture(scope="package")
def another() -> Server:
    """A server with another model, behind a proxy that removes a path."""
    return shared_server(str(model_folder("llama")), "--served-model-name", "another", "--root-path", PROXY_PATH)


def family_server(variant: str) -> Server:
    """Return the server of a small checkpoint of a family that all processes share."""
    return shared_server(str(family_folder(variant)), "--dtype", "float32", "--threads", "1")


def family_folder(variant: str) -> Path:
    """Return the folder of that checkpoint. The model of `bert` has 96 heads, for the wall of its pictures."""
    return model_folder(variant, **(WIDE if variant == "bert" else {}))


WIDE = {"num_hidden_layers": 8, "num_attention_heads": 12, "hidden_size": 48}


def model_folder(variant: str, **options: Any) -> Path:
    """Return the folder of a checkpoint of `tests.tiny.VARIANTS`, which is the same in all processes."""
    from tests import tiny  # imports transformers, which most tests of the page do not need

    return once(("page", variant, options), lambda folder: tiny.make_variant(variant, folder, **options))


_NO_PRECEDENCE = ("setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice")


@pytest.fixture(scope="package")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program: Debian's Chromium, without the right of root's processes to be scheduled first: the answer that a
    page waits for would starve while the browser paints the page waiting.
    """
    found = find_chromium()
    if found is None and not os.environ.get("TEST_TOOLS"):
        pytest.skip("chromium is missing: Debian's package chromium-headless-shell has it")
    assert found, "chromium is missing: Debian's package chromium-headless-shell has it"
    if os.geteuid() != 0 or subprocess.run([*_NO_PRECEDENCE, "true"], check=False).returncode:
        return found
    program = tmp_path_factory.mktemp("chromium") / "chromium"
    program.write_text(f'#!/bin/sh\nexec {" ".join(_NO_PRECEDENCE)} {found} "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.fixture(scope="package")  # not for the session: Playwright's loop blocks async tests in this thread
def browser(chromium: str) -> Iterator[Browser]:
    arguments = [
        "--disable-gpu",  # without one, its emulation takes a fifth of the time
        "--in-process-gpu",  # a process less: a tenth of Chromium's time
        "--no-sandbox",  # in containers, where tests run as root, Chromium's own cannot start
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # no other network
    ]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=arguments, timeout=2 * PATIENCE_MS)
        yield started
        started.close()


class Watched:
    """The errors of a page's scripts, and its requests to any host that it was not opened from.

    A last request of the page before may come after the next page was opened.
    """

    def __init__(self, page: Page) -> None:
        self.errors: list[str] = []
        self.strangers: list[str] = []
        self._hosts = {""}
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._asked)

    def _said(self, message: ConsoleMessage) -> None:
        # A refused request is the test's business, not the script's fault.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def _asked(self, request: Request) -> None:
        host = urlsplit(request.url).netloc
        if request.is_navigation_request() and (host.startswith("127.0.0.1:") or host.endswith(".invalid")):
            self._hosts.add(host)
        if host not in self._hosts:
            self.strangers.append(request.url)


FORGET = """() => {
  const names = Object.keys(localStorage);
  localStorage.clear();
  sessionStorage.clear();
  for (const key of names) dispatchEvent(new StorageEvent("storage", { key, newValue: null }));
}"""
"""A script that clears the storage, and lets a page that stays open forget its conversations and texts."""


class Tab:
    """A tab that tests use one after another: a new tab costs three times as much as loading the page.

    With `is_kept` the page stays loaded: opening a view by its address costs a quarter of loading the page.
    """

    def __init__(self, browser: Browser, *, is_kept: bool = False, **options: Any) -> None:
        self._browser = browser
        self._is_kept = is_kept
        self._options = options
        self._page: Page | None = None

    @contextmanager
    def used(self, session: pytest.Session) -> Iterator[Page]:
        """Yield the tab with an empty page; fail at the end if a script broke or another host was requested."""
        if self._page is None:
            context = self._browser.new_context(viewport=SIZE, **self._options)
            context.set_default_timeout(PATIENCE_MS)
            self._page = context.new_page()
            self._watched = Watched(self._page)
        page, watched = self._page, self._watched
        num_failed = session.testsfailed
        yield page
        errors, strangers = [*watched.errors], [*watched.strangers]
        if session.testsfailed > num_failed:
            self._page = None  # it may be in any state
            page.context.close()
        else:
            self._clear(page)
        assert not errors
        assert not strangers

    def _clear(self, page: Page) -> None:
        for other in page.context.pages:
            if other is not page:
                other.close()
        if page.url.startswith("http"):
            page.evaluate(FORGET)
        if not self._is_kept:
            page.goto("about:blank")
        page.unroute_all(behavior="ignoreErrors")  # requests that the page sends in advance may still be running
        page.mouse.move(0, 0)
        page.emulate_media(color_scheme="light", reduced_motion="no-preference")
        page.context.clear_permissions()
        if page.viewport_size != SIZE:
            page.set_viewport_size(SIZE)
        self._watched.errors.clear()
        self._watched.strangers.clear()


@pytest.fixture(scope="package")
def tab(browser: Browser) -> Tab:
    return Tab(browser)


@pytest.fixture(scope="package")
def kept_tab(browser: Browser) -> Tab:
    return Tab(browser, is_kept=True)


@pytest.fixture
def kept_page(kept_tab: Tab, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page that may be loaded, with answers to earlier tests, for tests of views that the address describes."""
    with kept_tab.used(request.session) as page:
        yield page


@pytest.fixture(scope="package")
def open_tab(browser: Browser) -> Tab:
    """A tab without the page's policy, which would refuse the scripts of tests."""
    return Tab(browser, bypass_csp=True)


@pytest.fixture(scope="package")
def offline_tab(browser: Browser) -> Tab:
    return Tab(browser, offline=True)


@pytest.fixture
def page(tab: Tab, request: pytest.FixtureRequest) -> Iterator[Page]:
    """An empty page; the test fails if a script broke or another host was requested."""
    with tab.used(request.session) as page:
        yield page


@pytest.fixture
def open_page(open_tab: Tab, request: pytest.FixtureRequest) -> Iterator[Page]:
    """An empty page as `page`, without the page's policy: axe and other scripts of tests can run."""
    with open_tab.used(request.session) as page:
        yield page


@contextmanager
def new_page(browser: Browser, **options: Any) -> Iterator[Page]:
    """Yield a tab with a profile of its own, for tests that change a tab's stored state."""
    context = browser.new_context(**{"viewport": SIZE, **options})
    context.set_default_timeout(PATIENCE_MS)
    try:
        page = context.new_page()
        yield page
        page.unroute_all(behavior="ignoreErrors")
    finally:
        context.close()


@pytest.fixture(scope="package")
def decoder(browser: Browser) -> Iterator[Page]:
    """A tab that opens pictures: the page's own content security policy blocks them."""
    with new_page(browser) as page:
        yield page


@contextmanager
def requests_of(page: Page) -> Iterator[list[Request]]:
    """Yield a list to which all requests of the page are added."""
    asked: list[Request] = []

    def add(request: Request) -> None:
        asked.append(request)

    page.on("request", add)
    yield asked
    page.remove_listener("request", add)


Open = Callable[..., Page]


@pytest.fixture
def open_view(request: pytest.FixtureRequest, server: Server) -> Open:
    """open_view("attention", layer=1): the page at that view, its first answers drawn.

    It is `page`, or in files that use `kept_page` that one, unless the test uses `page`, too.
    """
    names = request.fixturenames
    page: Page = request.getfixturevalue("kept_page" if "kept_page" in names and "page" not in names else "page")
    if page.url.startswith(f"{server.url}/#"):
        show(page, server, "server")  # this discards a view's state outside of the address

    def open_it(view: str, **state: Any) -> Page:
        return show(page, server, view, **state)

    return open_it


def show(page: Page, server: Server, view: str, **state: Any) -> Page:
    """Open a view of a server, and wait until its first answers are drawn; a page that is open stays loaded."""
    take_precision(server)
    page.goto(f"{server.url}/#{urlencode({'view': view, 'text': TEXT, **state})}")
    page.locator(f"#view-{FORMER.get(view, view)} h1").wait_for()
    settle(page)
    page.evaluate(DRAWN)
    return page


DRAWN = """new Promise((done) => requestAnimationFrame(() =>
  setTimeout(() => requestAnimationFrame(() => setTimeout(done)))))"""
"""A script that ends when pictures are drawn and the effects of rendering (in a timer after a frame) have run."""


def settle(page: Page) -> None:
    """Wait until the page has no request in flight, not even one that follows from the last answer.

    Text that was typed less than half a second ago may not be requested yet. The page's policy forbids Playwright's
    wait_for_function.
    """
    busy = page.locator("[aria-busy=true], .progress.active, .boot")
    expect(busy).to_have_count(0)
    page.evaluate(DRAWN)
    expect(busy).to_have_count(0)


def open_rows(page: Page) -> None:
    """Open the rows of controls that have no room for all of them."""
    for button in page.get_by_role("button", name="More", exact=True).all():
        button.click()


def wait_until(page: Page, holds: Callable[[], bool]) -> None:
    """Wait until a condition holds that `expect` cannot express; fail if it never holds."""
    give_up = time.monotonic() + PATIENCE_MS / 1000
    while not holds():
        assert time.monotonic() < give_up
        page.wait_for_timeout(50)


def saved(part: Page | Locator, entry: str) -> Path:
    """Return the file of an entry of the first Save menu in a part of the page."""
    page = part.page if isinstance(part, Locator) else part
    page.evaluate(DRAWN)  # the menu saves the picture that its effects have set
    part.get_by_role("button", name="Save…").first.click()
    with page.expect_download() as download:
        part.get_by_role("button", name=entry).click()
    return download.value.path()


def texts_of(svg: Path) -> list[str]:
    """Return the texts in a picture that the page saved."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg.read_text(encoding="utf-8"))


def box_of(element: Locator) -> FloatRect:
    box = element.bounding_box()
    assert box is not None
    return box


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis."""
    powers: np.ndarray = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: np.ndarray = powers / powers.sum(axis=-1, keepdims=True)
    return shares


@contextmanager
def slow_answers(page: Page) -> Iterator[None]:
    """Let the page receive 4 kB a second: otherwise a small model writes 400 tokens before they can be stopped."""
    session = page.context.new_cdp_session(page)
    conditions = {"offline": False, "latency": 0, "uploadThroughput": -1}
    session.send("Network.emulateNetworkConditions", {**conditions, "downloadThroughput": 4_000})
    yield
    session.send("Network.emulateNetworkConditions", {**conditions, "downloadThroughput": -1})
    session.detach()


def sent_to(server: Server, outer: str, name: str | None = None) -> Callable[[Route], None]:
    """Return a handler that forwards requests to a server, with `name` as the model's name in its answers."""

    def forward(route: Route) -> None:
        assert route.request.url.startswith(outer), f"asked outside of the proxy's path: {route.request.url}"
        answer = route.fetch(url=route.request.url.replace(outer, server.url))
        if name is not None and "json" in answer.headers.get("content-type", ""):
            route.fulfill(response=answer, body=answer.text().replace('"another"', f'"{name}"'))
        else:
            route.fulfill(response=answer)

    return forward


def ask(server: Server, route: str, body: dict[str, Any] | None = None) -> Any:
    """Return the JSON of a route, requested without the page."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + route, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


class _Precision:
    digits = 4  # that the page writes of the server that was opened last


def take_precision(server: Server) -> None:
    """Let `written` write as many digits as the page of a server; `show` does it, too."""
    _Precision.digits = 4 - (ask(server, "/version")["compute_dtype"] == "bfloat16")


def written(value: float, digits: int = 0) -> str:
    """Return a number as the page writes it: with a true minus and short exponents (core/numbers.js)."""
    digits = digits or _Precision.digits
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{value:.0f}".replace("-", "−")
    plain = 1e-3 <= abs(value) < 1e6
    # JavaScript rounds ties away from 0, Python to even; numbers of bfloat16 are ties often
    context = Context(prec=digits if plain else digits - 1, rounding=ROUND_HALF_UP)
    value = float(context.create_decimal_from_float(value))
    shown = f"{value:.{digits}g}" if plain else re.sub(r"e([+-])0*", r"e\1", f"{value:.{digits - 2}e}")
    return shown.replace("-", "−")


def percent(share: float) -> str:
    """Return a share as the page writes it: one significant digit less."""
    return f"{written(share * 100, _Precision.digits - 1)} %"
