"""Terms with explanations: pointed at, focused or tapped, in every view."""

import re

from playwright.sync_api import Browser, FloatRect, Page, expect

from tests.page.conftest import Open, box_of, new_page, settle, wait_until
from tests.support.processes import Server
from tests.test_page_source import PAGE, page_files

LINES = (PAGE / "parts" / "terms.js").read_text(encoding="utf-8").split("export const TERMS = {")[1].splitlines()
KNOWN = {found[1] for line in LINES if (found := re.match(r'  "?([^":]+)"?:', line))}

EXPLAINED = {
    "home": ["attention"],
    "chat": ["token", "vocabulary"],
    "attention": ["head", "query", "keys"],
    "why": ["attention", "weights", "RMSNorm", "residual stream", "RoPE", "query", "key", "q · k", "mask", "soft cap",
            "Softmax", "value", "W_O"],
    "contributions": ["head", "residual stream", "W_O", "logit", "cosine", "embedding"],
    "lens": ["logit lens", "residual stream", "unembedding", "Entropy", "nats"],
    "next": ["logit", "softmax", "temperature", "entropy", "nats", "perplexity"],
    "heads": ["head", "Induction", "attention sink", "nats"],
    "patching": ["Activation patching"],
    "flow": ["residual stream"],
    "journey": [],
    "moves": [],
    "embeddings": ["vector", "pooling", "cosine", "principal components"],
    "weights": ["parameters", "Welch bound", "effective rank", "circuits", "singular values"],
    "server": ["KV cache"],
}  # fmt: skip
"""The terms that a view explains, each once."""


def term(page: Page, word: str) -> tuple[str, str]:
    """Return the word's description for a screen reader, and the visible description."""
    button = page.locator("main .term", has_text=re.compile(f"^{word}$"))
    expect(button).to_have_count(1)
    return button.get_attribute("aria-description") or "", page.locator("main .term-says:visible").inner_text()


def test_every_explained_word_has_an_explanation() -> None:
    used = {word for path in page_files(".js") for word in re.findall(r'<\$\{Term\}\s+of="([^"]+)"', path.read_text())}
    assert len(used) > 20
    assert used <= KNOWN
    assert used | {"LayerNorm", "RMSNorm", "KV cache"} >= KNOWN, "an explanation that no view shows"


def check_terms(page: Page, view: str) -> None:
    """Assert that an open view explains its words once, where they are focused."""
    for word in EXPLAINED[view]:
        page.locator("main .term", has_text=re.compile(f"^{word}$")).focus()
        says, shown = term(page, word)
        assert len(says) > 30
        assert says == shown
    page.keyboard.press("Escape")
    expect(page.locator(".term-says:visible")).to_have_count(0)


def is_on_screen(box: FloatRect) -> bool:
    return 0 <= box["x"] <= 390 - box["width"] and 0 <= box["y"] <= 844 - box["height"]


def test_a_word_is_explained_by_mouse_and_finger_and_closed_again(browser: Browser, server: Server) -> None:
    with new_page(browser, viewport={"width": 390, "height": 844}, has_touch=True) as page:
        page.goto(f"{server.url}/#view=lens")
        settle(page)
        says = page.locator(".term-says:visible")
        words = page.locator("main .term")
        for word in (words.first, words.last):
            word.tap()
            wait_until(page, lambda: is_on_screen(box_of(says)))  # it follows the page, which scrolls to the word
            word.tap()
            expect(says).to_have_count(0)
        words.first.tap()
        page.locator("h1").tap()
        expect(says).to_have_count(0)
        words.first.hover()
        expect(says).to_have_count(1)
        says.hover()  # it can be reached with the pointer, to select its text
        expect(says).to_have_count(1)
        page.locator("h1").hover()
        expect(says).to_have_count(0)


BROKEN = """(word) => [...Array(40).keys()].filter((width) => {
  const line = document.createElement("p");
  line.style.cssText = `width: ${width + 4}ch; font-family: monospace`;
  line.append("a sum (of each ", word.cloneNode(true), ") of all");
  document.querySelector("main").append(line);
  const bracket = document.createRange();
  bracket.setStart(line.lastChild, 0);
  bracket.setEnd(line.lastChild, 1);
  const ends = [...line.querySelector(".term").getClientRects()].at(-1);
  const isBelow = bracket.getBoundingClientRect().top > ends.top + 5;
  line.remove();
  return isBelow;
})"""
"""A script that returns the widths at which a bracket after a word begins a line of its own."""


def test_no_line_begins_with_the_bracket_after_a_word(open_view: Open) -> None:
    page = open_view("next")
    assert page.locator("main .term-place").first.evaluate(BROKEN) == []
