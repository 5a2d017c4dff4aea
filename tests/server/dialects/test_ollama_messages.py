"""Messages of Ollama's API: requests converted to chats, and answers written in parts."""

import json
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from model.tokenization.chat_formats.message import MessageDelta, ToolCallDelta
from server.dialects.ollama.lines import Begun, LineWriter, chat_fields
from server.dialects.ollama.translation import chat_request, translated_messages
from server.generation.choices import Piece
from server.generation.conversation import ChatPiece
from server.generation.prompts.prompt import Prompt, packed
from server.generation.submission import Started
from server.schemas.ollama import OllamaChatRequest
from server.schemas.structured_outputs import Constraint
from tests.server.dialects.test_ollama import CHAT, MESSAGES, call_of
from tests.server.serving import Site


@pytest.mark.parametrize(
    ("format", "expected"),
    [
        ("json", Constraint("format", "json_object", True)),
        ({"type": "object"}, Constraint("format", "json", {"type": "object"})),
        ("", None),
    ],
)
async def test_a_format_is_the_constraint_of_the_text(format: Any, expected: Any, plain: Site) -> None:
    body = OllamaChatRequest.model_validate({"messages": MESSAGES, "format": format})
    assert chat_request(plain.context, body).constraint == expected


async def test_half_a_character_in_a_call_is_refused(plain: Site) -> None:
    """Check against an old failure: such a body caused an internal server error."""
    body = json.dumps({"messages": [call_of("\ud800")]})
    answer = await plain.http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("messages[0].tool_calls[0].function.arguments: the text holds a lone surr")


def test_a_call_may_hold_any_number() -> None:
    """Check against an old failure: an integer of more than 64 bits caused an internal server error."""
    messages = OllamaChatRequest.model_validate({"messages": [call_of(2**70)]}).messages
    (call,) = translated_messages(messages)[0]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"x": 2**70}


def test_calls_and_results_of_tools_find_each_other_without_ids() -> None:
    calls = [{"function": {"name": name, "arguments": {"x": 1}}} for name in ("f", "g", "f")]
    messages = [
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": calls},
        {"role": "tool", "content": "of g", "tool_name": "g"},
        {"role": "tool", "content": "of f", "tool_name": "f"},
        {"role": "tool", "content": "of f again"},
    ]
    told = translated_messages(OllamaChatRequest.model_validate({"messages": messages}).messages)
    ids = [call["id"] for call in told[1]["tool_calls"]]
    assert len(set(ids)) == 3
    assert told[1]["reasoning_content"] == "hm"
    assert [json.loads(call["function"]["arguments"]) for call in told[1]["tool_calls"]] == [{"x": 1}] * 3
    assert [message["tool_call_id"] for message in told[2:]] == [ids[1], ids[0], ids[2]]
    assert told[2]["name"] == "g"


def written(at: Site, *deltas: MessageDelta) -> LineWriter:
    """Return the writer of these parts of a message."""

    async def pieces() -> AsyncIterator[ChatPiece]:
        for delta in deltas:
            yield ChatPiece(0, delta, None, Piece())
        yield ChatPiece(0, MessageDelta(), "tool_calls", Piece(token_ids=(1,), finish_reason="stop"))

    begun = Begun(Prompt(packed((1, 2))), Started([], None), pieces(), None)
    return LineWriter(at.context, "org/tiny", chat_fields, begun, 0.0)


def call(index: int, arguments: str, name: str | None = None) -> MessageDelta:
    return MessageDelta(tool_calls=(ToolCallDelta(index=index, id=name, name=name, arguments=arguments),))


async def test_thinking_and_calls_have_their_fields_and_a_call_is_whole(plain: Site) -> None:
    deltas = [
        MessageDelta(reasoning="h"), MessageDelta(reasoning="m"), MessageDelta(content="So: "),
        call(0, "", "f"), call(0, '{"x":\r\n'), call(0, "[1]}"), call(1, "{}", "g"),
    ]  # fmt: skip
    lines = [json.loads(line) async for line in written(plain, *deltas).lines()]
    whole = orjson.loads(orjson.dumps(await written(plain, *deltas).whole()))
    told = whole["message"]
    assert (told["thinking"], told["content"]) == ("hm", "So: ")
    assert [each["function"] for each in told["tool_calls"]] == [
        {"index": 0, "name": "f", "arguments": {"x": [1]}},
        {"index": 1, "name": "g", "arguments": {}},
    ]
    assert [line["message"].get("thinking") for line in lines] == ["h", "m", None, None, None]
    assert [line["message"]["content"] for line in lines] == ["", "", "So: ", "", ""]
    assert lines[3]["message"]["tool_calls"] == told["tool_calls"]
    assert (lines[3]["done"], lines[4]["done"], lines[4]["done_reason"]) == (False, True, "stop")
    assert whole["done_reason"] == "stop"


async def test_a_call_that_the_answers_end_cuts_off_is_text(plain: Site) -> None:
    whole = orjson.loads(orjson.dumps(await written(plain, call(0, '{"x": ', "f")).whole()))
    lines = [json.loads(line) async for line in written(plain, call(0, '{"x": ', "f")).lines()]
    assert json.loads(whole["message"]["content"]) == {"name": "f", "arguments": '{"x": '}
    assert "tool_calls" not in whole["message"]
    assert lines[0]["message"] == whole["message"]
