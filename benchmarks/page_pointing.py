"""Measure pointing at words in Chat, in headless Chromium with the server on the same machine: milliseconds from
pointing at a word of an answer to the painted estimate of its causes, and to their measurements.

With --check the exit status is 1 if the page misses a bound below.
"""

import argparse
from collections.abc import Iterator

from playwright.sync_api import Browser

from benchmarks.load import percentile
from benchmarks.page import main, open_chat, tab

MOST_CAUSES_MS = {"estimate": 500.0, "measured": 2000.0}
POINTED_WORDS = range(1, 40, 3)
"""Words of an answer of 60 tokens: none of the last eight, which are computed in advance."""
POINT = """(number) => new Promise((done) => {
  const walker = document.createTreeWalker(document.querySelector('.of-assistant .markdown'), NodeFilter.SHOW_TEXT);
  const boxes = [];
  while (walker.nextNode()) {
    for (const { index } of walker.currentNode.data.matchAll(/\\p{L}+/gu)) {
      const range = new Range();
      range.setStart(walker.currentNode, index);
      range.setEnd(walker.currentNode, index + 1);
      boxes.push(range.getBoundingClientRect());
    }
  }
  if (number >= boxes.length) return done(null);
  const { left, width, top, height } = boxes[number];
  const place = { clientX: left + width / 2, clientY: top + height / 2, pointerType: 'mouse', bubbles: true };
  const began = performance.now();
  const note = () => document.querySelector('.causes')?.textContent ?? '';
  const before = note();
  let estimate = null;
  const look = () => {
    const text = note() === before ? '' : note();
    if (/Estimate|Measured/.test(text)) estimate ??= performance.now() - began;
    if (text.includes('not known')) return done(null);
    if (text.includes('Measured')) return done([estimate, performance.now() - began]);
    requestAnimationFrame(look);
  };
  document.elementFromPoint(place.clientX, place.clientY).dispatchEvent(new PointerEvent('pointermove', place));
  requestAnimationFrame(look);
})"""
"""Points at a word and answers, in ms, when its estimate and its measurements have been painted."""


def report(browser: Browser, url: str, options: argparse.Namespace) -> Iterator[str]:
    """Point at words with causes that are not known yet. The page waits 120 ms before its first request. Yields the
    missed bounds.
    """
    print("| causes of a word | number | ms p50 | p95 | max |\n|---|---|---|---|---|")
    found: dict[str, list[float]] = {name: [] for name in MOST_CAUSES_MS}
    with tab(browser) as (_, page):
        open_chat(page, url)
        page.get_by_role("button", name="Settings", exact=True).click()
        page.locator(".chat-settings").get_by_label("Most tokens", exact=True).fill("60")
        page.locator("#message").fill("Explain attention in a transformer in three sentences.")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Stop", exact=True).wait_for()
        page.get_by_role("button", name="Send", exact=True).wait_for()
        page.wait_for_load_state("networkidle")  # the last words are computed
        for number in POINTED_WORDS:
            for times, milliseconds in zip(found.values(), page.evaluate(POINT, number) or (), strict=False):
                times.append(float(milliseconds))
    for name, times in found.items():
        middle, late = (percentile(times, share) for share in (0.5, 0.95))
        print(f"| {name} | {len(times)} | {middle:.0f} | {late:.0f} | {max(times):.0f} |", flush=True)
        if middle > MOST_CAUSES_MS[name]:
            yield f"causes of a word, {name}: {middle:.0f} ms, over {MOST_CAUSES_MS[name]:.0f}"


if __name__ == "__main__":
    main({"pointing": report}, __doc__)
