"""X-ray in Chat: the tokens of an answer with the API's probabilities, and answers that continue with another token."""

import math
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tests.page.chats import answers, ended, open_chat, send, settings
from tests.page.conftest import ask, box_of, percent, settle, slow_answers, take_precision, wait_until
from tests.support.processes import Server

QUESTION = "Once upon a time"
BODY = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 9, "seed": 7}


def opened(page: Page, server: Server) -> dict[str, Any]:
    """Write an answer, open its X-ray, and return the API's choice for the same request."""
    take_precision(server)
    open_chat(page, server)
    settings(page, Most_tokens="9", Seed="7")
    send(page, QUESTION)
    answers(page).get_by_role("button", name="X-ray").click()
    expect(chips(page)).to_have_count(9)
    body = {**BODY, "logprobs": True, "top_logprobs": 5, "return_token_ids": True}
    choice: dict[str, Any] = ask(server, "/v1/chat/completions", body)["choices"][0]
    return choice


def chips(page: Page) -> Locator:
    return page.locator(".xray .prose button")


def force(page: Page, place: int, text: str) -> None:
    chips(page).nth(place).click()
    page.get_by_label("Other text").fill(text)
    page.get_by_role("button", name="Force", exact=True).click()
    ended(page)


def test_each_token_has_the_apis_probability_and_alternatives(page: Page, server: Server) -> None:
    choice = opened(page, server)
    entries = choice["logprobs"]["content"]
    for place, entry in enumerate(entries):
        label = chips(page).nth(place).get_attribute("aria-label") or ""
        assert label.endswith(percent(math.exp(entry["logprob"])))
    chips(page).nth(3).hover()
    likeliest = entries[3]["top_logprobs"][0]
    expect(page.locator(".tooltip")).to_contain_text(likeliest["token"].strip())
    expect(page.locator(".tooltip")).to_contain_text(percent(math.exp(likeliest["logprob"])))
    assert "<|" not in page.locator(".xray").inner_text()


def test_a_click_on_an_alternative_goes_on_from_there_as_a_new_version(page: Page, server: Server) -> None:
    choice = opened(page, server)
    chips(page).nth(3).click()
    settle(page)
    row = page.locator(".token-card tbody tr:not(.on)").first
    name = row.locator("th").inner_text().replace("·", " ")
    row.click()
    expect(page.get_by_label("Version 2 of 2")).to_be_visible()
    ended(page)
    prompt = ask(server, "/tokenize", {"messages": BODY["messages"]})["tokens"]
    forced = ask(server, "/tokenize", {"prompt": name, "add_special_tokens": False})["tokens"]
    rest = {"prompt": [*prompt, *choice["token_ids"][:3], *forced], "max_tokens": 9, "seed": 7}
    text = ask(server, "/v1/completions", rest)["choices"][0]["text"]
    begun = "".join(entry["token"] for entry in choice["logprobs"]["content"][:3])
    expect(page.locator(".xray .forced").first).to_have_text(name.replace("\n", "↵"))
    answers(page).get_by_role("button", name="X-ray").click()
    assert " ".join(answers(page).locator(".markdown").inner_text().split()) == " ".join(f"{begun}{name}{text}".split())
    page.get_by_role("button", name="Version before").press("Enter")
    expect(page.get_by_label("Version 1 of 2")).to_be_visible()


def test_an_answer_stays_in_x_ray_while_another_one_is_written(page: Page, server: Server) -> None:
    opened(page, server)
    settings(page, Most_tokens="400")
    with slow_answers(page):
        page.locator("#message").fill("And then?")
        page.keyboard.press("Enter")
        expect(answers(page)).to_have_count(2)
        expect(answers(page).nth(1).locator(".markdown")).to_be_visible()
        expect(chips(page)).to_have_count(9)
        page.keyboard.press("Escape")
    ended(page)


def test_forks_of_forks_stay_in_the_order_in_which_they_were_made(page: Page, server: Server) -> None:
    opened(page, server)
    for number, (place, text) in enumerate(((5, " cat"), (2, " dog"), (4, " owl")), 2):
        force(page, place, text)
        expect(page.get_by_label(f"Version {number} of {number}")).to_be_visible()
        expect(page.locator(".xray .forced").first).to_contain_text(text[1])
        expect(chips(page).nth(5)).to_be_visible()
    answers(page).get_by_role("button", name="X-ray").click()
    said = []
    for _ in range(3):
        said.append(answers(page).locator(".markdown").inner_text())
        page.get_by_role("button", name="Version before").click()
    assert ["owl" in said[0] and "dog" in said[0], "dog" in said[1], "cat" in said[2]] == [True] * 3
    page.reload()
    expect(page.get_by_label("Version 1 of 4")).to_be_visible()


def test_an_edited_answer_has_an_x_ray_too_and_it_fits_a_phone(page: Page, server: Server) -> None:
    opened(page, server)
    page.get_by_role("button", name="Close the settings").click()
    page.set_viewport_size({"width": 390, "height": 800})
    answers(page).get_by_role("button", name="Edit").click()
    page.get_by_label("The turn's text").fill("The fox ran home.")
    page.get_by_role("button", name="Save", exact=True).click()
    wait_until(page, lambda: "".join(chips(page).all_inner_texts()) == "The fox ran home.")
    chips(page).first.click()
    settle(page)
    card = page.get_by_role("complementary", name="The chosen token")
    assert box_of(card)["x"] + box_of(card)["width"] <= 390
    page.keyboard.press("Escape")
    expect(card).to_have_count(0)
