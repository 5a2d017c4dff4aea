"""Measures how long a change of head takes in the Attention view: from the key that is pressed to the painted picture.

The model walks through heads that were not looked at before, so that each change asks the server.
"""

from collections.abc import Iterator
from urllib.parse import urlencode

from playwright.sync_api import Page

from benchmarks.load import percentile

MOST_HEAD_CHANGE_MS = 60.0
"""Milliseconds of the median change at the default text, 21 tokens."""
_CHANGE = """
() => new Promise((resolve) => {
  const pressed = performance.now();
  document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}));
  const look = () => {
    if (document.querySelector('.head-pictures [aria-busy=true], .head-pictures .stale')) requestAnimationFrame(look);
    else requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - pressed)));
  };
  queueMicrotask(() => requestAnimationFrame(look));
})
"""
"""Presses an arrow key and answers, in ms, when the next head has been painted: the frame after nothing is awaited."""


def head_changes(page: Page, url: str, *, layers: range, num_heads: int) -> list[float]:
    """Return the milliseconds of each change of head, walking through all heads of these layers."""
    found: list[float] = []
    for layer in layers:
        page.goto("about:blank")
        page.goto(f"{url}/#{urlencode({'view': 'attention', 'layer': layer, 'head': 0})}")
        page.locator(".head-pictures canvas").first.wait_for()
        page.wait_for_timeout(300)  # the wall of all heads is still being drawn
        found += [float(page.evaluate(_CHANGE)) for _ in range(num_heads - 1)]
    return found


def report_head_changes(page: Page, url: str, *, layers: range, num_heads: int) -> Iterator[str]:
    """Print the table, and yield what misses its bound."""
    times = head_changes(page, url, layers=layers, num_heads=num_heads)
    middle, late = (percentile(times, share) for share in (0.5, 0.95))
    print("\n| changes of head, 21 tokens | ms p50 | p95 | max |\n|---|---|---|---|")
    print(f"| {len(times)} | {middle:.1f} | {late:.1f} | {max(times):.1f} |", flush=True)
    if middle > MOST_HEAD_CHANGE_MS:
        yield f"change of head: {middle:.1f} ms, over {MOST_HEAD_CHANGE_MS:.0f}"
