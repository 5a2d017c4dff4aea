"""Measures how long a change of head takes in the Attention view: from the key that is pressed to the painted picture.

It walks along the heads of some layers, and down the layers, over heads that were not looked at before. A person looks
at a head before the next: between two keys it waits.
"""

from collections.abc import Iterator
from urllib.parse import urlencode

from playwright.sync_api import Page

from benchmarks.load import percentile

MOST_HEAD_CHANGE_MS = 60.0
"""Milliseconds of the median change at the default text, 21 tokens."""
_LOOK_MS = 300.0
"""Milliseconds of looking at a head."""
_CHANGE = """
(key) => new Promise((resolve) => {
  const pressed = performance.now();
  document.body.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
  const look = () => {
    if (document.querySelector('.head-pictures [aria-busy=true], .head-pictures .stale')) requestAnimationFrame(look);
    else requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - pressed)));
  };
  queueMicrotask(() => requestAnimationFrame(look));
})
"""
"""Presses an arrow key and answers, in ms, when the next head has been painted: the frame after nothing is awaited."""


def head_changes(page: Page, url: str, *, layers: range, num_heads: int) -> dict[str, list[float]]:
    """Return the milliseconds of each change of head: along the heads of these layers, and down from first to last."""
    along: list[float] = []
    down: list[float] = []
    for layer in layers:
        _open(page, url, layer)
        along += [_change(page, "ArrowRight") for _ in range(num_heads - 1)]
    _open(page, url, layers[0])
    for _ in range(layers[-1] - layers[0]):
        down.append(_change(page, "ArrowDown"))
    return {"the next head of the layer": along, "the same head, one layer further": down}


def _open(page: Page, url: str, layer: int) -> None:
    page.goto("about:blank")
    page.goto(f"{url}/#{urlencode({'view': 'attention', 'layer': layer, 'head': 0})}")
    page.locator(".head-pictures canvas").first.wait_for()
    page.wait_for_load_state("networkidle")  # the wall of all heads is still being drawn


def _change(page: Page, key: str) -> float:
    took = float(page.evaluate(_CHANGE, key))
    page.wait_for_timeout(_LOOK_MS)
    return took


def report_head_changes(page: Page, url: str, *, layers: range, num_heads: int) -> Iterator[str]:
    """Print the table, and yield the missed bounds."""
    print("\n| changes of head, 21 tokens | number | ms p50 | p95 | max |\n|---|---|---|---|---|")
    for name, times in head_changes(page, url, layers=layers, num_heads=num_heads).items():
        middle, late = (percentile(times, share) for share in (0.5, 0.95))
        print(f"| {name} | {len(times)} | {middle:.1f} | {late:.1f} | {max(times):.1f} |", flush=True)
        if middle > MOST_HEAD_CHANGE_MS:
            yield f"change of head, {name}: {middle:.1f} ms, over {MOST_HEAD_CHANGE_MS:.0f}"
