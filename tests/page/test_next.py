"""The view Next token: its numbers are the API's at any options, filters are the server's; a click writes a token."""

import math
import re

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import TEXT, Open, ask, percent, requests_of, settle, written
from tests.support.processes import Server

pytestmark = pytest.mark.usefixtures("kept_page")

OPTIONS = {"temperature": 0.7, "top_k": 30, "top_p": 0.9, "min_p": 0.02}


def fact(page: Page, name: str) -> list[str]:
    """Return the texts under that name: the number, and the note below it."""
    lines: list[str] = page.locator(".facts > div", has=page.get_by_text(name, exact=True)).inner_text().splitlines()
    return [line for line in lines if line][1:]


def test_the_distribution_is_the_samplers_before_and_after_truncation(open_view: Open, server: Server) -> None:
    page = open_view("next", query=6, **{f"next_{name}": value for name, value in OPTIONS.items()})
    filters = {name: OPTIONS[name] for name in ("top_k", "top_p", "min_p")}
    body = {"input": TEXT, "position": 6, "temperatures": [OPTIONS["temperature"]], "num_tokens": 20, **filters}
    right = ask(server, "/v1/next", body)["data"][0]["temperatures"][0]
    entropy, kept = right["entropy"], right["kept_entropy"]
    assert fact(page, "entropy")[:2] == [f"{written(entropy)} nats", f"{written(entropy / math.log(2))} bits"]
    assert fact(page, "perplexity")[0] == written(math.exp(entropy))
    assert fact(page, "entropy of the kept")[:2] == [f"{written(kept)} nats", f"perplexity {written(math.exp(kept))}"]
    assert fact(page, "kept")[0] == f"{right['num_kept']} of 4\u202f096"
    rows = page.locator(".likeliest tbody tr")
    for place, token in enumerate(right["tokens"]):
        row = rows.nth(place)
        expect(row.locator(".token")).to_have_text(token["token"].replace(" ", "·"))
        expect(row.locator(".number").first).to_have_text(percent(token["probability"]))
        if token["kept_probability"] > 0:
            expect(row.locator(".number").last).to_have_text(percent(token["kept_probability"]))
        else:
            expect(row.locator(".why-cut")).to_have_text(re.compile("top-k|top-p|min-p"))
    assert 1 < right["num_kept"] < 20


def test_tokens_of_equal_logits_share_a_rank(open_view: Open, server: Server) -> None:
    """Choose the position with most equal logits among the likeliest: bfloat16 has few numbers."""
    rows = [ask(server, "/v1/next", {"input": TEXT, "position": i, "num_tokens": 21}) for i in range(9)]
    found = [[token["logit"] for token in row["data"][0]["temperatures"][0]["tokens"]] for row in rows]
    position = min(range(9), key=lambda i: len(set(found[i])))
    logits = found[position]
    page = open_view("next", query=position)
    ranks = [f"{'=' * (logits.count(logit) > 1)}{logits.index(logit) + 1}" for logit in logits]
    expect(page.locator(".likeliest .rank")).to_have_text(ranks[:-1])


def test_a_slider_recomputes_in_the_browser_from_the_logits(page: Page, open_view: Open, server: Server) -> None:
    open_view("next")
    expect(page.locator(".text-score .token").first).to_be_visible()  # the last request of the view itself
    page.wait_for_load_state("networkidle")
    right = ask(server, "/v1/next", {"input": TEXT, "temperatures": [2.0]})["data"][0]["temperatures"][0]
    with requests_of(page) as asked:
        slider = page.get_by_role("slider", name="temperature")
        slider.fill("2")
        expect(page.locator(".facts b").first).to_have_text(f"{written(right['entropy'])} nats")
        slider.fill("0")  # greedy
        expect(page.locator(".likeliest tbody tr").first.locator(".number").first).to_have_text("100 %")
        page.wait_for_url("**next_temperature=0**")
    assert not [request.url for request in asked if "/v1/" in request.url]


def test_with_a_filter_the_server_says_what_is_kept_at_each_temperature(open_view: Open, server: Server) -> None:
    page = open_view("next", next_find="#17")
    kept = page.locator(".facts > div", has=page.get_by_text("kept", exact=True)).locator("b")
    page.get_by_role("slider", name="top-p").fill("0.5")
    for temperature in (1.0, 2.0):
        page.get_by_role("slider", name="temperature").fill(str(temperature))
        body = {"input": TEXT, "temperatures": [temperature], "top_p": 0.5}
        right = ask(server, "/v1/next", body)["data"][0]["temperatures"][0]
        expect(kept).to_have_text(f"{right['num_kept']:,} of 4,096".replace(",", "\u202f"))
        expect(page.locator(".chance").first).to_contain_text("cut by top-p")
    page.get_by_role("button", name="as trained").click()
    expect(kept).to_have_text("4\u202f096 of 4\u202f096")


def test_it_tells_what_the_text_said_in_truth(open_view: Open, server: Server) -> None:
    page = open_view("next", query=3)
    body = {"prompt": TEXT, "max_tokens": 0, "echo": True, "logprobs": 0}
    logprobs = ask(server, "/v1/completions", body)["choices"][0]["logprobs"]["token_logprobs"]
    expect(page.locator(".actual")).to_contain_text(percent(math.exp(logprobs[4])))
    expect(page.locator(".text-score")).to_contain_text(written(math.exp(-np.mean(logprobs[1:]))))
    page.locator(".text-score .token").nth(7).click()
    page.wait_for_url("**query=6**")
    expect(page.locator(".actual")).to_contain_text(percent(math.exp(logprobs[7])))


def test_a_click_writes_the_token_after_the_chosen_position(open_view: Open) -> None:
    page = open_view("next", query=6)
    page.locator(".likeliest").get_by_role("button", name="king", exact=False).first.click()
    expect(page.locator(".text-field textarea").first).to_have_value("Once upon a time there was a king")
    settle(page)
    expect(page.locator(".next-sentence")).to_contain_text("there was a king the likeliest token is ·who")
    page.go_back()
    expect(page.locator(".text-field textarea").first).to_have_value(TEXT)


def test_any_token_can_be_looked_up(open_view: Open, server: Server) -> None:
    page = open_view("next", next_find="dragon")
    found = ask(server, "/v1/next", {"input": TEXT, "num_tokens": 1024})["data"][0]["temperatures"][0]["tokens"]
    names = [token["token"] for token in found]
    page.get_by_role("searchbox").fill(
        names[300].strip() if names[300].startswith(" ") else f"#{found[300]['token_id']}"
    )
    line = page.locator(".chance", has_text="rank 301")
    expect(line).to_contain_text(percent(found[300]["probability"]))


def test_the_curve_is_walked_with_the_keyboard(open_view: Open) -> None:
    page = open_view("next")
    picture = page.get_by_role("application", name="Probability of all 4096 tokens")
    picture.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator(".card", has_text="The whole vocabulary").locator(".readout")).to_contain_text("rank 3 ")
    page.keyboard.press("Enter")
    page.wait_for_url("**next_find=%23**")
    expect(page.locator(".chance")).to_contain_text("rank 3")


def test_equal_logits_are_said_to_have_no_order(open_view: Open, server: Server) -> None:
    """In bfloat16 some of the largest logits are equal; in float32 none are."""
    dtype = ask(server, "/version")["compute_dtype"]
    found = set()
    for position in range(9):
        body = {"input": TEXT, "position": position, "full": True}
        logits = ask(server, "/v1/next", body)["data"][0]["arrays"]["logits"]["data"]
        best = np.sort(np.ravel(logits))[::-1][:21]  # the last shown one may equal the next
        has_ties = bool((np.diff(best) == 0).any())
        if has_ties not in found:
            page = open_view("next", query=position)
            hint = page.locator(".card .hint", has_text=f"{dtype} has no numbers between them")
            expect(hint).to_have_count(1 if has_ties else 0)
        found.add(has_ties)
    assert (True in found) == (dtype == "bfloat16")
