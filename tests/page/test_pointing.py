"""Causes and sources in Chat: the words that a pointed word depends on, and the parts of a document behind a sentence,
with the API's numbers.
"""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Request, Route, expect

from tests.page.chats import answers, ended, open_chat, send, settings
from tests.page.conftest import (
    PATIENCE_MS,
    SIZE,
    ask,
    new_page,
    percent,
    requests_of,
    take_precision,
    wait_until,
    written,
)
from tests.page.test_accessibility import serious
from tests.support.processes import Server

QUESTION = "Tell me of the wolf and the lamb"
DOCUMENT = (
    "The wolf lived in the dark wood. The lamb drank from the clear brook. One day the wolf came to the brook, "
    "and he saw the lamb. The farmer had a dog and a long stick."
)
LEVELS = 5
WORDS = """() => {
  const boxes = [];
  const walker = document.createTreeWalker(document.querySelector(".of-assistant .markdown"), NodeFilter.SHOW_TEXT);
  const segmenter = new Intl.Segmenter("en", { granularity: "word" });
  while (walker.nextNode()) {
    for (const { segment, index, isWordLike } of segmenter.segment(walker.currentNode.data)) {
      if (!isWordLike) continue;
      const range = new Range();
      range.setStart(walker.currentNode, index);
      range.setEnd(walker.currentNode, index + segment.length);
      const { left, top, width, height } = range.getBoundingClientRect();
      boxes.push([segment, left + width / 2, top + height / 2]);
    }
  }
  return boxes;
}"""
COLOURS = """() => Object.fromEntries([...CSS.highlights].filter(([, ranges]) => ranges.size)
  .map(([name, ranges]) => [name, [...ranges].map(String)]))"""


class Asked:
    """An answer of the API to the page's request: its tokens, and the numbers that explain one of them."""

    def __init__(self, server: Server) -> None:
        take_precision(server)
        self.server = server
        messages = [{"role": "user", "content": QUESTION}]
        body = {"messages": messages, "max_tokens": 9, "temperature": 0, "return_token_ids": True}
        (choice,) = ask(server, "/v1/chat/completions", body)["choices"]
        self.prompt = ask(server, "/tokenize", {"messages": messages})["tokens"]
        self.ids = [*self.prompt, *choice["token_ids"]]
        echo = self.logprobs()
        self.tokens: list[str] = echo["tokens"]
        self.chances = echo["token_logprobs"]

    def logprobs(self, without: range = range(0)) -> dict[str, Any]:
        """Return the log-probabilities of all tokens, if some of them are invisible."""
        hidden = [None if place in without else 0 for place in range(len(self.ids))]
        change = {"point": "attn.hook_attn_scores", "layer": "all", "op": "add", "value": [[hidden]]}
        body = {"prompt": self.ids, "echo": True, "max_tokens": 0, "logprobs": 0}
        found: dict[str, Any] = ask(
            self.server, "/v1/completions", {**body, "interventions": [change]} if without else body
        )["choices"][0]["logprobs"]
        return found

    def reasons(self, at: int, by: str) -> list[dict[str, Any]]:
        """Return the parts of the logit of the token at a place, minus the logit of the likeliest other token."""
        body = {"input": self.ids[:at], "num_tokens": 0, "explain": {"by": by, "versus": self.ids[at]}}
        parts = ask(self.server, "/v1/next", body)["data"][0]["reasons"]["parts"]
        return [{**part, "value": -part["value"]} for part in parts]

    def words(self) -> list[tuple[str, int, int]]:
        """Return the words with the ranges of their tokens; the first token belongs to none."""
        found: list[tuple[str, int, int]] = []
        for place, token in enumerate(self.tokens):
            if place and token.strip() and (token[0] == " " or self.tokens[place - 1] == "\n"):
                found.append((token.strip(), place, place + 1))
            elif place and token.strip():
                text, first, _ = found.pop()
                found.append((text + token, first, place + 1))
        return found

    def estimates(self, at: int) -> list[tuple[str, float]]:
        values = [part["value"] for part in self.reasons(at, "word")]
        return [(text, sum(values[first:last])) for text, first, last in self.words() if last <= at]

    def effects(self, at: int) -> list[tuple[str, float, float]]:
        """Return the five words with the largest estimates, how much the log-probability falls without each, and the
        probability that is left.
        """
        order = sorted(zip(self.estimates(at), self.words(), strict=False), key=lambda pair: -abs(pair[0][1]))[:5]
        left = [(text, self.logprobs(range(first, last))["token_logprobs"][at]) for _, (text, first, last) in order]
        return [(text, self.chances[at] - logprob, math.exp(logprob)) for text, logprob in left]


def colours_of(causes: Sequence[tuple[str, float]]) -> dict[str, list[str]]:
    """Return the words of each colour for words with these values."""
    most = max(abs(value) for _, value in causes)
    found: dict[str, list[str]] = {}
    for word, value in causes:
        level = math.floor(LEVELS * abs(value) / most + 0.5)
        if level:
            found.setdefault(f"cause{'' if value > 0 else '-'}{level}", []).append(word)
    return found


@pytest.fixture(scope="module")
def asked(server: Server) -> Asked:
    return Asked(server)


def opened(page: Page, server: Server) -> None:
    """Write the answer of `Asked`."""
    open_chat(page, server)
    settings(page, Most_tokens="9", Temperature="0")
    page.get_by_role("button", name="Close the settings").click()
    send(page, QUESTION)


def point(page: Page, number: int, *, click: bool = False) -> None:
    """Move the pointer to a word of the answer."""
    _, x, y = page.evaluate(WORDS)[number]
    page.mouse.move(x, y)
    if click:
        page.mouse.click(x, y)


def told(page: Page) -> Locator:
    return page.locator("p.causes")


class Held:
    """Holds the page's requests that remove words, until they are let go."""

    def __init__(self, page: Page) -> None:
        self.routes: list[Route] = []
        self._is_open = False
        page.route("**/v1/completions", self._came)

    def _came(self, route: Route) -> None:
        if self._is_open or "interventions" not in (route.request.post_data_json or {}):
            route.continue_()
        else:
            self.routes.append(route)

    def let_go(self) -> None:
        self._is_open = True
        for route in self.routes:
            route.continue_()


WORD = 4
"""A word of the answer that is one token."""


def test_a_words_causes_are_the_apis_estimate_and_then_its_measurements(
    page: Page, server: Server, asked: Asked
) -> None:
    held = Held(page)
    opened(page, server)
    at = len(asked.prompt) + WORD
    point(page, WORD)
    estimates = asked.estimates(at)
    strongest = sorted(estimates, key=lambda each: -abs(each[1]))[:3]
    says = ", ".join(f"“{text}” {'+' if value > 0 else ''}{written(value)}" for text, value in strongest)
    word = asked.tokens[at].strip()
    begin = f"“{word}” had {percent(math.exp(asked.chances[at]))}."
    expect(told(page)).to_have_text(f"{begin} Estimate: {says}. Click for the strongest head.")
    expected = {"cause-word": [word], **colours_of(estimates)}
    assert page.evaluate(COLOURS) == expected
    assert all(asked.tokens[0] not in words for words in expected.values())  # it is attended to without a reason
    held.let_go()
    effects = asked.effects(at)
    expect(told(page)).to_contain_text("Measured: ")
    strongest_three = sorted(effects, key=lambda each: -abs(each[1]))[:3]
    says = ", ".join(f"{percent(left)} without “{text}”" for text, _, left in strongest_three)
    expect(told(page)).to_have_text(f"{begin} Measured: {says}. Click for the strongest head.")
    expected = {"cause-word": [word], **colours_of([(text, value) for text, value, _ in effects])}
    assert {name: sorted(words) for name, words in page.evaluate(COLOURS).items()} == {
        name: sorted(words) for name, words in expected.items()
    }
    page.mouse.move(1, 1)
    expect(told(page)).to_have_count(0)
    assert page.evaluate(COLOURS) == {}


def test_a_click_opens_why_with_the_strongest_head(page: Page, server: Server, asked: Asked) -> None:
    opened(page, server)
    at = len(asked.prompt) + WORD
    best = max(asked.reasons(at, "head"), key=lambda part: float(part["value"]))
    point(page, WORD)
    expect(told(page)).to_be_visible()
    point(page, WORD, click=True)
    expect(page.locator(".why-head")).to_contain_text(f"Layer {best['layer']}, head {best['head']}.")
    expect(page.locator(".why-head .word.query").first).to_have_text(f"{asked.tokens[at - 1].strip()}{at - 1}")
    page.go_back()
    expect(answers(page)).to_have_count(1)


def is_ahead(request: Request) -> bool:
    return request.method == "POST" and (request.post_data_json or {}).get("priority") == 1000


def test_the_last_words_are_computed_before_they_are_pointed_at(page: Page, server: Server) -> None:
    with requests_of(page) as sent:
        opened(page, server)
        wait_until(page, lambda: sum(request.url.endswith("/v1/next") for request in sent) == 8)
        point(page, 3)
        expect(told(page)).to_contain_text("Measured: ")
        assert all(is_ahead(request) for request in sent if request.url.endswith(("/v1/next", "/v1/completions")))


def test_work_ahead_ends_when_a_message_is_sent(page: Page, server: Server) -> None:
    held = Held(page)
    opened(page, server)
    wait_until(page, lambda: len(held.routes) > 0)
    num_held = len(held.routes)
    failed: list[Request] = []
    page.on("requestfailed", lambda request: failed.append(request) if is_ahead(request) else None)
    page.locator("#message").fill("And the dog?")
    page.locator("#message").press("Enter")
    wait_until(page, lambda: len(failed) >= num_held)
    assert all("interventions" in request.post_data_json for request in failed[:num_held])
    ended(page)


def test_words_are_pointed_at_by_keys_and_axe_finds_nothing(open_page: Page, server: Server, asked: Asked) -> None:
    page = open_page
    opened(page, server)
    page.locator(".of-assistant .markdown").focus()
    page.keyboard.press("ArrowRight")
    expect(told(page)).to_contain_text(f"“{asked.tokens[len(asked.prompt)]}” had")
    page.keyboard.press("ArrowRight")
    expect(told(page)).to_contain_text(f"“{asked.tokens[len(asked.prompt) + 1].strip()}” had")
    expect(told(page)).to_contain_text("Measured: ")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert not serious(page)
    page.keyboard.press("Escape")
    expect(told(page)).to_have_count(0)
    page.keyboard.press("ArrowLeft")
    expect(told(page)).to_be_visible()
    point(page, WORD)
    expect(told(page)).to_contain_text(f"“{asked.tokens[len(asked.prompt) + WORD].strip()}” had")
    page.locator(".of-assistant").evaluate(
        "one => one.dispatchEvent(new KeyboardEvent('keydown', { key: 'Enter', bubbles: true }))"
    )
    page.keyboard.press("ArrowRight")
    expect(told(page)).to_contain_text(f"“{asked.tokens[len(asked.prompt) + WORD + 1].strip()}” had")
    page.keyboard.press("Enter")
    expect(page.locator("#view-why")).to_be_visible()


HIDE_ANSWER = """() => {
  const answer = document.querySelector(".of-assistant");
  const box = document.querySelector(".chat-column").parentElement;
  answer.style.marginTop = "3000px";
  box.scrollTop = 0;
}"""
"""A script that moves the answer out of sight, far below."""
POINTED = """() => {
  const [range] = CSS.highlights.get("cause-word") ?? [];
  return range?.getBoundingClientRect().top;
}"""
"""A script with the distance of the word that is pointed at from the top of the window, in pixels."""


def test_a_word_that_keys_point_at_is_scrolled_into_view(page: Page, server: Server) -> None:
    opened(page, server)
    page.locator(".of-assistant .markdown").focus()
    page.evaluate(HIDE_ANSWER)
    page.keyboard.press("ArrowRight")
    expect(told(page)).to_be_visible()
    assert 0 < page.evaluate(POINTED) < SIZE["height"]


def test_the_first_tap_points_and_the_second_opens(browser: Browser, server: Server) -> None:
    phone: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    with new_page(browser, **phone) as page:
        opened(page, server)
        _, x, y = page.evaluate(WORDS)[WORD]
        page.touchscreen.tap(x, y)
        expect(told(page)).to_contain_text("Measured: ")
        note = told(page).bounding_box()
        assert note is not None
        assert note["x"] >= 0
        assert note["x"] + note["width"] <= 390
        page.touchscreen.tap(x, y)
        expect(page.locator("#view-why")).to_be_visible()


def ask_about(page: Page, server: Server) -> None:
    """Send a question with a document as a file."""
    open_chat(page, server)
    settings(page, Most_tokens="40", Temperature="0")
    page.get_by_role("button", name="Close the settings").click()
    file = {"name": "fable.txt", "mimeType": "text/plain", "buffer": DOCUMENT.encode()}
    page.locator(".composer input[type=file]").set_input_files(file)
    send(page, "Tell me of the lamb")


def test_a_sentence_has_marks_for_the_parts_of_the_document_it_depends_on(page: Page, server: Server) -> None:
    take_precision(server)
    bodies: list[dict[str, Any]] = []
    page.on(
        "request", lambda each: bodies.append(each.post_data_json) if each.url.endswith("/chat/completions") else None
    )
    ask_about(page, server)
    assert bodies[0]["explain"] == {"by": "span", "verify": 3}
    content = bodies[0]["messages"][0]["content"]
    (choice,) = ask(server, "/v1/chat/completions", {**bodies[0], "stream": False})["choices"]
    labels, texts = [], []
    names: list[str] = []
    for sentence in choice["reasons"]:
        for row in sorted(sentence["verify"], key=lambda row: float(row["effect"])):
            part = sentence["parts"][row["span"]]
            text = content[part["start"] : part["end"]]
            if row["effect"] > -1 or text not in DOCUMENT:
                continue
            if text not in names:
                names.append(text)
            effect = "over a million" if row["effect"] < -14 else written(math.exp(-row["effect"]), 2)
            label = f"Measured: without “{text}” this sentence is {effect} times less likely."
            labels.append(f"Source {names.index(text) + 1}. {label}")
            texts.append(text)
    assert labels
    marks = page.locator(".of-assistant .markdown sup button")
    expect(marks).to_have_count(len(labels), timeout=PATIENCE_MS)
    assert [mark.get_attribute("aria-label") for mark in marks.all()] == labels
    marks.first.hover()
    wait_until(page, lambda: page.evaluate(COLOURS) == {"source": [texts[0]]})
    expect(page.locator(".tooltip")).to_have_text(labels[0].partition(". ")[2])
    page.mouse.move(1, 1)
    wait_until(page, lambda: page.evaluate(COLOURS) == {})
    marks.first.click()
    expect(page.locator(".panel pre")).to_be_in_viewport()
    page.reload()
    expect(marks).to_have_count(len(labels))
    answers(page).get_by_role("button", name="X-ray").click()
    answers(page).get_by_role("button", name="X-ray").click()
    expect(marks).to_have_count(len(labels))


@pytest.mark.parametrize(
    "error",
    [
        {"message": "explain: too many tokens.", "param": "explain", "code": "reasons_too_large"},
        {"message": "This request would capture too much.", "code": "capture_too_large"},
    ],
)
def test_sources_that_cost_too_much_are_refused_in_a_sentence_and_the_answer_arrives(
    page: Page, server: Server, error: dict[str, str]
) -> None:
    bodies: list[dict[str, Any]] = []

    def refuse(route: Route) -> None:
        body = route.request.post_data_json
        bodies.append(body)
        if "explain" not in body:
            route.continue_()
            return
        route.fulfill(status=413, json={"error": error})

    page.route("**/v1/chat/completions", refuse)
    ask_about(page, server)
    assert ["explain" in body for body in bodies] == [True, False]
    expect(answers(page).locator(".markdown")).not_to_be_empty()
    expect(answers(page)).to_contain_text(
        "The sources of this answer were not measured: they cost more than this server accepts. "
        "Choose fewer “Most tokens” in the settings."
    )
    expect(answers(page).locator(".problem, sup")).to_have_count(0)
