"""The server view: what /metrics counts appears while it happens, and its arithmetic is Prometheus's."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.page.conftest import PATIENCE_MS, Open, ask
from tests.support.processes import Server, serve

HISTOGRAM = "lightwell_time_to_first_token_seconds"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that no other test sends requests to."""
    with serve(["--served-model-name", "fables"]) as server:
        yield server


def text_of(buckets: dict[str, int], tokens: int, running: int, waiting: int, captured: int) -> str:
    """Return a reading of /metrics of two workers; `buckets` are cumulative counts by their upper bound."""
    lines = [f"# TYPE {HISTOGRAM} histogram"]
    lines += [f'{HISTOGRAM}_bucket{{le="{bound}"}} {count}' for bound, count in buckets.items()]
    lines += [f"{HISTOGRAM}_count {buckets['+Inf']}", f"{HISTOGRAM}_sum 1"]
    for name, kind, total in (
        ("generation_tokens_total", "counter", tokens),
        ("capture_bytes_total", "counter", captured),
        ("num_requests_running", "gauge", running),
        ("num_requests_waiting", "gauge", waiting),
    ):
        lines.append(f"# TYPE lightwell_{name} {kind}")
        lines += [f'lightwell_{name}{{worker="{worker}"}} {total / 2:g}' for worker in range(2)]
    return "\n".join(lines) + "\n"


BEFORE = text_of({"0.1": 10, "0.5": 10, "2.0": 10, "+Inf": 10}, tokens=100, running=1, waiting=0, captured=0)
AFTER = text_of({"0.1": 30, "0.5": 90, "2.0": 109, "+Inf": 110}, tokens=1300, running=8, waiting=34, captured=6_000_000)


def gauge(page: Page, title: str) -> Locator:
    card = page.locator(".gauges li", has=page.get_by_role("heading", name=title, exact=True))
    return card.locator("strong")


def test_rates_and_quantiles_are_those_of_prometheus(page: Page, open_view: Open) -> None:
    readings = [BEFORE, AFTER]

    def answer(route: Route) -> None:
        if route.request.headers["accept"] != "text/plain":
            route.continue_()  # from the page's frame, which requests the server's start time
        elif readings:
            route.fulfill(body=readings.pop(0), content_type="text/plain; version=0.0.4")

    page.route("**/metrics", answer)
    open_view("server")
    expect(gauge(page, "Running")).to_have_text("8")
    expect(gauge(page, "Waiting")).to_have_text("34")
    tokens, captured = 1200, 6_000_000
    seconds = tokens / float(gauge(page, "Tokens out").inner_text().removesuffix("/s"))  # by the page's clock
    assert 0.9 < seconds < 1e-3 * PATIENCE_MS
    shown = gauge(page, "Captured").inner_text()
    assert shown.endswith(" KiB/s" if captured / seconds < 2**20 else " MiB/s")
    unit = 2**10 if "KiB" in shown else 2**20
    assert float(shown.split()[0]) * unit == pytest.approx(captured / seconds, rel=0.01)  # both of three digits
    cells = page.locator("tr", has_text="Time to first token").locator("td")
    # 20 of 100 new times are up to 0.1 s, 80 up to 0.5 s, 99 up to 2 s; between the bounds they are spread evenly.
    expect(cells).to_have_text(["300 ms", "1.29 s", "2 s"])


def test_requests_are_seen_while_they_run(open_view: Open, server: Server) -> None:
    page = open_view("server")
    expect(page.locator(".gauges li")).to_have_count(10)
    body = {"prompt": "Once upon a time", "max_tokens": 500, "ignore_eos": True}
    is_seen = Event()

    def keep_asking() -> None:
        while not is_seen.is_set():  # a few requests may end before the page looks again
            ask(server, "/v1/completions", body)

    with ThreadPoolExecutor(4) as clients:
        asking = [clients.submit(keep_asking) for _ in range(4)]
        try:
            expect(gauge(page, "Running")).not_to_have_text("0")
            expect(gauge(page, "Tokens out")).not_to_have_text("0/s")
        finally:
            is_seen.set()
    for client in asking:
        client.result()
    expect(gauge(page, "Running")).to_have_text("0")
    expect(page.locator("tr", has_text="POST /v1/completions").first).to_contain_text("200")
    expect(page.locator("tr", has_text="Time to first token")).to_contain_text("ms")


def test_requests_that_the_page_gave_up_are_no_failures(page: Page, open_view: Open) -> None:
    name = "lightwell_http_requests_total"
    lines = [
        f'{name}{{method="POST",route="/v1/attention",status="{status}"}} {count}'
        for status, count in (("200", 5), ("499", 3), ("500", 2))
    ]
    page.route("**/metrics", lambda route: route.fulfill(body="\n".join(lines) + "\n", content_type="text/plain"))
    open_view("server")
    statuses = page.get_by_role("table", name="Answers by route").locator("tbody td:nth-child(2)")
    expect(statuses).to_have_text(["200", "499: left", "500"])
    expect(page.locator("td.refused")).to_have_text("500")
