"""Answers that continue a text of the client: in chats, and for clients of Anthropic and Ollama."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.model.tokenization.chat_formats import templates
from tests.server.dialects.test_structured_outputs import SCHEMA
from tests.server.dialects.test_tools import HERMES_CALL, TIME, WEATHER, grammar_of, prompt_of, tool_site
from tests.server.fake_client import INFO
from tests.server.inline_engine import InlineEngine, site_of
from tests.server.serving import Site, events_of
from tests.tiny import make_variant

LENGTH = 1024
CHAT, MESSAGES, OLLAMA = "/v1/chat/completions", "/v1/messages", "/api/chat"
USER = {"role": "user", "content": "How is Bern?"}
ENDED = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<A>{% endif %}"
)


def continued(text: Any, **more: Any) -> dict[str, Any]:
    """Return a chat that continues the assistant's text."""
    told = {"role": "assistant", **text} if isinstance(text, dict) else {"role": "assistant", "content": text}
    return {"messages": [USER, told], "continue_final_message": True, "add_generation_prompt": False, **more}


async def test_the_prompt_ends_with_the_text_that_is_continued(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "It "}, {"type": "text", "text": "is "}]
    last = {"role": "assistant", "content": "It is "}
    async with tool_site(tmp_path, "cold.", ENDED) as at:
        for body in (continued("It is "), {**continued(parts), "add_generation_prompt": None}):
            (choice,) = (await at.post(CHAT, {**body, "max_tokens": 50})).json()["choices"]
            assert choice["message"]["content"] == "cold."
        first, joined = [bytes(each.prompt_token_ids).decode() for each in at.engine.submitted]
        blocks = [{"type": "text", "text": "It is "}]
        for turn in (last, {"role": "assistant", "content": blocks}):
            anthropic = await at.post(MESSAGES, {"messages": [USER, turn], "max_tokens": 50})
            assert anthropic.json()["content"] == [{"type": "text", "text": "cold."}]
            assert prompt_of(at) == first
        ollama = await at.post(OLLAMA, {"messages": [USER, last], "stream": False})
        assert ollama.json()["message"] == {"role": "assistant", "content": "cold."}
        assert prompt_of(at) == first
        ids = (await at.post("/tokenize", continued("It is "))).json()["tokens"]
        counted = await at.post(f"{MESSAGES}/count_tokens", {"messages": [USER, last]})
    assert first == "<user>How is Bern?</s><assistant>It is "
    assert joined == "<user>How is Bern?</s><assistant>It \nis "
    assert bytes(ids).decode() == first
    assert counted.json() == {"input_tokens": len(first)}


async def test_a_template_that_strips_texts_strips_the_end_of_the_prompt(tmp_path: Path) -> None:
    async with tool_site(tmp_path, template=ENDED.replace("m.content", "m.content | trim")) as at:
        ids = (await at.post("/tokenize", continued("It is "))).json()["tokens"]
    assert bytes(ids).decode() == "<user>How is Bern?</s><assistant>It is"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (continued("A", add_generation_prompt=True), "add_generation_prompt"),
        ({"messages": [USER], "continue_final_message": True}, "messages[0]"),
        (continued({"tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]}), "messages[1]"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
async def test_what_cannot_be_continued_is_refused(tmp_path: Path, path: str, body: dict[str, Any], param: str) -> None:
    async with tool_site(tmp_path) as at:
        assert (await at.error(path, body, 400))["param"] == param


async def test_a_template_that_leaves_the_text_out_is_named(tmp_path: Path) -> None:
    async with tool_site(tmp_path, template="{% for m in messages %}{{ m.role }}{% endfor %}") as at:
        error = await at.error(CHAT, continued("A"), 400)
    assert error["message"].startswith("messages: the chat template rejects the messages: the template omits")


@pytest.mark.parametrize(
    ("known", "text", "expected"),
    [
        ("It is cold", ".", {"content": "."}),
        ("It is ", "cold.", {"content": "cold."}),
        ("It is <", "tool_call> cold", {"content": "tool_call> cold"}),
        ("It is <tool", "s>", {"content": "s>"}),
        ("It is cold. ", HERMES_CALL, {"content": None, "arguments": '{"city": "K\u00f6ln"}'}),
        (HERMES_CALL[:30], HERMES_CALL[30:], {"content": None, "arguments": '{"city": "K\u00f6ln"}'}),
        (HERMES_CALL[:-20], HERMES_CALL[-20:], {"content": None, "arguments": '{"city": "K\u00f6ln"}'}),
    ],
)
async def test_the_answer_holds_only_what_is_new(
    tmp_path: Path, known: str, text: str, expected: dict[str, Any]
) -> None:
    async with tool_site(tmp_path, text) as at:
        body = continued(known, tools=[WEATHER, TIME], max_tokens=200)
        (choice,) = (await at.post(CHAT, body)).json()["choices"]
        deltas = [
            chunk["choices"][0]["delta"] for chunk in events_of(await at.post(CHAT, {**body, "stream": True}))[:-1]
        ]
    message, calls = choice["message"], choice["message"].get("tool_calls", [])
    assert message["content"] == expected["content"]
    assert "".join(delta.get("content") or "" for delta in deltas) == (expected["content"] or "")
    assert [call["function"]["arguments"] for call in calls] == [expected[k] for k in ("arguments",) if k in expected]
    assert all(call["id"].startswith("call_") and call["function"]["name"] == "get_weather" for call in calls)
    assert choice["finish_reason"] == ("tool_calls" if calls else "stop")


THOUGHTS: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "within the thought": (
        {"reasoning_content": "It is "}, "cold.\n</think>\n\nCold.", {"reasoning": "cold.", "content": "Cold."},
    ),
    "within the answer": ({"content": "It is "}, "cold.", {"content": "cold."}),
    "after the thought": (
        {"reasoning_content": "Hm.", "content": "It is "}, "cold.</think>", {"content": "cold.</think>"},
    ),
    "a tag in the content": (
        {"content": "<think>\nIt is "}, "cold.\n</think>\n\nCold.", {"reasoning": "cold.", "content": "Cold."},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("known", "text", "expected"), THOUGHTS.values(), ids=THOUGHTS)
async def test_reasoning_goes_on_where_the_text_ends(
    tmp_path: Path, known: dict[str, Any], text: str, expected: dict[str, Any]
) -> None:
    async with tool_site(tmp_path, text, templates.QWEN_3) as at:
        (choice,) = (await at.post(CHAT, continued(known, max_tokens=200))).json()["choices"]
        turn = {"role": "assistant", "content": known.get("content", ""), "thinking": known.get("reasoning_content")}
        ollama = (await at.post(OLLAMA, {"messages": [USER, turn], "stream": False})).json()["message"]
    message = choice["message"]
    assert {name: message[name] for name in ("reasoning", "content") if name in message} == expected
    assert (ollama.get("thinking"), ollama["content"]) == (expected.get("reasoning"), expected["content"])


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> InlineEngine:
    folder = make_variant("llama-gqa", tmp_path_factory.mktemp("llama"), max_position_embeddings=LENGTH)
    return InlineEngine(folder=folder, engine_info=replace(INFO, max_model_len=LENGTH))


@pytest.fixture
async def at(engine: InlineEngine) -> AsyncIterator[Site]:
    async with site_of(engine, templates.HERMES) as built:
        yield built


@pytest.mark.parametrize("known", ["", "{", '{"na', '{"name": "', '{"name": "abcde", "legs":'])
async def test_a_grammar_goes_on_where_the_text_ends(at: Site, known: str) -> None:
    (choice,) = (await at.post(CHAT, continued(known, guided_json=SCHEMA, max_tokens=60))).json()["choices"]
    assert choice["finish_reason"] == "stop"
    jsonschema.validate(json.loads(known + choice["message"]["content"]), SCHEMA)


async def test_a_text_that_the_grammar_does_not_allow_is_refused(at: Site) -> None:
    for _ in range(2):  # at the second request the grammar is compiled
        error = await at.error(CHAT, continued("Here it is: ", guided_json=SCHEMA, max_tokens=60), 400)
        assert (error["param"], error["code"]) == ("messages", "grammar_refused")
        assert "continues the last message" in error["message"]
    turn = {"role": "assistant", "content": "Here: "}
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    body = {"messages": [USER, turn], "max_tokens": 60, "output_config": form}
    assert (await at.post(MESSAGES, body)).json()["error"]["message"].startswith("messages")


async def test_a_text_after_which_nothing_may_follow_ends_at_once(at: Site) -> None:
    whole = '{"name": "a", "legs": 4}'
    (choice,) = (await at.post(CHAT, continued(whole, guided_json=SCHEMA, max_tokens=60))).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")


async def test_calls_and_their_grammar_go_on_where_the_text_ends(at: Site) -> None:
    tool = {"type": "function", "function": {"name": "grow", "parameters": SCHEMA, "strict": True}}
    known = 'Well.\n<tool_call>\n{"name": "grow", "arguments": {"name": "'
    (choice,) = (await at.post(CHAT, continued(known, tools=[tool], max_tokens=100))).json()["choices"]
    assert "Well." in (prompt_text := at.model.tokenizer.decode(at.engine.submitted[-1].prompt_token_ids, False))
    assert prompt_text.endswith(known), "the prompt is cut where the known text ends"
    (call,) = choice["message"]["tool_calls"]
    assert choice["message"]["content"] is None
    jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)
    assert grammar_of(at)
