"""Measure the web page in a browser: bytes, the first picture, frames while the mouse moves over 1024 tokens.

It prints five tables, measured in headless Chromium with the server on the same machine:

1. load: compressed bytes transferred for the first view and for each further view, and milliseconds from the
   address to the first matrix on the default model, with an empty and a filled cache;
2. frames: milliseconds between frames while the mouse moves over one head of a text of 1024 tokens (a small random
   checkpoint);
3. heads: milliseconds from a key to the painted picture of the next head (page_head_change.py);
4. motion: milliseconds of script and draw calls of a frame while the arrows of the view Motion play (page_motion.py);
5. journey: the same of the journey's film, and frames a second (page_journey.py).

With --check the exit status is 1 if the page misses a bound below.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from benchmarks.checkpoint import make_llama
from benchmarks.comparison import machine
from benchmarks.load import percentile
from benchmarks.page_head_change import report_head_changes
from benchmarks.page_journey import report_journey
from benchmarks.page_motion import report_motion
from tests.support.chromium import find_chromium
from tests.support.processes import ROOT, Server, serve

TOKENS = 1024
NAME = "llama-small-random"
SWEPT_HEADS = ((0, 0), (1, 3), (3, 7))  # layer and head, of that model
MOST_FIRST_PICTURE_MS = 1000
MOST_KB = {"first view": 200, "in all": 450}
"""Compressed kilobytes of the page's own files."""
MOST_FRAME_MS = 17.5
"""Milliseconds between frames at the 95th percentile: 60 frames a second, and the clock's own noise."""
TABLES = ("load", "frames", "heads", "motion", "journey")
# Milliseconds from the request of the address until the picture of the head is drawn.
FIRST_PICTURE = """
const look = () => {
  const canvas = document.querySelector('.head-pictures .canvases canvas');
  if (canvas && canvas.width > 300) window.firstPicture ??= performance.now();
  else requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
WHEN_DRAWN = """() => new Promise((resolve) => {
  const look = () => (window.firstPicture ? resolve(window.firstPicture) : requestAnimationFrame(look));
  look();
})"""
COUNT_FRAMES = """
() => {
  window.frames_ = [];
  const count = (now) => {
    window.frames_.push(now);
    window.counting = requestAnimationFrame(count);
  };
  window.counting = requestAnimationFrame(count);
}
"""
END_COUNT = "() => { cancelAnimationFrame(window.counting); return window.frames_; }"


def make_small_checkpoint(cache: Path) -> Path:
    """Return a checkpoint folder with 4 layers of 8 heads and a context of 2048 tokens, for pictures as large as a
    large model's.
    """
    return make_llama(
        cache / NAME,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=8,
        max_position_embeddings=2 * TOKENS,
    )


@contextmanager
def tab(browser: Browser) -> Iterator[tuple[BrowserContext, Page]]:
    """Open a fresh profile with one tab."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    context.set_default_timeout(120_000)
    try:
        yield context, context.new_page()
    finally:
        context.close()


def view_names(page: Page) -> list[str]:
    return [name.split("\n")[0] for name in page.locator(".rail button b").all_inner_texts()]


def settle(page: Page) -> None:
    """Wait until nothing on the page waits for an answer."""
    expect(page.locator("[aria-busy=true], .progress.active, .boot")).to_have_count(0, timeout=120_000)


def open_view(page: Page, number: int) -> None:
    page.locator(".rail button").nth(number).click()
    page.locator(".view").wait_for()  # wait_for_selector would keep a reference to the element and its removed children
    settle(page)


# ---- bytes and the first picture


def measure_bytes(browser: Browser, server: Server) -> Iterator[tuple[str, int]]:
    """Yield each view with the bytes that it adds: the page's files as transferred, including HTTP headers."""
    with tab(browser) as (context, page):
        session = context.new_cdp_session(page)
        session.send("Network.enable")
        ours: set[str] = set()
        total = 0

        def responded(event: dict[str, object]) -> None:
            path = urlsplit(str(event["response"]["url"])).path
            if path == "/" or path.startswith("/web/"):
                ours.add(str(event["requestId"]))

        def finished(event: dict[str, object]) -> None:
            nonlocal total
            if event["requestId"] in ours:
                total += int(event["encodedDataLength"])

        session.on("Network.responseReceived", responded)
        session.on("Network.loadingFinished", finished)
        page.goto(f"{server.url}/#view=attention")
        settle(page)
        page.locator(".head-pictures canvas").first.wait_for()
        before = total
        yield "first view (Attention)", before
        for number, name in enumerate(view_names(page)):
            open_view(page, number)
            yield name, total - before
            before = total
        yield "in all", total


def measure_first_picture(browser: Browser, server: Server, rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"empty": [], "filled": []}
    for _ in range(rounds):
        with tab(browser) as (_, page):
            page.add_init_script(FIRST_PICTURE)
            for times in found.values():
                page.goto("about:blank")
                page.goto(f"{server.url}/#view=attention")
                page.locator(".head-pictures canvas").first.wait_for()
                settle(page)
                times.append(float(page.evaluate(WHEN_DRAWN)))
    return found


# ---- frames


def long_text(server: Server, page: Page) -> str:
    """Return a text of TOKENS tokens of the served model, or a few less."""
    count = """async ([url, text]) => {
      const body = JSON.stringify({prompt: text});
      const answer = await fetch(url, {method: 'POST', headers: {'Content-Type': 'application/json'}, body});
      return (await answer.json()).count;
    }"""
    words = [f"word{i % 97}" for i in range(TOKENS)]
    fewest, most = 1, len(words)
    while fewest < most:
        middle = (fewest + most + 1) // 2
        if page.evaluate(count, [f"{server.url}/tokenize", " ".join(words[:middle])]) <= TOKENS:
            fewest = middle
        else:
            most = middle - 1
    return " ".join(words[:fewest])


def frames_while(page: Page, act: Callable[[], None]) -> list[float]:
    """Return the milliseconds between the frames that were drawn while `act` ran."""
    page.evaluate(COUNT_FRAMES)
    act()
    times = page.evaluate(END_COUNT)
    return [after - before for before, after in pairwise(times)]


def sweep(page: Page, selector: str, seconds: float) -> Callable[[], None]:
    """Return a function that moves the mouse over the visible part of an element, in slanted lines."""

    def act() -> None:
        canvas = page.locator(selector).first
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        assert box is not None
        height = min(box["height"], 1000 - box["y"]) - 8
        end, step = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            step += 1
            across, down = (step * 7) % int(box["width"] - 8), (step * 3) % int(height)
            page.mouse.move(box["x"] + 4 + across, box["y"] + 4 + down)

    return act


def measure_frames(browser: Browser, server: Server, seconds: float) -> Iterator[tuple[str, list[float]]]:
    with tab(browser) as (_, page):
        page.goto(server.url)
        text = long_text(server, page)
        page.goto(f"{server.url}/#{urlencode({'view': 'attention', 'text': text})}")
        page.reload()
        page.locator(".head-pictures canvas").first.wait_for()
        settle(page)
        yield "nothing moves", frames_while(page, lambda: time.sleep(seconds))
        for layer, head in SWEPT_HEADS:
            page.locator("#layer").select_option(str(layer))
            page.locator("#head").select_option(str(head))
            settle(page)
            matrix = ".head-pictures .card:nth-of-type(1) .canvases canvas:last-child"
            yield f"matrix of layer {layer}, head {head}", frames_while(page, sweep(page, matrix, seconds))
        for name, selector in (
            ("the running text", ".running-text .canvases"),
            ("wall of all heads", ".wall .canvases canvas:last-child"),
        ):
            yield name, frames_while(page, sweep(page, selector, seconds))


# ---- the tables


def report_load(browser: Browser, server: Server, rounds: int) -> Iterator[str]:
    """Print bytes and first pictures; yield the missed bounds, like the functions below."""
    print("| opened | KB |\n|---|---|")
    for name, size in measure_bytes(browser, server):
        print(f"| {name} | {size / 1e3:.1f} |", flush=True)
        most = MOST_KB.get(name.partition(" (")[0])
        if most is not None and size > most * 1e3:
            yield f"{name}: {size / 1e3:.0f} KB, over {most}"
    print("\n| cache | first picture, median ms | slowest |\n|---|---|---|")
    for cache, times in measure_first_picture(browser, server, rounds).items():
        median = percentile(times, 0.5)
        print(f"| {cache} | {median:.0f} | {max(times):.0f} |", flush=True)
        if median > MOST_FIRST_PICTURE_MS:
            yield f"first picture, {cache} cache: {median:.0f} ms, over {MOST_FIRST_PICTURE_MS}"


def report_frames(browser: Browser, server: Server, seconds: float) -> Iterator[str]:
    print(f"\n| mouse over, {TOKENS} tokens | frames/s | ms p50 | p95 | max |\n|---|---|---|---|---|")
    for name, gaps in measure_frames(browser, server, seconds):
        middle, late = (percentile(gaps, share) for share in (0.5, 0.95))
        print(
            f"| {name} | {1e3 * len(gaps) / sum(gaps):.0f} | {middle:.1f} | {late:.1f} | {max(gaps):.1f} |", flush=True
        )
        if late > MOST_FRAME_MS:
            yield f"frames, {name}: {late:.1f} ms at the 95th percentile, over {MOST_FRAME_MS}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    parser.add_argument("--rounds", type=int, default=5, help="first pictures with each cache")
    parser.add_argument("--seconds", type=float, default=5.0, help="of pointing at each picture and playing each scene")
    parser.add_argument("--cache", type=Path, default=ROOT / "benchmarks" / ".cache")
    parser.add_argument("--check", action="store_true", help="end with status 1 where a bound is missed")
    options = parser.parse_args()
    chromium = find_chromium()
    if chromium is None:
        parser.error("chromium is missing: Debian's package chromium-headless-shell has it")
    print(f"{machine()}\n")
    missed: list[str] = []
    with sync_playwright() as playwright:
        # no sandbox: in containers, where this may run as root, Chromium's own cannot start
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        if "load" in options.tables:
            with serve([]) as server:
                missed += report_load(browser, server, options.rounds)
        if "frames" in options.tables:
            with serve([str(make_small_checkpoint(options.cache))]) as server:
                missed += report_frames(browser, server, options.seconds)
        if "heads" in options.tables:
            with serve([]) as server, tab(browser) as (_, page):
                missed += report_head_changes(page, server.url, layers=range(0, 30, 5), num_heads=9)
        if "motion" in options.tables:
            with serve([]) as server:
                missed += report_motion(browser, server, options.seconds)
        if "journey" in options.tables:
            with serve([]) as server:
                missed += report_journey(browser, server)
        browser.close()
    for miss in missed:
        print(f"missed: {miss}")
    if options.check and missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
