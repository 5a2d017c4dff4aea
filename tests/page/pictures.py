"""Draws the pictures of the page in the documents again: `python -m tests.page.pictures`. It needs Debian's chromium
and Pillow.
"""

import io
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.page.conftest import settle
from tests.support.chromium import find_chromium
from tests.support.processes import ROOT, serve

FOLDER = ROOT / "docs" / "pictures"
STORY = "The old fox saw the young fox, and the young fox saw the old"
QUESTION = "The capital of France is"
# The induction head, and the head that adds most to the logit of " Paris".
INDUCTION = {"text": STORY, "layer": 18, "head": 6, "query": 14, "key": 2}
PARIS = {"text": QUESTION, "layer": 23, "head": 4, "query": 4, "key": 3}
# name: (state of the page, colour scheme, height in pixels); the lens needs more height for all layers
PICTURES = {
    "attention": ({"view": "attention", **INDUCTION}, "light", 820),
    "why": ({"view": "why", **INDUCTION}, "light", 820),
    "contributions": ({"view": "moves", "moves_as": "amounts", **PARIS, "contributions_target": " Paris"}, "dark", 820),
    "lens": (
        {"view": "lens", "text": "The Eiffel Tower is in the city of", "query": 8, "lens_target": " Paris"},
        "dark",
        1010,
    ),
}
TOUR = [
    *({"view": "attention", **PARIS, "layer": layer} for layer in (0, 8, 16, 23)),
    {"view": "moves", "moves_as": "amounts", **PARIS, "contributions_target": " Paris"},
    {"view": "lens", "text": QUESTION, "query": 4, "lens_target": " Paris"},
]
"""The states of the page in the README's moving picture."""


def draw() -> None:
    """Write each picture as a PNG of 200 colours, and the moving picture."""
    FOLDER.mkdir(exist_ok=True)
    with serve(["smollm2", "--served-model-name", "smollm2"]) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])

        def picture(state: dict[str, object], scheme: str, height: int) -> Image.Image:
            page = browser.new_page(
                viewport={"width": 1180, "height": height}, color_scheme="dark" if scheme == "dark" else "light"
            )
            page.goto(f"{server.url}/#{urlencode(state)}")
            page.locator(f"#view-{state['view']} h1").wait_for()
            settle(page)
            page.wait_for_timeout(1000)  # until the second requests are sent and canvases are drawn
            settle(page)
            page.locator("h1").first.evaluate("element => element.scrollIntoView()")
            page.wait_for_timeout(300)
            drawn = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            page.close()
            return drawn

        for name, (state, scheme, height) in PICTURES.items():
            picture(state, scheme, height).quantize(200).save(FOLDER / f"{name}.png", optimize=True)
        first, *others = (picture(state, "light", 820) for state in TOUR)
        first.save(FOLDER / "tour.webp", save_all=True, append_images=others, duration=1800, loop=0, quality=60)
        browser.close()


if __name__ == "__main__":
    draw()
