"""Reasoning and tool calls in responses: the deltas of a parser are passed to the writer, and the items are sent back
as input.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from openai.types.responses import Response

from lightwell.model.tokenization.chat_formats.message import MessageDelta, ToolCallDelta
from lightwell.server.dialects.openai_responses.request import chat_request
from lightwell.server.dialects.openai_responses.writer import ResponseWriter
from lightwell.server.generation.choices import Piece
from lightwell.server.generation.conversation import ChatPiece, begin_conversation
from lightwell.server.http.errors import ApiError, BadRequest
from lightwell.server.schemas.openai_responses.responses import ResponsesRequest
from lightwell.server.schemas.structured_outputs import Constraint
from tests.server.dialects.test_openai_responses import LOGPROBS, events_of, stable
from tests.server.fake_client import logprobs
from tests.server.serving import site

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
QUESTION: dict[str, Any] = {"role": "user", "content": "Is it warmer in Oslo or in Rome?"}
TURN = (
    MessageDelta(reasoning="Two "),
    MessageDelta(reasoning="calls."),
    MessageDelta(content="I "),
    MessageDelta(content="look."),
    MessageDelta(tool_calls=(ToolCallDelta(index=0, id="call_a", name="weather"),)),
    MessageDelta(tool_calls=(ToolCallDelta(index=0, arguments='{"city": '),)),
    MessageDelta(tool_calls=(ToolCallDelta(index=0, arguments='"Oslo"}'),)),
    MessageDelta(tool_calls=(ToolCallDelta(index=1, id="call_b", name="weather", arguments='{"city": "Rome"}'),)),
)
OUTPUTS: list[dict[str, Any]] = [
    {"type": "function_call_output", "call_id": "call_a", "output": "2"},
    {"type": "function_call_output", "call_id": "call_b", "output": [{"type": "input_text", "text": "21"}]},
]


def chat_of(body: ResponsesRequest) -> dict[str, Any]:
    """Return the fields that a body gives of a chat."""
    return chat_request(body).chat.model_dump(exclude_unset=True)


async def written(
    folder: Path, deltas: Sequence[MessageDelta], finish_reason: str, **fields: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the response to these deltas, with one token per delta, and the events of its stream."""
    found: list[Any] = []
    for stream in (False, True):
        async with site(folder) as at:
            body = ResponsesRequest.model_validate({"input": "x", "stream": stream, "max_output_tokens": 1, **fields})
            chat = chat_request(ResponsesRequest.model_validate({"input": "x", "max_output_tokens": 1}))
            conversation = await begin_conversation(at.model, chat)
            writer = ResponseWriter(at.model, body, conversation)
            events = writer.begin()
            for i, delta in enumerate(deltas):
                reason = finish_reason if i == len(deltas) - 1 else None
                piece = Piece(token_ids=(65 + i,), logprobs=(logprobs(65 + i, 0),))
                events += await writer.push(ChatPiece(0, delta, reason, piece))
            conversation.close()
        found.append(events_of(events.decode()) if stream else orjson.loads(orjson.dumps(writer.response())))
    return found[0], found[1]


async def test_reasoning_text_and_calls_are_items_of_their_own(tmp_path: Path) -> None:
    choice = {"type": "function", "name": "weather"}
    whole, _ = await written(tmp_path, TURN, "tool_calls", tools=[WEATHER], tool_choice=choice)
    response = Response.model_validate(whole)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    thought, said, first, second = whole["output"]
    assert (thought["content"], thought["summary"]) == ([{"type": "reasoning_text", "text": "Two calls."}], [])
    assert said["content"][0]["text"] == response.output_text == "I look."
    assert (first["call_id"], first["name"], first["arguments"]) == ("call_a", "weather", '{"city": "Oslo"}')
    assert (second["call_id"], second["arguments"]) == ("call_b", '{"city": "Rome"}')
    assert {item["status"] for item in whole["output"]} == {"completed"}
    assert len({item["id"] for item in whole["output"]}) == 4
    assert (whole["status"], whole["tools"], whole["tool_choice"]) == ("completed", [WEATHER], choice)
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}


async def test_their_events_build_up_the_same_items(tmp_path: Path) -> None:
    whole, events = await written(tmp_path, TURN, "tool_calls", tools=[WEATHER])
    assert stable(events[-1]["response"]) == stable(whole)
    built: dict[int, dict[str, Any]] = {}
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                built[event["output_index"]] = {"item": event["item"], "text": ""}
            case "response.output_item.done":
                assert event["item"] == events[-1]["response"]["output"][event["output_index"]]
                assert event["item"]["id"] == built[event["output_index"]]["item"]["id"]
            case kind if kind.endswith(".delta"):
                assert event["item_id"] == built[event["output_index"]]["item"]["id"]
                built[event["output_index"]]["text"] += event["delta"]
    assert [each["text"] for each in built.values()] == [
        "Two calls.", "I look.", '{"city": "Oslo"}', '{"city": "Rome"}',
    ]  # fmt: skip
    assert [each["item"]["status"] for each in built.values()] == ["in_progress"] * 4
    kinds = [event["type"] for event in events]
    assert kinds.count("response.function_call_arguments.done") == 2
    assert kinds.count("response.reasoning_text.done") == 1


async def test_tokens_around_a_thought_and_a_call_are_no_part_of_what_is_said(tmp_path: Path) -> None:
    thought, said, call = TURN[0], TURN[2], TURN[7]
    nothing = MessageDelta()  # the tokens that open and close a thought and a call
    turn = (nothing, thought, nothing, said, nothing, nothing, call, nothing, said, nothing)
    whole, events = await written(tmp_path, turn, "stop", include=[LOGPROBS])
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call", "message"]
    told = [[entry["token"] for entry in item["content"][0]["logprobs"]] for item in whole["output"][1::2]]
    assert told == [["D"], ["I", "J"]]
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}
    assert stable(events[-1]["response"]) == stable(whole)


async def test_a_call_names_the_namespace_of_its_function(tmp_path: Path) -> None:
    """Use one function name in two namespaces and without one. The answer leaves the unsupported web search out."""
    here, there = ({"type": "namespace", "name": name, "description": "", "tools": [WEATHER]} for name in "ab")
    calls = [
        MessageDelta(tool_calls=(ToolCallDelta(index=i, id=f"call_{i}", name=name, arguments="{}"),))
        for i, name in enumerate(("weather", "a.weather", "b.weather"))
    ]
    tools = [WEATHER, here, there, {"type": "web_search", "external_web_access": False}]
    whole, events = await written(tmp_path, calls, "tool_calls", tools=tools)
    items = [item for item in Response.model_validate(whole).output if item.type == "function_call"]
    assert [(item.name, item.namespace) for item in items] == [("weather", None), ("weather", "a"), ("weather", "b")]
    assert whole["tools"] == tools[:3]
    assert stable(events[-1]["response"]) == stable(whole)
    body = ResponsesRequest.model_validate({"input": [QUESTION, *whole["output"]], "tools": tools})
    (_, turn) = chat_of(body)["messages"]
    assert [call["function"]["name"] for call in turn["tool_calls"]] == ["weather", "a.weather", "b.weather"]


async def test_reasoning_that_reaches_the_limit_is_incomplete(tmp_path: Path) -> None:
    whole, events = await written(tmp_path, TURN[:2], "length")
    assert [item["type"] for item in whole["output"]] == ["reasoning"]
    assert (whole["status"], whole["output"][0]["status"]) == ("incomplete", "incomplete")
    assert events[-1]["type"] == "response.incomplete"


async def test_items_of_a_turn_go_back_as_one_message_of_a_chat(tmp_path: Path) -> None:
    whole, _ = await written(tmp_path, TURN, "tool_calls", tools=[WEATHER])
    body = {"input": [QUESTION, *whole["output"], *OUTPUTS], "instructions": "Be brief."}
    call = {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    other = {"id": "call_b", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    said = [{"type": "text", "text": "I look."}]
    assert chat_of(ResponsesRequest.model_validate(body))["messages"] == [
        {"role": "system", "content": "Be brief."},
        QUESTION,
        {"role": "assistant", "reasoning_content": "Two calls.", "content": said, "tool_calls": [call, other]},
        {"role": "tool", "tool_call_id": "call_a", "content": "2"},
        {"role": "tool", "tool_call_id": "call_b", "content": [{"type": "text", "text": "21"}]},
    ]


def test_two_answers_in_a_row_stay_two_messages() -> None:
    items = [{"role": "assistant", "content": "A"}, {"role": "assistant", "content": "B"}, QUESTION]
    assert chat_of(ResponsesRequest.model_validate({"input": items}))["messages"] == items


def test_tools_and_formats_become_those_of_a_chat() -> None:
    schema = {"type": "object", "properties": {"x": {"enum": [None, 1]}}}
    text = {"format": {"type": "json_schema", "name": "point", "schema": schema, "strict": True}}
    choice = {"type": "function", "name": "weather"}
    body = {"input": "x", "tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False, "text": text}
    request = chat_request(ResponsesRequest.model_validate(body))
    fields = request.chat.model_dump(exclude_unset=True)
    function = {name: value for name, value in WEATHER.items() if name != "type"}
    assert fields["tools"] == [{"type": "function", "function": function}]
    assert fields["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert fields["parallel_tool_calls"] is False
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [choice]}
    fields = chat_of(ResponsesRequest.model_validate({**body, "tool_choice": allowed}))
    named = {"mode": "required", "tools": [{"type": "function", "function": {"name": "weather"}}]}
    assert fields["tool_choice"] == {"type": "allowed_tools", "allowed_tools": named}
    assert request.constraint == Constraint("text.format.schema", "json", schema)
    plain = chat_request(ResponsesRequest.model_validate({"input": "x", "text": {"format": {"type": "json_object"}}}))
    assert plain.constraint == Constraint("text.format", "json_object", True)
    assert plain.chat.tools is None


def test_the_first_function_of_a_namespace_tells_what_all_are_for() -> None:
    other = {"type": "function", "name": "other"}
    group = {"type": "namespace", "name": "met", "description": "Asks the office.", "tools": [WEATHER, other]}
    tools = chat_of(ResponsesRequest.model_validate({"input": "x", "tools": [group]}))["tools"]
    first, second = (tool["function"] for tool in tools)
    assert (first["name"], first["description"]) == ("met.weather", "Asks the office.\nTells the weather.")
    assert first["parameters"] == WEATHER["parameters"]
    assert second == {"name": "met.other"}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("messages", "input"),
        ("messages[0].content", "instructions"),
        ("messages[1].content", "input[0].content"),
        ("messages[2].reasoning_content", "input[1].reasoning_content"),
        ("messages[2].tool_calls[1].function.arguments", "input[3].arguments"),
        ("messages[3].tool_call_id", "input[4].call_id"),
        ("tools[0].function.parameters.type", "tools[0].parameters.type"),
        ("tools[2].function.parameters.type", "tools[2].tools[1].parameters.type"),
        ("tool_choice.function.name", "tool_choice.name"),
        ("max_tokens", "max_output_tokens"),
        ("seed", "seed"),
    ],
)
def test_errors_of_the_chat_name_the_fields_of_the_response(theirs: str, ours: str) -> None:
    calls = [{"type": "function_call", "call_id": each, "name": "f", "arguments": "{}"} for each in "ab"]
    items = [QUESTION, {"type": "reasoning", "summary": []}, *calls, {**OUTPUTS[0], "call_id": "a"}]
    group = {"type": "namespace", "name": "n", "tools": [WEATHER, {**WEATHER, "name": "other"}]}
    body = {"input": items, "instructions": "S", "tools": [WEATHER, {"type": "web_search"}, group]}
    names = chat_request(ResponsesRequest.model_validate(body)).names
    with pytest.raises(ApiError) as caught, names.in_errors():
        raise BadRequest(f"{theirs}: this is wrong.", param=theirs)
    assert (caught.value.param, caught.value.message) == (ours, f"{ours}: this is wrong.")
