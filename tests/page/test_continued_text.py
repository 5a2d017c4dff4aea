"""Texts in Chat: the streamed text is the API's; each token shows its probability and can be replaced. A text has the
versions, the history and the settings of a conversation.
"""

import json
import math
import re
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import Page, Route, expect

from tests.page.chats import begin_text, chips, open_text, write
from tests.page.conftest import TEXT, ask, percent, settle, slow_answers, wait_until
from tests.support.processes import Server

SEEDED = {"write_seed": 7, "write_temperature": 0.8, "write_max_tokens": 12}


def continued(server: Server, prompt: Any, **changes: Any) -> dict[str, Any]:
    """Return the API's text with the same options."""
    body = {"prompt": prompt, "seed": 7, "temperature": 0.8, "max_tokens": 12, "logprobs": 0, **changes}
    choice: dict[str, Any] = ask(server, "/v1/completions", body)["choices"][0]
    return choice


def forced(page: Page) -> str:
    """Return the tokens that the reader chose, as a text."""
    return "".join(page.locator(".prose .forced").all_inner_texts())


def force(page: Page, place: int, text: str) -> None:
    """Replace a token by a text, and wait until the version is written."""
    page.locator(".prose button").nth(place).click()
    page.get_by_label("Other text").fill(text)
    page.get_by_role("button", name="Force", exact=True).click()
    wait_until(page, lambda: text in forced(page))
    expect(page.get_by_role("button", name="Continue", exact=True)).to_be_visible()


def test_the_stream_is_the_apis_text_with_its_chances(page: Page, server: Server) -> None:
    open_text(page, server, **SEEDED)
    write(page)
    choice = continued(server, TEXT)
    assert "".join(chips(page)).replace("↵", "\n") == choice["text"]
    label = page.locator(".prose button").nth(4).get_attribute("aria-label")
    assert label is not None
    assert label.endswith(percent(math.exp(choice["logprobs"]["token_logprobs"][4])))
    expect(page.locator(".turn")).to_contain_text("Stopped at the largest number of tokens.")
    expect(page.locator(".turn-buttons")).to_contain_text(re.compile(r"12 tokens, [\d.]+ tokens/s\s*seed 7"))
    expect(page.locator(".prose .written").first).to_have_css("font-family", re.compile(", serif$"))
    expect(page.locator(".prose .prompt")).to_have_text(TEXT)


def test_another_token_is_forced_and_the_first_version_stays(page: Page, server: Server) -> None:
    open_text(page, server, **SEEDED)
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
    expect(page.get_by_label("Version 2 of 2")).to_be_visible()
    expect(page.get_by_role("button", name="Continue", exact=True)).to_be_visible()
    second = chips(page)
    assert second[:4] == [*first[:3], names[other]]
    ids.append(alternatives[0]["tokens"][other]["token_id"])
    assert "".join(second[4:]).replace("↵", "\n") == continued(server, ids)["text"]
    page.get_by_role("button", name="Version before").click()
    assert chips(page) == first


def test_tokens_are_walked_by_keyboard_looked_at_in_another_view_and_replaced(page: Page, server: Server) -> None:
    open_text(page, server, **SEEDED)
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
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Chat").click()
    expect(page.locator(".prose button").nth(5)).to_have_text(word)  # the text that was looked at stays open
    page.locator(".prose button").nth(3).click()
    row = page.locator(".token-card tbody tr:not(.on)").first
    name = row.locator("th").inner_text().replace("·", " ")
    row.locator(".bar").click()  # anywhere in the row
    expect(page.locator(".prose .forced")).to_have_text(name)


def test_it_stops_and_goes_on(page: Page, server: Server) -> None:
    open_text(page, server, **{**SEEDED, "write_max_tokens": 400})
    with slow_answers(page):
        page.locator("#write").click()
        expect(page.locator(".prose button").nth(2)).to_be_visible()
        page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(".turn")).to_contain_text("Stopped by you.")
    number = len(chips(page))
    assert 2 < number < 400
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("Most tokens").fill("3")
    page.get_by_label("Most tokens").blur()
    page.get_by_role("button", name="Continue", exact=True).click()
    expect(page.locator(".prose button")).to_have_count(number + 3)
    whole = continued(server, TEXT, max_tokens=number + 3)["text"]
    wait_until(page, lambda: "".join(chips(page)).replace("↵", "\n") == whole)  # one seed: as if it was never stopped


def test_a_full_context_is_told(page: Page, server: Server) -> None:
    open_text(page, server, **SEEDED, text="the fox and " * 168)
    page.locator("#write").click()
    expect(page.locator(".turn-end")).to_contain_text("The context is full: this model reads 512 tokens at most.")
    expect(page.get_by_role("button", name="Continue", exact=True)).to_have_count(0)


def test_an_error_in_the_middle_is_shown_there_and_what_came_stays(page: Page, server: Server) -> None:
    open_text(page, server, **SEEDED)

    def break_off(route: Route) -> None:
        logprobs = {"tokens": [" and"], "token_logprobs": [-0.5]}
        token = {"choices": [{"text": " and", "token_ids": [270], "logprobs": logprobs}]}
        error = {"message": "The worker was lost.", "type": "server_error", "param": None, "code": "worker_lost"}
        body = f"data: {json.dumps(token)}\n\nevent: error\ndata: {json.dumps({'error': error})}\n\n"
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route("**/v1/completions", break_off)
    page.locator("#write").click()
    expect(page.locator(".turn .problem")).to_contain_text("The worker was lost.")
    assert chips(page) == [" and"]
    page.unroute("**/v1/completions")
    page.get_by_role("button", name="Continue", exact=True).click()
    expect(page.locator(".prose button")).to_have_count(13)
    expect(page.locator(".problem")).to_have_count(0)


def test_what_a_click_asked_is_not_said_to_be_asked_again(page: Page, server: Server) -> None:
    open_text(page, server, **SEEDED)
    page.route("**/tokenize", lambda route: route.abort())
    page.locator("#write").click()
    expect(page.locator(".turn > .problem")).to_contain_text("Try it again when the server answers.")
    page.unroute("**/tokenize")
    expect(page.locator(".banner")).to_have_count(0)
    page.get_by_role("button", name="Try again").last.click()
    expect(page.locator(".prose button")).to_have_count(12)
    expect(page.locator(".problem")).to_have_count(0)


def test_an_address_of_the_view_write_opens_chat(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/#view=write&text=The+old+king&write_max_tokens=7")
    expect(page.locator("#view-chat #message")).to_have_value("The old king")
    page.get_by_role("button", name="Settings", exact=True).click()
    expect(page.get_by_label("Most tokens")).to_have_value("7")
    page.goto("about:blank")
    page.goto(f"{server.url}/#view=write&write_chat=1")
    expect(page.locator("#view-chat #message")).to_have_value("")


def test_a_number_of_tokens_that_is_none_is_refused_in_words_and_left_out_of_the_address(
    page: Page, server: Server
) -> None:
    open_text(page, server, write_max_tokens=-5)
    page.get_by_role("button", name="Settings", exact=True).click()
    expect(page.get_by_label("Most tokens")).to_have_value("60")
    open_text(page, server, write_max_tokens=12)
    page.get_by_role("button", name="Settings", exact=True).click()
    field = page.get_by_label("Most tokens")
    for wrong in ("-5", "0", "2.5"):
        field.fill(wrong)
        field.press("Enter")
        expect(field).to_have_value("12")
        expect(page.get_by_role("alert")).to_contain_text(f"number from 1 to 2147483647 (got {wrong}).")
    field.fill("1")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_have_count(0)
    write(page)
    expect(page.locator(".prose button")).to_have_count(1)


def test_forks_of_forks_stay_in_the_order_in_which_they_were_made(page: Page, server: Server) -> None:
    open_text(page, server, **{**SEEDED, "write_max_tokens": 9})
    write(page)
    for number, (place, text) in enumerate(((5, " cat"), (2, " dog"), (4, " owl")), 2):
        force(page, place, text)
        expect(page.get_by_label(f"Version {number} of {number}")).to_be_visible()
    assert forced(page) == " dog owl"  # the version begins with another's tokens
    page.reload()
    expect(page.get_by_label("Version 4 of 4")).to_be_visible()
    for number, text in ((3, " dog"), (2, " cat"), (1, "")):
        page.get_by_role("button", name="Version before").click()
        expect(page.get_by_label(f"Version {number} of 4")).to_be_visible()
        assert forced(page) == text


def test_writing_again_keeps_what_was_written(page: Page, server: Server) -> None:
    open_text(page, server, **SEEDED)
    write(page)
    first = chips(page)
    begin_text(page, "The old king")
    write(page)
    expect(page.locator(".prose .prompt")).to_have_text("The old king")
    texts = page.get_by_role("list", name="Conversations").locator("li > button")
    expect(texts).to_have_text(["The old king", TEXT])
    texts.last.click()
    expect(page.locator(".prose .prompt")).to_have_text(TEXT)
    assert chips(page) == first
    page.get_by_role("button", name="Continue", exact=True).click()  # from its own prompt
    expect(page.locator(".prose button")).to_have_count(24)
    page.get_by_role("group", name="Mode").get_by_role("button", name="Chat").click()
    expect(texts).to_have_count(0)


def test_more_text_is_written_after_the_continuation_and_continued(page: Page, server: Server) -> None:
    open_text(page, server, **SEEDED)
    write(page)
    with page.expect_request("**/v1/completions") as request:
        page.locator("#message").fill(" And the fox")
        page.locator("#write").click()
    expect(page.locator(".prose")).to_have_count(2)
    before = ask(server, "/tokenize", {"prompt": TEXT})["tokens"]
    before += continued(server, TEXT, return_token_ids=True)["token_ids"]
    more = ask(server, "/tokenize", {"prompt": " And the fox", "add_special_tokens": False})["tokens"]
    assert request.value.post_data_json["prompt"] == [*before, *more]
    expect(page.locator(".prose .prompt").last).to_have_text(" And the fox")
    expect(page.get_by_role("button", name="Continue", exact=True)).to_be_visible()
    whole = "".join(page.locator(".prose").all_inner_texts()).replace("\n", "")
    page.get_by_role("button", name="Use the whole text as the prompt").click()
    expect(page.locator("#message")).to_be_focused()
    assert page.locator("#message").input_value().replace("\n", "") == whole.replace("↵", "")


def test_another_views_text_is_the_beginning_of_a_new_text(page: Page, server: Server) -> None:
    open_text(page, server, **SEEDED)
    write(page)
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Next token").click()
    page.get_by_label("Text", exact=True).fill("The old king")
    settle(page)
    page.get_by_role("navigation", name="Views").get_by_role("button", name="Chat").click()
    expect(page.locator("#message")).to_have_value("The old king")
    expect(page.locator(".prose")).to_have_count(0)
    page.get_by_role("list", name="Conversations").get_by_role("button", name=TEXT, exact=True).click()
    expect(page.locator(".prose button")).to_have_count(12)
    page.wait_for_url(f"**{urlencode({'text': TEXT})}**")


def test_greedy_writing_has_no_seed_and_a_drawn_one_can_be_kept(page: Page, server: Server) -> None:
    open_text(page, server, write_temperature=0, write_max_tokens=12)
    write(page)
    assert "".join(chips(page)).replace("↵", "\n") == continued(server, TEXT, temperature=0)["text"]
    expect(page.locator(".turn-buttons")).to_contain_text("12 tokens")
    expect(page.locator(".turn-buttons")).not_to_contain_text("seed")
    open_text(page, server, write_temperature=0.8, write_max_tokens=12)
    write(page)
    drawn = page.locator(".seed").inner_text().removeprefix("seed ")
    page.get_by_role("button", name="keep it").click()
    page.wait_for_url(f"**write_seed={drawn}**")
    expect(page.get_by_role("button", name="keep it")).to_have_count(0)
    assert "".join(chips(page)).replace("↵", "\n") == continued(server, TEXT, seed=int(drawn))["text"]


def test_penalties_are_part_of_the_request(page: Page, server: Server) -> None:
    open_text(page, server, **SEEDED)
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("Repetition penalty").fill("1.5")
    page.get_by_label("Repetition penalty").blur()
    write(page)
    text = continued(server, TEXT, repetition_penalty=1.5)["text"]
    assert "".join(chips(page)).replace("↵", "\n") == text != continued(server, TEXT)["text"]


def test_code_is_written_in_a_font_of_one_width(page: Page, server: Server) -> None:
    open_text(page, server, **SEEDED, text="def double(x):\n    return")
    write(page)
    expect(page.locator(".prose .written").first).to_have_css("font-family", re.compile(", monospace$"))
