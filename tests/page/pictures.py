"""Draws the README's pictures of the page again: `python -m tests.page.pictures`. It needs Debian's chromium and
Pillow.
"""

import io
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import sync_playwright

from benchmarks.processes import ROOT, serve
from tests.page.conftest import settle

FOLDER = ROOT / "docs" / "pictures"
TEXT = "Once upon a time there was a little girl who lived with her grandmother in a house in the wood."
# name: the state of the page, light or dark, and what is scrolled to the top
PICTURES = {
    "attention": ({"view": "attention", "layer": 1, "head": 3, "query": 8, "key": 6}, "light", "h1"),
    "why": ({"view": "why", "layer": 1, "head": 3, "query": 8, "key": 6}, "light", "h1"),
    "contributions": ({"view": "contributions", "layer": 4, "head": 7, "query": 8, "key": 6}, "dark", "h1"),
    "lens": ({"view": "lens", "query": 8}, "dark", "h1"),
}


def draw() -> None:
    """Write each picture as a PNG of 200 colours."""
    FOLDER.mkdir(exist_ok=True)
    with serve(["--served-model-name", "fables"]) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for name, (state, scheme, start) in PICTURES.items():
            page = browser.new_page(
                viewport={"width": 1180, "height": 820}, color_scheme="dark" if scheme == "dark" else "light"
            )
            page.goto(f"{server.url}/#{urlencode({**state, 'text': TEXT})}")
            page.locator(f"#view-{name} h1").wait_for()
            settle(page)
            page.wait_for_timeout(1000)  # what follows from the first answers is asked, canvases are drawn
            settle(page)
            page.locator(start).first.evaluate("element => element.scrollIntoView()")
            page.wait_for_timeout(300)
            picture = Image.open(io.BytesIO(page.screenshot()))
            picture.convert("RGB").quantize(200).save(FOLDER / f"{name}.png", optimize=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    draw()
