"""Tools, thinking and formats in Anthropic's API: bodies converted to chats, and answers converted to blocks."""

import json
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from model.tokenization.chat_formats.message import MessageDelta, ToolCallDelta
from server.dialects.anthropic.blocks import ContentWriter
from server.dialects.anthropic.translation import chat_request
from server.generation.choices import Piece
from server.generation.conversation import ChatPiece
from server.http.errors import BadRequest
from server.schemas.anthropic.messages import MessagesRequest
from server.schemas.structured_outputs import Constraint
from tests.server.dialects.test_anthropic import BODY, CALL, JSON_FORMAT, RESULT, TEXT, TOOL, USER
from tests.server.inline_engine import InlineEngine
from tests.server.serving import site

EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
THOUGHT = {"type": "thinking", "thinking": "I look.", "signature": ""}
TURNS = [
    USER,
    {"role": "assistant", "content": [THOUGHT, TEXT, CALL, {**CALL, "id": "toolu_2", "input": {}}]},
    {
        "role": "user",
        "content": [RESULT, {**RESULT, "tool_use_id": "toolu_2", "content": [TEXT], "is_error": True}, TEXT],
    },
]
ANSWER = (
    MessageDelta(reasoning="Hm"),
    MessageDelta(reasoning=".", content="I "),
    MessageDelta(content="look."),
    MessageDelta(tool_calls=(ToolCallDelta(index=0, id="call_1", name="look"),)),
    MessageDelta(tool_calls=(ToolCallDelta(index=0, arguments='{"at": '),)),
    MessageDelta(tool_calls=(ToolCallDelta(index=0, arguments='"ä"}'),)),
    MessageDelta(
        tool_calls=(
            ToolCallDelta(index=1, id="call_2", name="look"),
            ToolCallDelta(index=2, id="call_3", name="wait", arguments="{}"),
        )
    ),
)
CONTENT = [
    {"type": "thinking", "thinking": "Hm.", "signature": ""},
    {"type": "text", "text": "I look."},
    {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": "ä"}},
    {"type": "tool_use", "id": "call_2", "name": "look", "input": {}},
    {"type": "tool_use", "id": "call_3", "name": "wait", "input": {}},
]
BEGUN: dict[str, Any] = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None,
    "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 0},
}  # fmt: skip


def chat_of(**fields: Any) -> dict[str, Any]:
    body = MessagesRequest.model_validate({**BODY, **fields})
    return chat_request(body).chat.model_dump(exclude_unset=True)


def write(deltas: tuple[MessageDelta, ...], *, streams: bool, **options: Any) -> tuple[list[Any], list[Any]]:
    """Return the events and the whole blocks of an answer."""
    writer = ContentWriter(None, 1, streams=streams, **{"shows_thinking": True, **options})
    events = [event for delta in deltas for event in writer.take(ChatPiece(0, delta, None, Piece(token_ids=(1,))))]
    return [*events, *writer.end()], writer.whole()


def accumulated(events: list[Any]) -> list[Any]:
    """Return the content that Anthropic's package builds from the events, which must have types of the package."""
    message: Any = None
    buffers: dict[int, bytes] = {}
    for event in ({"type": "message_start", "message": BEGUN}, *events):
        known = EVENT.validate_python(event, strict=True)
        message = accumulate_event(event=known, current_snapshot=message, json_bufs=buffers)
    return [block.to_dict() for block in message.content]


def test_calls_and_results_become_a_chats_messages() -> None:
    messages = chat_of(messages=TURNS, system="S")["messages"]
    functions = [{"name": "look", "arguments": arguments} for arguments in ('{"at": "ä"}', "{}")]
    assert messages == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {
            "role": "assistant",
            "content": "T",
            "reasoning_content": "I look.",
            "tool_calls": [
                {"id": f"toolu_{i + 1}", "type": "function", "function": function}
                for i, function in enumerate(functions)
            ],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "seen"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: T"},
        {"role": "user", "content": "T"},
    ]


def test_tools_become_functions() -> None:
    plain = {
        "name": "wait",
        "input_schema": {},
        "type": "custom",
        "strict": True,
        "cache_control": {"type": "ephemeral"},
    }
    assert chat_of(tools=[TOOL, plain])["tools"] == [
        {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "wait", "parameters": {}, "strict": True}},
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, {}),
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "look"}, {"tool_choice": {"type": "function", "function": {"name": "look"}}}),
        ({"type": "auto", "disable_parallel_tool_use": True}, {"tool_choice": "auto", "parallel_tool_calls": False}),
    ],
)
def test_which_tools_are_called_is_said_as_chats_say_it(choice: Any, expected: dict[str, Any]) -> None:
    fields = chat_of(tools=[TOOL], tool_choice=choice)
    assert {name: fields[name] for name in ("tool_choice", "parallel_tool_calls") if name in fields} == expected


def test_a_deferred_tool_is_there_once_a_search_of_the_clients_has_found_it() -> None:
    late, never = ({**TOOL, "name": name, "defer_loading": True} for name in ("late", "never"))
    tools = [late, never, {**TOOL, "defer_loading": False}]
    before = chat_of(tools=tools)
    assert [tool["function"]["name"] for tool in before["tools"]] == ["look"]
    found = {**RESULT, "content": [TEXT, {"type": "tool_reference", "tool_name": "late"}]}
    turns = [USER, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [found]}]
    after = chat_of(tools=tools, messages=turns)
    assert [tool["function"]["name"] for tool in after["tools"]] == ["late", "look"]
    assert after["messages"][-1]["content"] == "T\nThe tool late was found."


@pytest.mark.parametrize("asked", [{"output_format": JSON_FORMAT}, {"output_config": {"format": JSON_FORMAT}}])
def test_a_schema_becomes_the_constraint_of_the_text(asked: dict[str, Any]) -> None:
    constraint = chat_request(MessagesRequest.model_validate({**BODY, **asked})).constraint
    field = "output_format" if "output_format" in asked else "output_config.format"
    assert constraint == Constraint(f"{field}.schema", "json", {"type": "object"})


async def test_the_text_keeps_to_a_schema_or_the_schema_is_refused_by_its_path(
    engines: dict[str, InlineEngine],
) -> None:
    """Generate with random weights, which give no JSON without a grammar."""
    engine = engines["llama-gqa"]
    choices = {"type": "object", "properties": {"fox": {"enum": ["red", "grey"]}}, "required": ["fox"]}
    schema = {**choices, "additionalProperties": False}
    async with site(engine.folder, engine, config=engine.model_config) as at:
        asked = {**BODY, "max_tokens": 99, "output_config": {"format": {"type": "json_schema", "schema": schema}}}
        message = (await at.post("/v1/messages", asked)).json()
        error = await at.error(
            "/v1/messages", {**BODY, "output_format": {**JSON_FORMAT, "schema": {"type": "no"}}}, 400
        )
    assert json.loads(message["content"][0]["text"])["fox"] in ("red", "grey")
    assert message["stop_reason"] == "end_turn"
    assert error["param"].startswith("output_format.schema")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("messages[0]", "system"),
        ("messages[0].content", "system"),
        ("messages[2].tool_calls[1].function.arguments", "messages[1].content[3].input"),
        ("messages[4]", "messages[2].content[1]"),
        ("tools[1].function.parameters.type", "tools[2].input_schema.type"),
        ("tools[0].function.name", "tools[1].name"),
        ("tools", "tools"),
        ("tool_choice.function.name", "tool_choice.name"),
        ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
        ("stop_token_ids", "stop_token_ids"),
        ("messages", "messages"),
    ],
)
def test_what_is_wrong_with_the_chat_is_told_in_the_bodys_names(theirs: str, ours: str) -> None:
    tools = [{**TOOL, "name": "later", "defer_loading": True}, TOOL, {**TOOL, "name": "wait"}]
    body = MessagesRequest.model_validate({**BODY, "messages": TURNS, "system": "S", "tools": tools})
    with pytest.raises(BadRequest, match="no such") as caught, chat_request(body).names.in_errors():
        raise BadRequest(f"{theirs}: no such thing.", param=theirs, code="invalid_value")
    assert (caught.value.param, caught.value.message) == (ours, f"{ours}: no such thing.")
    assert caught.value.code == "invalid_value"


def test_an_input_that_is_nested_too_deeply_is_refused() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    turn = {"role": "assistant", "content": [{**CALL, "input": deep}]}
    with pytest.raises(BadRequest, match=r"messages\[1\]: the input of a tool_use is nested too deeply"):
        chat_of(messages=[USER, turn, USER])


def test_an_answer_is_the_same_whole_and_streamed() -> None:
    events, _ = write(ANSWER, streams=True)
    assert accumulated(events) == CONTENT
    assert write(ANSWER, streams=False)[1] == CONTENT
    assert [event["type"] for event in events if event["type"] != "content_block_delta"] == [
        "content_block_start",
        "content_block_stop",
    ] * len(CONTENT)


@pytest.mark.parametrize("arguments", ['{"at": "x', "[1]", "look!", "[" * 100_000])
def test_arguments_that_are_no_object_are_handed_on_as_text(arguments: str) -> None:
    call = ToolCallDelta(index=0, id="call_1", name="look", arguments=arguments)
    (block,) = write((MessageDelta(tool_calls=(call,)),), streams=False)[1]
    assert block["input"] == {"INVALID_JSON": arguments}
    Message.model_validate({**BEGUN, "content": [block]})
