"""The code from "Copy as…" runs unchanged and prints the page's numbers; its menus do not move the keyboard focus."""

import contextlib
import io
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.chats import write
from tests.page.conftest import KEY as SECRET
from tests.page.conftest import Open, percent, sent_to, settle, wait_until
from tests.support.processes import Server

pytestmark = pytest.mark.usefixtures("kept_page")

LAYER, HEAD, QUERY, KEY = 1, 3, 7, 6
STATE = {
    "layer": LAYER, "head": HEAD, "query": QUERY, "key": KEY, "write_max_tokens": 3, "write_temperature": 0,
    "heads_on": "text", "flow_open": "hook_resid_pre",
}  # fmt: skip


def copied(page: Page, menu: Locator, what: str) -> str:
    """Return the text that an entry of this menu copies."""
    page.evaluate("navigator.clipboard.writeText('')")
    menu.click()
    menu.locator("xpath=..").get_by_role("button", name=what, exact=True).click()
    wait_until(page, lambda: page.evaluate(CLIPBOARD) != "")
    return str(page.evaluate(CLIPBOARD))


CLIPBOARD = "navigator.clipboard.readText()"


def output_of(*command: str, **environment: str) -> str:
    everything = {**os.environ, **environment}
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, env=everything, check=False)
    assert run.returncode == 0, f"{command[-1]}\n{run.stderr}"
    return run.stdout


def run_python(text: str) -> Any:
    """Run the copied Python, check that it prints its answer, and return its `answer`."""
    space: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(text, space)  # in this process: starting another one takes longer than the whole test
    space["client"].close()
    assert printed.getvalue().strip()
    return space["answer"]


NUMBER = r"([−\d][\d.\u202f]*(?:e[−\d]+)?(?:\s?%)?)"


def number_in(page: Page, where: str, pattern: str = NUMBER) -> float:
    """Return the number on the page in the element `where`."""
    text = page.locator(where).first.inner_text()
    found = re.search(pattern, text)
    assert found, f"{pattern} in {text}"
    number = re.sub(r"[\s\u202f]", "", found[1]).replace("−", "-")
    return float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)


@dataclass(frozen=True)
class Shown:
    """A number of the page, and where it is in curl's JSON and in the client's answer."""

    where: str
    pattern: str
    of_json: Callable[[Any], float]
    of_python: Callable[[Any], float]
    within: float = 0.0  # in addition to the digits that the page leaves out
    is_share: bool = False  # a percentage, which has two digits


def array(name: str, *place: int) -> tuple[Callable[[Any], float], Callable[[Any], float]]:
    """Return how to read one number of an answer's array, in JSON and in Python."""
    return (
        lambda answer: float(np.array(answer["data"][0]["arrays"][name]["data"], float)[place]),
        lambda answer: float(answer[name][place]),
    )


def length_of_row(row: int) -> tuple[Callable[[Any], float], Callable[[Any], float]]:
    """Return how to read the length of one position's vector that enters the block, in JSON and in Python."""
    name = f"blocks.{LAYER}.hook_resid_pre"
    return (
        lambda answer: float(np.linalg.norm(answer["data"][0]["points"][name]["data"][row])),
        lambda answer: float(np.linalg.norm(answer[name][row])),
    )


def cosines_of_first(vectors: Any) -> float:
    """Return the cosine of the first text with its nearest text."""
    unit = np.array(vectors) / np.linalg.norm(vectors, axis=1, keepdims=True)
    return float(np.sort(unit @ unit[0])[-2])


def summed_length(vectors: Any) -> float:
    """Return the length of the vectors [layer, 1, key, d_model] of the word at position 5, summed over the layers."""
    return float(np.linalg.norm(np.array(vectors, float)[:, 0, 5].sum(0)))


def weight(*place: int) -> tuple[Callable[[Any], float], Callable[[Any], float]]:
    return (
        lambda answer: float(np.array(answer["data"][0]["attention"])[place]),
        lambda answer: float(answer.attention[place]),
    )


def perplexity(logprobs: list[float | None]) -> float:
    return math.exp(-np.mean([value for value in logprobs if value is not None]))


HEAD_READOUT = Shown(".head-pictures .readout", rf": {NUMBER} ·", *weight(0, 0, QUERY, KEY))
LENGTH = (".statistics tbody tr", rf"length\s+{NUMBER}")
SHOWN: dict[str, list[Shown]] = {
    "attention": [
        Shown(HEAD_READOUT.where, HEAD_READOUT.pattern,
              lambda answer: answer["data"][0]["attention"][LAYER][HEAD][QUERY][KEY] / 255,
              lambda answer: float(answer.attention[LAYER, HEAD, QUERY, KEY]) / 255, within=0.5 / 255),
        HEAD_READOUT,
    ],
    "why": [Shown("#why-weight", NUMBER, *array("weights", KEY))],
    "contributions": [
        Shown("#logit-sum", NUMBER, lambda answer: sum(answer["data"][0]["arrays"]["components"]["data"][0]),
              lambda answer: float(answer["components"].sum())),
        Shown(".line-head + .hint", rf"from length {NUMBER}", *array("norms", 0, 0)),
        Shown("#reasons-value", NUMBER, lambda answer: answer["data"][0]["reasons"]["value"],
              lambda answer: answer.reasons.value),
    ],
    "motion": [
        Shown(".motion-table tbody tr:nth-child(7)", rf"\(5\)\s+{NUMBER}",
              lambda answer: summed_length(answer["data"][0]["arrays"]["vectors"]["data"]),
              lambda answer: summed_length(answer["vectors"])),
    ],
    "lens": [
        Shown(".lens-said .readout", rf"\): \S+ {NUMBER}", *array("probabilities", -1, QUERY, 0), is_share=True),
        Shown(".lens-rows", rf"rank {NUMBER} of", *array("target_ranks", 0, 0)),
    ],
    "next": [
        Shown(".facts", rf"entropy\s+{NUMBER} nats", lambda answer: answer["data"][0]["temperatures"][0]["entropy"],
              lambda answer: float(answer.temperatures[0].entropy)),
        Shown(".text-score", rf"text {NUMBER}:",
              lambda answer: perplexity(answer["choices"][0]["logprobs"]["token_logprobs"]),
              lambda answer: perplexity(answer.choices[0].logprobs.token_logprobs)),
    ],
    "heads": [Shown(".heads-found .readout", rf"previous token {NUMBER}", *array("scores", LAYER, HEAD, 0))],
    "flow": [Shown(*LENGTH, *length_of_row(0)), Shown(*LENGTH, *length_of_row(QUERY))],
    "embeddings": [
        Shown(".bars tbody tr", rf"{NUMBER}$",
              lambda answer: cosines_of_first([entry["embedding"] for entry in answer["data"]]),
              lambda answer: cosines_of_first(answer.matrix)),
    ],
    "weights": [
        Shown(".weights-view .card", rf"{NUMBER} parameters", lambda answer: answer["total"],
              lambda answer: answer.total),
        Shown("[aria-label='Figures of the cosines']", rf"spread \(std\)\s+{NUMBER}",
              lambda answer: answer["data"][0]["cosines"]["std"], lambda answer: answer.cosines.std),
        Shown(".weights-view .legend >> text=effective", rf"rank {NUMBER}", *array("ov.effective_rank", 0, 0)),
    ],
}  # fmt: skip
"""For each view, a number in the code that each of its menus copies, in the order of the menus."""


@pytest.mark.parametrize("view", SHOWN)
def test_what_a_view_copies_gives_its_numbers(open_view: Open, view: str) -> None:
    page = open_view(view, **STATE)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    menus = page.get_by_role("button", name="Copy as…")
    expect(menus).to_have_count(len(SHOWN[view]))
    for number, shown in enumerate(SHOWN[view]):
        answer = json.loads(output_of("bash", "-c", copied(page, menus.nth(number), "curl")))
        expect(menus.nth(number)).to_be_focused()
        seen = number_in(page, shown.where, shown.pattern)
        assert shown.of_json(answer) == pytest.approx(seen, rel=6e-2 if shown.is_share else 6e-3, abs=shown.within)
        python = run_python(copied(page, menus.nth(number), "Python"))
        assert shown.of_python(python) == pytest.approx(shown.of_json(answer), rel=1e-5)
        expect(menus.nth(number)).to_be_focused()


def test_what_is_written_and_why_is_copied(open_view: Open) -> None:
    page = open_view("chat", chat_mode="text", **STATE)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    write(page)
    told = page.locator(".prose").inner_text()
    menus = page.get_by_role("button", name="Copy as…")
    answer = json.loads(output_of("bash", "-c", copied(page, menus.first, "curl")))
    assert told.endswith(answer["choices"][0]["text"].strip())
    assert run_python(copied(page, menus.first, "Python")).choices[0].text == answer["choices"][0]["text"]
    page.locator(".prose button").nth(1).click()
    settle(page)
    expect(menus).to_have_count(2)
    found = json.loads(output_of("bash", "-c", copied(page, menus.last, "curl")))["data"][0]["temperatures"][0]
    likeliest = page.locator(".token-card .bars tbody tr").first.locator("td.number")
    expect(likeliest).to_have_text(percent(found["tokens"][0]["probability"]))
    assert run_python(copied(page, menus.last, "Python")).temperatures[0].entropy == found["entropy"]


def test_the_metrics_are_copied_as_curl(open_view: Open) -> None:
    page = open_view("server")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    menu = page.get_by_role("button", name="Copy as…")
    expect(menu).to_have_count(1)
    metrics = output_of("bash", "-c", copied(page, menu, "curl"))
    assert re.search(r"^lightwell_num_requests_running\b.* \d+(\.0)?$", metrics, re.MULTILINE)


def test_a_copied_request_names_the_key_but_does_not_hold_it(page: Page, guarded: Server) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{guarded.url}/#view=lens&text=The+old+king")
    page.get_by_label("API key").fill(SECRET)
    page.get_by_role("button", name="Use it").click()
    settle(page)
    for what, *command in (("curl", "bash", "-c"), ("Python", sys.executable, "-c")):
        text = copied(page, page.get_by_role("button", name="Copy as…").first, what)
        assert SECRET not in text
        assert "fables" in output_of(*command, text, LIGHTWELL_API_KEY=SECRET)


def test_copying_works_where_browsers_lend_no_clipboard(page: Page, server: Server) -> None:
    """Use plain http with another host's name, which is no secure context: navigator.clipboard is missing there."""
    outer = "http://elsewhere.invalid"
    page.route("**/*", sent_to(server, outer))
    page.goto(f"{outer}/#view=lens&text=The+old+king")
    settle(page)
    assert page.evaluate("navigator.clipboard === undefined")
    page.get_by_role("button", name="Copy as…").first.click()
    page.get_by_role("button", name="curl", exact=True).click()
    expect(page.get_by_text("Copied")).to_have_count(1)
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Chat").click()
    page.get_by_role("button", name="Text", exact=True).click()
    page.locator("#message").fill("")
    page.locator("#message").press("Control+v")
    assert page.locator("#message").input_value().startswith(f"curl -s '{outer}/v1/lens' --json")
