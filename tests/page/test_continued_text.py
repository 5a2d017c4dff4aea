"""Continued texts in Chat: the streamed text is the API's, and each token shows its probability and can be replaced."""

import json
import math
import re
from typing import Any

from playwright.sync_api import Page, Route, expect

from tests.page.conftest import TEXT, Open, ask, percent, settle, slow_answers
from tests.support.processes import Server

SEEDED = {"write_seed": 7, "write_temperature": 0.8, "write_max_tokens": 12}


def write(page: Page) -> None:
    page.get_by_role("button", name="Write", exact=True).last.click()
    expect(page.get_by_role("button", name="Go on", exact=True)).to_be_visible(timeout=20_000)


def chips(page: Page) -> list[str]:
    """Return the tokens as they are shown, in order."""
    return page.locator(".prose button").all_inner_texts()


def continued(server: Server, prompt: Any, **changes: Any) -> dict[str, Any]:
    """Return the API's text with the same options."""
    body = {"prompt": prompt, "seed": 7, "temperature": 0.8, "max_tokens": 12, "logprobs": 0, **changes}
    choice: dict[str, Any] = ask(server, "/v1/completions", body)["choices"][0]
    return choice


def test_the_stream_is_the_apis_text_with_its_chances(open_view: Open, server: Server) -> None:
    page = open_view("chat", chat_mode="text", **SEEDED)
    write(page)
    choice = continued(server, TEXT)
    assert "".join(chips(page)).replace("↵", "\n") == choice["text"]
    label = page.locator(".prose button").nth(4).get_attribute("aria-label")
    assert label is not None
    assert label.endswith(percent(math.exp(choice["logprobs"]["token_logprobs"][4])))
    expect(page.locator(".ending")).to_contain_text("Stopped after 12 tokens, as asked. 12 tokens in all")
    expect(page.locator(".ending")).to_contain_text("tokens/s, seed 7.")
    expect(page.locator(".prose .written").first).to_have_css("font-family", re.compile(", serif$"))


def test_another_token_is_forced_and_the_first_branch_stays(open_view: Open, server: Server) -> None:
    page = open_view("chat", chat_mode="text", **SEEDED)
    write(page)
    first = chips(page)
    page.locator(".prose button").nth(3).click()
    card = page.get_by_role("complementary", name="The chosen token")
    ids = ask(server, "/tokenize", {"prompt": TEXT})["tokens"]
    ids += continued(server, TEXT, return_token_ids=True)["token_ids"][:3]
    body = {"input": ids, "temperatures": [1, 0.8], "num_tokens": 12}
    alternatives = ask(server, "/v1/next", body)["data"][0]["temperatures"]
    names = [token["token"] for token in alternatives[0]["tokens"]]
    expect(card.locator("tbody tr")).to_have_count(12)
    assert [name.replace("·", " ") for name in card.locator("tbody th").all_inner_texts()] == names
    other = next(place for place, name in enumerate(names) if name != first[3])
    kept = alternatives[1]["tokens"][other]["kept_probability"]
    expect(card.locator("tbody .note").nth(other)).to_have_text(percent(kept))
    card.locator("tbody button").nth(other).click()
    expect(page.get_by_role("heading", name="Branches")).to_be_visible()
    expect(page.get_by_role("button", name="Go on", exact=True)).to_be_visible()
    second = chips(page)
    assert second[:4] == [*first[:3], names[other]]
    forced = alternatives[0]["tokens"][other]["token_id"]
    assert "".join(second[4:]).replace("↵", "\n") == continued(server, [*ids, forced])["text"]
    page.locator(".branches button").first.click()
    assert chips(page) == first


def test_tokens_are_walked_by_keyboard_looked_at_in_another_view_and_replaced(open_view: Open) -> None:
    page = open_view("chat", chat_mode="text", **SEEDED)
    write(page)
    page.locator(".prose button").first.focus()
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    card = page.get_by_role("complementary", name="The chosen token")
    expect(card.get_by_role("heading", level=2)).to_have_text(f"Instead of {chips(page)[2].replace(' ', '·')}")
    card.get_by_role("button", name="Close").focus()
    page.keyboard.press("Escape")
    expect(card).to_have_count(0)
    expect(page.locator(".prose button").nth(2)).to_be_focused()
    word = chips(page)[5]
    page.locator(".prose button").nth(5).click()
    page.get_by_role("group", name="Look at this choice in").get_by_role("button", name="Next token").click()
    settle(page)
    expect(page.locator(".actual")).to_contain_text(f"continues with {word.replace(' ', '·')}:")
    page.go_back()
    expect(page.locator(".prose button").nth(5)).to_have_text(word)  # the story waited
    page.locator(".prose button").nth(3).click()
    row = page.locator(".token-card tbody tr:not(.on)").first
    name = row.locator("th").inner_text().replace("·", " ")
    row.locator(".bar").click()  # anywhere in the row
    expect(page.locator(".prose .forced")).to_have_text(name)


def test_it_stops_and_goes_on(open_view: Open) -> None:
    page = open_view("chat", chat_mode="text", **{**SEEDED, "write_max_tokens": 400})
    with slow_answers(page):
        page.locator("#write").click()
        expect(page.locator(".prose button").nth(2)).to_be_visible()
        page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(".ending")).to_contain_text("Stopped by you.")
    number = len(chips(page))
    assert 2 < number < 400
    page.get_by_role("spinbutton", name="tokens").fill("3")
    page.get_by_role("spinbutton", name="tokens").blur()
    page.get_by_role("button", name="Go on", exact=True).click()
    expect(page.locator(".prose button")).to_have_count(number + 3)


def test_a_full_context_is_told(open_view: Open) -> None:
    page = open_view("chat", chat_mode="text", text="the fox and " * 168, **SEEDED)
    write(page)
    expect(page.locator(".ending")).to_contain_text("The context is full: this model reads 512 tokens at most.")
    expect(page.get_by_role("button", name="Go on", exact=True)).to_be_disabled()


def test_an_error_in_the_middle_is_shown_there_and_what_came_stays(open_view: Open) -> None:
    page = open_view("chat", chat_mode="text", **SEEDED)

    def break_off(route: Route) -> None:
        logprobs = {"tokens": [" and"], "token_logprobs": [-0.5]}
        token = {"choices": [{"text": " and", "token_ids": [270], "logprobs": logprobs}]}
        error = {"message": "The worker was lost.", "type": "server_error", "param": None, "code": "worker_lost"}
        body = f"data: {json.dumps(token)}\n\nevent: error\ndata: {json.dumps({'error': error})}\n\n"
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route("**/v1/completions", break_off)
    page.locator("#write").click()
    expect(page.locator(".ending .problem")).to_contain_text("The worker was lost.")
    assert chips(page) == [" and"]
    page.unroute("**/v1/completions")
    page.get_by_role("button", name="Try to go on").click()
    expect(page.locator(".prose button")).to_have_count(13)
    expect(page.locator(".problem")).to_have_count(0)


def test_what_a_click_asked_is_not_said_to_be_asked_again(open_view: Open) -> None:
    page = open_view("chat", chat_mode="text", **SEEDED)
    page.route("**/tokenize", lambda route: route.abort())
    page.locator("#write").click()
    expect(page.locator(".view .problem")).to_contain_text("Try it again when the server answers.")
    page.unroute("**/tokenize")
    expect(page.locator(".banner")).to_have_count(0)
    page.locator("#write").click()
    expect(page.locator(".prose button")).to_have_count(12)
    expect(page.locator(".problem")).to_have_count(0)


def test_an_address_of_the_view_write_opens_chat(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/#view=write&text=The+old+king&write_max_tokens=7")
    expect(page.locator("#view-chat #prompt")).to_have_value("The old king")
    expect(page.get_by_role("spinbutton", name="tokens")).to_have_value("7")
    page.goto("about:blank")
    page.goto(f"{server.url}/#view=write&write_chat=1")
    expect(page.locator("#view-chat #message")).to_be_visible()


def test_a_number_of_tokens_that_is_none_is_refused_in_words_and_left_out_of_the_address(open_view: Open) -> None:
    page = open_view("chat", chat_mode="text", write_max_tokens=-5)
    expect(page.get_by_role("spinbutton", name="tokens")).to_have_value("60")
    page = open_view("chat", chat_mode="text", write_max_tokens=12)
    field = page.get_by_role("spinbutton", name="tokens")
    for wrong in ("-5", "0", "2.5"):
        field.fill(wrong)
        field.press("Enter")
        expect(field).to_have_value("12")
        expect(page.get_by_role("alert")).to_contain_text("must be a whole number from 1 on; it stays 12")
    field.fill("1")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_have_count(0)
    page.locator("#write").click()
    expect(page.locator(".ending")).to_contain_text("Stopped after 1 token, as asked. 1 token in all")


def force(page: Page, place: int, text: str) -> None:
    """Replace a token by a text, and wait until the branch is written."""
    page.locator(".prose button").nth(place).click()
    page.get_by_label("Other text").fill(text)
    page.get_by_role("button", name="Force", exact=True).click()
    expect(page.locator("[aria-current=true]", has_text=text.strip())).to_be_visible()
    expect(page.get_by_role("button", name="Go on", exact=True)).to_be_visible()


def test_a_branch_is_below_the_one_whose_tokens_it_goes_on_with(open_view: Open) -> None:
    page = open_view("chat", chat_mode="text", **{**SEEDED, "write_max_tokens": 9})
    write(page)
    force(page, 5, " cat")
    force(page, 2, " dog")  # before the first fork: the tokens are the first branch's
    force(page, 4, " owl")
    tree = page.locator(".branches > ul > li")
    names = "button .hint"
    expect(tree).to_have_count(1)
    first = tree.locator("> ul > li")
    expect(first.locator(f"> {names}")).to_have_text(["token 6", "token 3"])
    expect(first.nth(0).locator("ul")).to_have_count(0)
    expect(first.nth(1).locator(f"> ul > li > {names}")).to_have_text(["token 5"])


def test_writing_again_keeps_what_was_written(open_view: Open) -> None:
    page = open_view("chat", chat_mode="text", **SEEDED)
    write(page)
    first = chips(page)
    page.get_by_label("Prompt").last.fill("The old king")
    write(page)
    expect(page.locator(".prose .prompt")).to_have_text("The old king")
    roots = page.locator(".branches > ul > li > button")
    expect(roots).to_have_text([re.compile("^Once upon a time"), re.compile("^The old king")])
    roots.first.click()
    expect(page.locator(".prose .prompt")).to_have_text(TEXT)
    assert chips(page) == first
    page.get_by_role("button", name="Go on", exact=True).click()  # from its own prompt
    expect(page.locator(".prose button")).to_have_count(24)


def test_greedy_writing_has_no_seed(open_view: Open, server: Server) -> None:
    page = open_view("chat", chat_mode="text", write_temperature=0, write_max_tokens=12)
    write(page)
    assert "".join(chips(page)).replace("↵", "\n") == continued(server, TEXT, temperature=0)["text"]
    expect(page.locator(".ending")).to_contain_text("12 tokens in all")
    expect(page.locator(".ending")).not_to_contain_text("seed")


def test_code_is_written_in_a_font_of_one_width(open_view: Open) -> None:
    page = open_view("chat", chat_mode="text", **SEEDED, text="def double(x):\n    return")
    write(page)
    expect(page.locator(".prose .written").first).to_have_css("font-family", re.compile(", monospace$"))
