"""Markdown in Chat: elements, colours and formulas, the same while it arrives and at the end."""

import json

from playwright.sync_api import Browser, Page, expect

from tests.page.chats import Scripted, answers, open_chat, send, stream_of
from tests.page.conftest import new_page
from tests.page.test_accessibility import serious
from tests.support.processes import Server

TEXT = r"""# Title

Some **bold**, *slanted*, ~~struck~~, `a < b`, a [link](https://example.com/?a=1&b=2)
&amp; &copy; &#8594; &nope; a sum $\sum_{i=1}^n x_i^2$.

1. one
   - inner
   - [x] done
2. two

> quoted

$$
\frac{a}{\sqrt{b}} = \begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}
$$

```python
def half(x):
    return x / 2  # a half
```

| name | size |
|:-----|-----:|
| a    | 1    |

Costs $5 or $6, and \unknown stays. ![a fox](https://pictures.invalid/fox.png)

---

The end[^1] <kbd>x</kbd>
line two
"""


def test_markdown_becomes_elements(page: Page, server: Server) -> None:
    open_chat(page, server)
    Scripted(page, stream_of(TEXT))
    send(page, "Show me")
    shown = answers(page).locator(".markdown")
    expect(shown.locator("figure.code .is-keyword")).to_have_text(["def", "return"])
    expect(shown.locator("figure.code .is-comment")).to_have_text("# a half")
    expect(shown.locator("strong")).to_have_text("bold")
    expect(shown.get_by_role("heading", name="Title")).to_be_visible()
    expect(shown.locator("code").first).to_have_text("a < b")
    expect(shown.locator("ol > li")).to_have_count(2)
    expect(shown.locator("ol ul li")).to_have_text(["inner", "☑ done"])
    expect(shown.locator("blockquote")).to_have_text("quoted")
    expect(shown.locator("td")).to_have_text(["a", "1"])
    expect(shown.locator("td").last).to_have_css("text-align", "right")
    expect(shown.locator("p").first).to_contain_text("& © → &nope; a sum")
    link = shown.get_by_role("link", name="link", exact=True)
    expect(link).to_have_attribute("href", "https://example.com/?a=1&b=2")
    expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")
    expect(shown.locator("math")).to_have_count(2)
    expect(shown.locator("math mfrac msqrt")).to_have_count(1)
    expect(shown.locator("math munderover")).to_have_count(1)
    expect(shown.locator("math msubsup")).to_have_count(1)
    expect(shown.locator("mtable mtd")).to_have_text(["1", "0", "0", "1"])
    expect(shown).to_contain_text("Costs $5 or $6, and \\unknown stays.")
    expect(shown.get_by_role("link", name="[image: a fox]")).to_be_visible()
    expect(shown.locator("img")).to_have_count(0)
    expect(shown).to_contain_text("<kbd>x</kbd>")


STREAM = """
window.fetch = ((own) => async (url, options) => {
  if (!String(url).endsWith("chat/completions")) return own(url, options);
  const body = new ReadableStream({ start(controller) { window.stream = controller; } });
  return new Response(body, { status: 200 });
})(window.fetch);
window.arrives = (text) => window.stream.enqueue(new TextEncoder().encode(text));
"""


def test_what_arrives_bit_by_bit_is_read_like_the_whole(browser: Browser, server: Server) -> None:
    """Compare the elements at several moments of a stream with the elements of the same text in one piece."""
    events = stream_of(TEXT).split("\n\n")[:-3]  # without the end
    with new_page(browser) as page:
        page.add_init_script(STREAM)
        open_chat(page, server)
        page.locator("#message").fill("Show me")
        page.keyboard.press("Enter")
        page.locator(".waiting").wait_for()
        said = ""
        for number, one in enumerate(events):
            page.evaluate("text => window.arrives(text)", f"{one}\n\n")
            said += json.loads(one.removeprefix("data: "))["choices"][0]["delta"].get("content") or ""
            page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            if number % 20 and number < len(events) - 1:
                continue
            assert page.evaluate(SAME, said), said[-80:]


SAME = """async (text) => {
  const { later, use } = await import(document.querySelector("script[type=module]").src);
  const { Growing } = await later("views/chat/markdown.js");
  const shown = document.querySelector(".markdown");
  if (!shown) return text === "";
  const kinds = new Growing().read(text, true).filter(({ type }) => type !== "space" && type !== "def");
  return shown.children.length === kinds.length && shown.textContent.length > 0;
}"""


FORMULAS = {
    r"\alpha + \varphi \not= \infty": "α+φ≠∞",
    r"\mathbb{R} \otimes \gtrsim \nope": "ℝ⊗≳\\nope",
    r"\lim_{x \to 0} \sqrt[3]{x}": "limx→0x3",
    r"f'(x) = \left\{ \binom{n}{k} \right.": "f′(x)={(nk)",
    r"\hat y \ldots \lVert \text{a $b$}\rVert": "y^…‖a $b$‖",
}
"""Formulas and the text of their MathML."""


def test_formulas_have_the_characters_of_their_commands(page: Page, server: Server) -> None:
    open_chat(page, server)
    Scripted(page, stream_of("\n\n".join(f"\\({formula}\\)" for formula in FORMULAS)))
    send(page, "Show me")
    expect(answers(page).locator("math")).to_have_text([*FORMULAS.values()])


def test_markdown_has_no_barrier(open_page: Page, server: Server) -> None:
    page = open_page
    open_chat(page, server)
    Scripted(page, stream_of(TEXT, reasoning="Hm."))
    send(page, "Show me")
    expect(answers(page).locator("figure.code .is-keyword").first).to_be_visible()
    page.get_by_role("button", name="Settings", exact=True).click()
    for size in ({"width": 1280, "height": 900}, {"width": 390, "height": 844}):
        page.set_viewport_size(size)  # type: ignore[arg-type]
        for scheme in ("dark", "light"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            expect(page.locator("html")).to_have_attribute("data-theme", scheme)
            assert not serious(page, impacts=("minor", "moderate", "serious", "critical")), (size, scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        page.keyboard.press("Escape")
