"""Tool calls and reasoning: the bodies, the fields of an answer, and the sum of a stream's chunks."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightwell_client import AsyncClient, ChatMessage, InvalidResponse
from tests.client.conftest import Asker
from tests.client.wire_server import Reply, WireServer, event_stream, events
from tests.model.tokenization.chat_formats import templates
from tests.server.dialects.test_tools import HERMES_CALL, TIME, WEATHER, prompt_of, tool_site

CALLS = [
    {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Köln"}'}},
    {"id": "call_2", "type": "function", "function": {"name": "get_time", "arguments": "{}"}},
]


def answer(message: dict[str, Any], finish_reason: str = "tool_calls") -> Reply:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}
    return Reply(body={"id": "chat-1", "model": "toy", "choices": [choice]})


def chunk(delta: dict[str, Any], index: int = 0, finish_reason: str | None = None) -> dict[str, Any]:
    return {"id": "chat-1", "choices": [{"index": index, "delta": delta, "finish_reason": finish_reason}]}


def part(index: int, arguments: str, **named: Any) -> dict[str, Any]:
    """Return the delta of a tool call; the first delta of a call also has its id and name."""
    name = {"name": named.pop("name")} if named else {}
    return {"tool_calls": [{"index": index, **named, "function": {**name, "arguments": arguments}}]}


def test_the_fields_of_tools_and_forms_go_as_they_are_named(ask: Asker, server: WireServer) -> None:
    named = {"type": "function", "function": {"name": "get_time"}}
    ask.call("chat", "Hi", tools=[WEATHER, TIME], tool_choice=named, parallel_tool_calls=False, include_reasoning=False)
    ask.call("chat", "Hi", response_format={"type": "json_object"})
    ask.call("generate", "Hi", structured_outputs={"choice": ["yes", "no"]})
    tools, form, choice = (seen.body for seen in server.seen)
    assert tools["tools"] == [WEATHER, TIME]
    assert (tools["tool_choice"], tools["parallel_tool_calls"], tools["include_reasoning"]) == (named, False, False)
    assert form["response_format"] == {"type": "json_object"}
    assert choice == {"prompt": "Hi", "structured_outputs": {"choice": ["yes", "no"]}}


def test_an_answer_has_its_calls_and_goes_back_as_it_came(ask: Asker, server: WireServer) -> None:
    server.will(answer({"content": None, "tool_calls": CALLS}))
    message = ask.call("chat", "How is it in Köln?", tools=[WEATHER, TIME]).message
    assert [call.function.name for call in message.tool_calls] == ["get_weather", "get_time"]
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Köln"}
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3 degrees"}
    ask.call("chat", [{"role": "user", "content": "How is it in Köln?"}, message, result])
    assert server.seen[1].body["messages"][1:] == [{"role": "assistant", "tool_calls": CALLS}, result]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_read_by_both_of_its_names(ask: Asker, server: WireServer, name: str) -> None:
    server.will(answer({"content": "Cold.", name: "It is winter.", "tool_calls": None}, "stop"))
    message = ask.call("chat", "Hi").message
    assert (message.reasoning, message.content, message.tool_calls) == ("It is winter.", "Cold.", [])
    server.will(event_stream(events(chunk({"role": "assistant", "content": ""}), chunk({name: "Win"}), chunk({}))))
    assert [each.choices[0].delta.reasoning for each in ask.collect("chat_stream", "Hi")] == [None, "Win", None]


def test_without_reasoning_and_calls_there_are_none(ask: Asker) -> None:
    message = ask.call("chat", "Hi").message
    assert (message.reasoning, message.tool_calls) == (None, [])


def test_chunks_of_a_stream_add_up_to_the_message(ask: Asker, server: WireServer) -> None:
    """Mix the deltas of two calls and of two choices, as a server may send them."""
    deltas = [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Other."}, index=1),
        chunk({"reasoning": "Which ", "reasoning_content": "Which "}),
        chunk({"reasoning": "city?"}),
        chunk({"content": "I look."}),
        chunk(part(0, "", id="call_1", type="function", name="get_weather")),
        chunk(part(1, "{", id="call_2", type="function", name="get_time")),
        chunk(part(0, '{"city": ')),
        chunk(part(1, "}")),
        chunk(part(0, '"Köln"}')),
        chunk({}, finish_reason="tool_calls"),
    ]
    server.will(event_stream(events(*deltas)))
    chunks = ask.collect("chat_stream", "Hi", tools=[WEATHER, TIME])
    message = ChatMessage.from_chunks(chunks)
    assert (message.content, message.reasoning) == ("I look.", "Which city?")
    assert [call.model_dump() for call in message.tool_calls] == CALLS
    assert ChatMessage.from_chunks(chunks, 1).content == "Other."
    ask.call("chat", [ChatMessage.from_chunks(chunks, 1), {"role": "user", "content": "Why?"}])
    assert server.seen[1].body["messages"][0] == {"role": "assistant", "content": "Other."}


def test_a_call_without_a_name_is_no_answer(ask: Asker, server: WireServer) -> None:
    server.will(answer({"tool_calls": [{"id": "call_1", "function": {"arguments": "{}"}}]}))
    with pytest.raises(InvalidResponse, match="name"):
        ask.call("chat", "Hi")


async def test_lightwells_routes_stream_calls_that_are_joined_and_sent_back(tmp_path: Path) -> None:
    turns: list[Any] = [{"role": "user", "content": "How is it?"}]
    text = f"It could be winter.</think>I look.\n{HERMES_CALL}\n{HERMES_CALL}"
    async with tool_site(tmp_path, text, templates.OPEN_THOUGHT) as at:
        client = AsyncClient("http://lightwell", http_client=at.http)
        whole = (await client.chat(turns, tools=[WEATHER])).message
        joined = ChatMessage.from_chunks([chunk async for chunk in client.chat_stream(turns, tools=[WEATHER])])
        for message in (whole, joined):
            assert (message.content, message.reasoning) == ("I look.", "It could be winter.")
        assert [call.function for call in joined.tool_calls] == [call.function for call in whole.tool_calls]
        assert json.loads(joined.tool_calls[1].function.arguments) == {"city": "Köln"}
        results = [{"role": "tool", "tool_call_id": call.id, "content": "3 degrees"} for call in joined.tool_calls]
        await client.chat([*turns, joined, *results], tools=[WEATHER])
        assert prompt_of(at).count("3 degrees") == 2
        silent = await client.chat(turns, tools=[WEATHER], include_reasoning=False)
        assert silent.message.reasoning is None
