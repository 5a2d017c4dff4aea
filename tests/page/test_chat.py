"""The view Chat: turns and their versions, the requests, the history in the browser, and the settings."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.page.chats import ROUTE, Scripted, answers, ended, event, open_chat, send, settings, stream_of, write
from tests.page.conftest import KEY, PATIENCE_MS, ask, new_page, slow_answers, wait_until
from tests.support.processes import Server


def sent(page: Page) -> list[dict[str, Any]]:
    """Return a list that receives the body of each chat that the page requests."""
    bodies: list[dict[str, Any]] = []
    page.on(
        "request",
        lambda request: bodies.append(request.post_data_json) if request.url.endswith("chat/completions") else None,
    )
    return bodies


def test_a_second_question_sends_three_messages_and_a_reload_keeps_the_tree(page: Page, server: Server) -> None:
    open_chat(page, server)
    bodies = sent(page)
    settings(page, Most_tokens="8", Seed="7")
    send(page, "What is the capital of France?")
    first = answers(page).first.locator(".markdown").inner_text()
    send(page, "And of Spain?")
    assert [message["role"] for message in bodies[1]["messages"]] == ["user", "assistant", "user"]
    assert (
        bodies[1]["messages"][1]["content"].strip()
        == ask(server, "/v1/chat/completions", bodies[0] | {"stream": False})["choices"][0]["message"][
            "content"
        ].strip()
    )
    answers(page).nth(1).get_by_role("button", name="Regenerate").click()
    expect(page.get_by_label("Version 2 of 2")).to_be_visible()
    ended(page)
    shown = page.locator(".chat-column").inner_text()
    page.reload()
    expect(answers(page)).to_have_count(2)
    expect(page.locator(".chat-column .markdown").first).to_have_text(first)
    wait_until(page, lambda: page.locator(".chat-column").inner_text() == shown)
    page.get_by_role("button", name="Version before").click()
    expect(page.get_by_label("Version 1 of 2")).to_be_visible()
    expect(page.get_by_role("heading", level=2)).to_have_text("What is the capital of France?")


def test_an_answer_is_the_apis_with_its_speed(page: Page, server: Server) -> None:
    open_chat(page, server)
    settings(page, Most_tokens="12", Seed="7", Temperature="0.8")
    send(page, "Once upon a time")
    body = {
        "messages": [{"role": "user", "content": "Once upon a time"}],
        "max_tokens": 12,
        "seed": 7,
        "temperature": 0.8,
    }
    answer = ask(server, "/v1/chat/completions", body)["choices"][0]["message"]["content"]
    assert " ".join(answers(page).locator(".markdown").inner_text().split()) == " ".join(answer.split())
    expect(answers(page)).to_contain_text("Stopped at the largest number of tokens.")
    expect(answers(page).locator(".speed")).to_have_text(re.compile(r"^[\d.]+ tokens/s$"))


def test_enter_sends_and_shift_enter_starts_a_line(page: Page, server: Server) -> None:
    open_chat(page, server)
    script = Scripted(page, stream_of("Yes."))
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    page.keyboard.press("Enter")
    ended(page)
    assert script.bodies[0]["messages"] == [{"role": "user", "content": "one\ntwo"}]
    expect(page.locator("#message")).to_have_value("")
    expect(page.locator("#message")).to_be_focused()
    page.keyboard.press("Enter")
    assert len(script.bodies) == 1, "an empty message is not sent"


def test_an_answer_is_stopped_and_goes_on_where_it_was(page: Page, server: Server) -> None:
    open_chat(page, server)
    settings(page, Most_tokens="400", Seed="3")
    with slow_answers(page):
        page.locator("#message").fill("Once upon a time")
        page.locator("#message").press("Enter")
        expect(answers(page).locator(".markdown")).to_be_visible()
        page.keyboard.press("Escape")
    expect(answers(page)).to_contain_text("Stopped by you.")
    before = answers(page).locator(".markdown").inner_text()
    settings(page, Most_tokens="5")
    with page.expect_request("**/v1/completions") as request:
        answers(page).get_by_role("button", name="Continue").click()
    ended(page)
    asked = request.value.post_data_json
    messages = [{"role": "user", "content": "Once upon a time"}]
    prompt = ask(server, "/tokenize", {"messages": messages})["tokens"]
    assert asked["prompt"][: len(prompt)] == prompt
    after = answers(page).locator(".markdown").inner_text()
    assert after.split()[: len(before.split()) - 1] == before.split()[:-1]
    assert len(after) > len(before)
    expect(answers(page)).to_have_count(1)


def test_escape_stops_an_answer_wherever_the_focus_is(page: Page, server: Server) -> None:
    open_chat(page, server)
    settings(page, Most_tokens="4")
    send(page, "One?")
    settings(page, Most_tokens="400")
    with slow_answers(page):
        answers(page).get_by_role("button", name="Regenerate").click()
        expect(answers(page).locator(".markdown")).to_be_visible()
        page.keyboard.press("Escape")
    expect(answers(page)).to_contain_text("Stopped by you.")


def test_escape_closes_the_innermost_part_only(page: Page, server: Server) -> None:
    open_chat(page, server)
    Scripted(page, stream_of("Paris."))
    send(page, "France?")
    settings(page)
    page.get_by_role("button", name="Copy as…").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="curl")).to_have_count(0)
    page.locator(".of-user").get_by_role("button", name="Edit").click()
    page.get_by_label("The turn's text").press("Escape")
    expect(page.locator(".turn-editor")).to_have_count(0)
    expect(page.locator(".chat-settings")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".chat-settings")).to_have_count(0)


def test_a_question_without_an_answer_is_answered(page: Page, server: Server) -> None:
    open_chat(page, server)
    script = Scripted(page, stream_of("Paris."), stream_of("Lyon."))
    send(page, "France?")
    answers(page).get_by_role("button", name="Delete from here").click()
    page.get_by_role("button", name="Answer", exact=True).click()
    expect(answers(page).locator(".markdown")).to_have_text("Lyon.")
    assert script.bodies[0]["messages"] == script.bodies[1]["messages"]


def test_turns_are_edited_deleted_and_brought_back(page: Page, server: Server) -> None:
    open_chat(page, server)
    script = Scripted(page, *(stream_of(text) for text in ("Paris.", "Madrid.", "Rome.")))
    send(page, "France?")
    send(page, "Spain?")
    user = page.locator(".turn.of-user")
    user.nth(1).get_by_role("button", name="Edit").click()
    page.get_by_label("The turn's text").fill("Italy?")
    page.get_by_label("The turn's text").press("Enter")
    ended(page)
    assert [message["content"] for message in script.bodies[-1]["messages"]] == ["France?", "Paris.", "Italy?"]
    expect(answers(page).nth(1).locator(".markdown")).to_have_text("Rome.")
    user.nth(1).get_by_role("button", name="Version before").click()
    expect(answers(page).nth(1).locator(".markdown")).to_have_text("Madrid.")
    answers(page).first.get_by_role("button", name="Edit").click()
    page.get_by_label("The turn's text").fill("Lutetia.")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(answers(page)).to_have_count(1)
    expect(answers(page).first.locator(".markdown")).to_have_text("Lutetia.")
    answers(page).first.get_by_role("button", name="Delete from here").click()
    expect(answers(page).nth(1).locator(".markdown")).to_have_text("Madrid.")
    page.get_by_role("button", name="Undo").click()
    expect(answers(page).first.locator(".markdown")).to_have_text("Lutetia.")
    assert len(script.bodies) == 3
    answers(page).first.get_by_role("button", name="Delete from here").click()
    page.get_by_role("button", name="New chat").click()  # another chat has nothing to bring back
    expect(page.get_by_role("button", name="Undo")).to_have_count(0)
    page.locator("#message").fill("Mine.")
    page.evaluate("location.hash += '&chat_draft=Yours.'")  # as another view's button does
    expect(page.locator("#message")).to_have_value("Mine.\nYours.")


def test_reasoning_calls_and_structured_answers_are_panels(page: Page, server: Server) -> None:
    call = {"index": 0, "id": "call_1", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    open_chat(page, server)
    tools = [{"type": "function", "function": {"name": "get_weather"}}]
    settings(page, Tools=json.dumps(tools))
    streams = stream_of("", reasoning="I need the weather.", calls=[call]), stream_of('{"degrees": 3}')
    script = Scripted(page, *streams)
    send(page, "How warm is Oslo?")
    assert script.bodies[0]["tools"] == tools
    thought = page.locator("details.thought")
    expect(thought.locator("summary")).to_have_text(re.compile(r"^Thought for \d+\.\d s$"))
    expect(thought.get_by_text("I need the weather.")).to_be_hidden()
    thought.locator("summary").click()
    expect(thought.get_by_text("I need the weather.")).to_be_visible()
    expect(page.get_by_text("Calls get_weather")).to_be_visible()
    expect(answers(page).locator("figure.code")).to_contain_text('"city": "Oslo"')
    settings(page, Form_of_the_answer='{"type": "object"}')
    page.get_by_label("Result of get_weather").fill("3 degrees")
    page.get_by_role("button", name="Send the result").click()
    ended(page)
    body = script.bodies[1]
    assert body["messages"][-1] == {"role": "tool", "content": "3 degrees", "tool_call_id": "call_1"}
    assert body["messages"][1]["tool_calls"][0]["function"] == call["function"]
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    expect(answers(page).nth(1).locator("details[open] figure.code")).to_contain_text('"degrees": 3')


def test_an_answer_with_a_form_or_with_reasoning_is_continued_as_a_message(page: Page, server: Server) -> None:
    """Its ids cannot be continued: a grammar begins with the answer, and ids of reasoning are no part of the text."""
    open_chat(page, server)
    settings(page, Form_of_the_answer='{"type": "object"}')
    first = event({"content": '{"a":'}) + event({}, "length") + "data: [DONE]\n\n"
    script = Scripted(page, first, stream_of(" 1}"))
    send(page, "An object?")
    answers(page).get_by_role("button", name="Continue").click()
    expect(answers(page).locator("figure.code")).to_contain_text('"a": 1')
    assert script.bodies[1]["continue_final_message"] is True
    assert script.bodies[1]["messages"][-1] == {"role": "assistant", "content": '{"a":'}
    settings(page, Form_of_the_answer="")
    first = event({"reasoning_content": "Hm"}) + event({}, "length") + "data: [DONE]\n\n"
    script = Scripted(page, first, stream_of("Yes.", reasoning=", well."))
    send(page, "Sure?")
    answers(page).nth(1).get_by_role("button", name="Continue").click()
    expect(answers(page).nth(1).locator(".markdown")).to_have_text("Yes.")
    assert script.bodies[1]["messages"][-1] == {"role": "assistant", "content": "", "reasoning_content": "Hm"}
    answers(page).nth(1).locator("details.thought summary").click()
    expect(answers(page).nth(1).get_by_text("Hm, well.")).to_be_visible()


def test_the_settings_show_the_models_own_and_send_only_what_was_set(page: Page, server: Server) -> None:
    open_chat(page, server)
    script = Scripted(page, stream_of("Yes."))
    send(page, "One?")
    assert set(script.bodies[0]) == {"messages", "stream", "return_token_ids"}
    settings(page)
    own = ask(server, "/v1/capabilities")["default_sampling_params"]
    field = page.locator(".chat-settings").get_by_label
    for name, label in (
        ("temperature", "Temperature"),
        ("top_p", "Top-p"),
        ("repetition_penalty", "Repetition penalty"),
    ):
        assert float(field(label, exact=True).get_attribute("placeholder") or "") == own[name]
    settings(page, Temperature="0.5", **{"Top-k": "20"}, System_prompt="Be brief.", Stop_texts="END")
    field("Temperature", exact=True).fill("hot")
    field("Temperature", exact=True).blur()
    expect(page.get_by_role("alert")).to_have_text("Temperature must be a number from 0 to 100 (got hot).")
    send(page, "Two?")
    body = script.bodies[1]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["top_k"], body["stop"]) == (0.5, 20, ["END"])
    settings(page, Tools="{")
    send(page, "Three?")
    expect(page.locator(".problem").first).to_contain_text("“Tools” in the settings is not JSON")
    assert len(script.bodies) == 2


def test_conversations_are_listed_searched_renamed_and_cleared(page: Page, server: Server) -> None:
    open_chat(page, server)
    Scripted(page, stream_of("A zebra has stripes."), stream_of("No."))
    send(page, "Which animal has stripes?")
    page.get_by_role("button", name="New chat").click()
    send(page, "Is it late?")
    listed = page.get_by_role("list", name="Conversations").locator("li > button")
    expect(listed).to_have_text(["Is it late?", "Which animal has stripes?"])
    page.get_by_label("Search conversations").fill("ZEBRA")
    expect(listed).to_have_text(["Which animal has stripes?"])
    listed.click()
    expect(answers(page).locator(".markdown")).to_have_text("A zebra has stripes.")
    page.locator(".turn.of-user").get_by_role("button", name="Edit").click()
    expect(page.get_by_label("The turn's text")).to_be_focused()
    page.get_by_label("Search conversations").fill("")
    listed.filter(has_text="late").click()
    expect(answers(page).locator(".markdown")).to_have_text("No.")
    expect(page.get_by_label("The turn's text")).to_have_count(0)
    page.get_by_role("button", name="Options of Which animal").click()
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("Title", exact=True).fill("Stripes")
    page.keyboard.press("Enter")
    page.get_by_label("Search conversations").fill("")
    expect(listed.filter(has_text="Stripes")).to_have_count(1)
    page.get_by_role("button", name="Clear").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(listed).to_have_count(0)
    assert page.evaluate("Object.keys(localStorage).length") == 0


def test_what_was_exported_is_imported_again(page: Page, server: Server, tmp_path: Path) -> None:
    open_chat(page, server)
    Scripted(page, stream_of("Paris.", reasoning="Easy."), stream_of("Lyon."))
    send(page, "France?")
    answers(page).get_by_role("button", name="Regenerate").click()
    expect(page.get_by_label("Version 2 of 2")).to_be_visible()
    ended(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="Export", exact=True).click()
    file = tmp_path / "chats.json"
    download.value.save_as(file)
    open_chat(page, server)
    page.get_by_label("File to import").set_input_files(file)
    expect(answers(page).locator(".markdown")).to_have_text("Lyon.")
    page.get_by_role("button", name="Version before").click()
    expect(answers(page).locator(".markdown")).to_have_text("Paris.")
    expect(page.locator("details.thought")).to_have_count(1)
    page.get_by_label("File to import").set_input_files(file)  # the same once more: nothing is overwritten
    expect(page.get_by_role("list", name="Conversations").locator("li")).to_have_count(2)


def test_a_full_storage_is_told_and_nothing_is_lost(browser: Browser, server: Server) -> None:
    with new_page(browser) as page:
        open_chat(page, server)
        Scripted(page, stream_of("Paris."))
        page.evaluate("for (let size = 2 ** 22; size > 0; size >>= 1) try { for (let i = 0; ; i += 1)"
                      " localStorage.setItem(`${size} ${i}`, 'x'.repeat(size)); } catch {}")  # fmt: skip
        send(page, "France?")
        expect(page.get_by_role("alert")).to_contain_text("its storage for this site is full")
        expect(answers(page).locator(".markdown")).to_have_text("Paris.")
        with page.expect_download() as download:
            page.get_by_role("button", name="Export", exact=True).click()
        assert "Paris." in download.value.path().read_text(encoding="utf-8")
        page.evaluate(
            "for (const name of Object.keys(localStorage)) if (/^\\d/.test(name)) localStorage.removeItem(name)"
        )
        send(page, "Spain?")
        expect(page.get_by_role("alert")).to_have_count(0)
        page.reload()
        expect(page.locator(".turn.of-user")).to_have_text(["France?", "Spain?"])


def test_each_key_has_its_own_history_and_the_key_is_not_in_it(browser: Browser, guarded: Server) -> None:
    with new_page(browser) as page:
        page.goto(f"{guarded.url}/#view=chat")
        page.get_by_label("API key").fill(KEY)
        page.get_by_role("button", name="Use it").click()
        Scripted(page, stream_of("Paris."))
        send(page, "France?")
        assert KEY not in json.dumps(page.evaluate("({...localStorage})"))
        page.reload()
        expect(page.get_by_label("API key")).to_be_visible()
        assert "France?" not in page.locator("body").inner_text()
        page.get_by_label("API key").fill(KEY)
        page.get_by_role("button", name="Use it").click()
        expect(page.locator(".turn.of-user")).to_have_text("France?")


def test_an_embedded_page_keeps_no_history(page: Page, server: Server) -> None:
    open_chat(page, server)
    page.goto(f"{server.url}/?embed=1#view=chat")
    Scripted(page, stream_of("Paris."))
    send(page, "France?")
    expect(page.get_by_text("Kept until this page is closed.")).to_be_visible()
    assert page.evaluate("[localStorage.length, sessionStorage.length]") == [0, 0]


def test_text_files_are_attached_by_drop_and_others_are_refused(page: Page, server: Server) -> None:
    open_chat(page, server)
    script = Scripted(page, stream_of("Yes."))
    drop = """(file, [name, parts]) => {
      const data = new DataTransfer();
      data.items.add(new File(parts.map((part) => (typeof part === "string" ? part : new Uint8Array(part))), name));
      const event = new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: data });
      document.querySelector(".chat-main").dispatchEvent(event);
    }"""
    page.locator("#message").evaluate(drop, ["notes.md", ["The fox is red. ```code```"]])
    expect(page.get_by_role("list", name="Files").locator("li")).to_contain_text("notes.md")
    page.locator("#message").evaluate(drop, ["picture.png", [[137, 80, 78, 71, 0, 255]]])
    expect(page.locator(".problem")).to_contain_text("picture.png is no text in UTF-8.")
    send(page, "What colour is it?")
    content = script.bodies[0]["messages"][0]["content"]
    assert content == "notes.md:\n````\nThe fox is red. ```code```\n````\n\nWhat colour is it?"
    expect(page.locator(".turn.of-user summary")).to_contain_text("notes.md")
    page.reload()
    expect(page.locator(".turn.of-user summary")).to_contain_text("notes.md")


def test_the_end_is_followed_until_the_reader_scrolls_up(page: Page, server: Server) -> None:
    open_chat(page, server)
    long = "\n\n".join(f"Paragraph {number}." for number in range(80))
    Scripted(page, stream_of(long))
    send(page, "Long?")
    box = page.locator(".chat-scroll")
    from_end = "box => box.scrollHeight - box.scrollTop - box.clientHeight"
    wait_until(page, lambda: bool(box.evaluate(from_end) < 2))
    box.evaluate("box => { box.scrollTop = 100; }")
    page.get_by_role("button", name="Go to the end").click()
    wait_until(page, lambda: bool(box.evaluate(from_end) < 2))
    expect(page.get_by_role("button", name="Go to the end")).to_have_count(0)
    assert page.evaluate("scrollY") == 0
    page.set_viewport_size({"width": 390, "height": 700})
    wait_until(page, lambda: bool(box.evaluate(from_end) < 2))


def test_a_refused_message_stays_with_the_reason(page: Page, server: Server) -> None:
    open_chat(page, server)
    error = {"message": "The context is too long.", "type": "invalid_request_error", "param": None, "code": "x"}
    page.route(ROUTE, lambda route: route.fulfill(status=400, json={"error": error}))
    send(page, "Hello?")
    expect(page.locator(".turn .problem")).to_contain_text("The context is too long.")
    page.unroute(ROUTE)
    page.reload()
    expect(page.locator(".turn.of-user")).to_have_text("Hello?")
    script = Scripted(page, stream_of("Hello."))
    page.get_by_role("button", name="Try again").click()
    expect(answers(page).locator(".markdown")).to_have_text("Hello.")
    assert len(script.bodies) == 1


def test_a_broken_stream_keeps_what_came(page: Page, server: Server) -> None:
    open_chat(page, server)
    Scripted(page, event({"content": "Half an "}) + event({"content": "answer"}))
    send(page, "Hello?")
    expect(answers(page).locator(".markdown")).to_have_text("Half an answer")
    expect(answers(page).locator(".problem")).to_contain_text("is incomplete")


def test_screen_readers_are_told_the_answer_once(page: Page, server: Server) -> None:
    open_chat(page, server)
    page.evaluate("""() => {
      window.told = [];
      const place = document.querySelector(".chat > [role=status]");
      const observer = new MutationObserver(() => window.told.push(place.textContent));
      observer.observe(place, { childList: true, characterData: true, subtree: true });
    }""")
    Scripted(page, stream_of("The capital of France is Paris, of course."))
    send(page, "France?")
    wait_until(page, lambda: page.evaluate("window.told.at(-1)") == "The capital of France is Paris, of course.")
    assert len(page.evaluate("window.told")) <= 2


def test_all_is_reached_with_the_keyboard(page: Page, server: Server) -> None:
    open_chat(page, server)
    Scripted(page, stream_of("Paris."), stream_of("Lyon."))
    page.keyboard.type("France?")
    page.keyboard.press("Enter")
    ended(page)
    reached = set()
    for _ in range(60):
        page.keyboard.press("Shift+Tab")
        name = page.evaluate("document.activeElement.ariaLabel ?? document.activeElement.textContent")
        reached.add(str(name).strip())
        if name == "Regenerate":
            page.keyboard.press("Enter")
            break
    expect(page.get_by_label("Version 2 of 2")).to_be_visible(timeout=PATIENCE_MS)
    ended(page)
    assert {"X-ray: the probability of each token", "Delete from here", "Edit"} <= reached


@pytest.mark.parametrize("family", ["gpt2"])
def test_a_model_without_a_chat_template_continues_texts(page: Page, family: str) -> None:
    from tests.page.conftest import family_server

    server = family_server(family)
    assert not ask(server, "/v1/capabilities")["chat"]
    page.goto(f"{server.url}/#view=chat&text=The+old+king&write_max_tokens=4")
    write(page)
    expect(page.locator(".prose button")).to_have_count(4)
    expect(page.get_by_role("button", name="Chat", exact=True)).to_have_count(0)
