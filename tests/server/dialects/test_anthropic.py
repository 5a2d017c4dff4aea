"""POST /v1/messages and POST /v1/messages/count_tokens: bodies become chats, and answers become blocks."""

import json
from pathlib import Path
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from lightwell.model.tokenization.chat_formats.message import MessageDelta, ToolCallDelta
from lightwell.server.dialects.anthropic.blocks import ContentWriter
from lightwell.server.dialects.anthropic.translation import chat_request
from lightwell.server.engine.messages.request import GenerateTask
from lightwell.server.generation.choices import Piece
from lightwell.server.generation.conversation import ChatPiece
from lightwell.server.http.errors import BadRequest, EngineError
from lightwell.server.schemas.anthropic.messages import MAX_TOOLS, MessagesRequest
from lightwell.server.schemas.structured_outputs import Constraint
from tests.server.dialects.routes import refuses
from tests.server.dialects.test_admin import bearer, write_keys
from tests.server.fake_client import FakeEngine
from tests.server.inline_engine import InlineEngine
from tests.server.serving import TEMPLATE, Site, error_of, events_of, site

PATH = "/v1/messages"
USER: dict[str, Any] = {"role": "user", "content": "U"}
BODY: dict[str, Any] = {"messages": [USER], "max_tokens": 4}
EPHEMERAL = {"type": "ephemeral"}
TEXT = {"type": "text", "text": "T"}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "ä"}}
JSON_FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "seen"}


def of_user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}], "max_tokens": 4}


async def prompt_of(folder: Path, body: dict[str, Any], template: str | None = None) -> str:
    """Return the prompt that the model gets."""
    async with site(folder, template=template or TEMPLATE) as at:
        answer = await at.post(PATH, {**BODY, **body})
        assert answer.status_code == 200, answer.text
        return bytes(at.engine.submitted[0].prompt_token_ids).decode()


async def test_a_message_has_anthropics_shape(plain: Site) -> None:
    answer = await plain.post(PATH, BODY)
    message = answer.json()
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "org/tiny",
        "content": [{"type": "text", "text": "hihi"}],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        # The fake engine reports 2 of 8 tokens as cached.
        "usage": {
            "input_tokens": len("<user>U<A>") - 2,
            "cache_read_input_tokens": 2,
            "cache_creation_input_tokens": 0,
            "output_tokens": 4,
        },
    }
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


async def test_the_system_and_blocks_become_what_the_template_writes(tmp_path: Path) -> None:
    body = {
        "system": [{**TEXT, "cache_control": EPHEMERAL}, {"type": "text", "text": "S"}],
        "messages": [
            {"role": "user", "content": [TEXT, {"type": "text", "text": "V", "cache_control": EPHEMERAL}]},
            {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, {**TEXT, "citations": None}]},
            {"role": "user", "content": "W"},
        ],
    }
    assert await prompt_of(tmp_path, body) == "<system>T\nS<user>T\nV<assistant>T<user>W<A>"


async def test_what_the_assistant_thought_is_for_the_template(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.reasoning_content }}|{{ m.content }};{% endfor %}"
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    turns = [USER, {"role": "assistant", "content": [thought, TEXT]}, USER]
    assert await prompt_of(tmp_path, {"messages": turns}, template) == "|U;Hm.|T;|U;"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, ",,"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "True,True,"),
        ({"thinking": {"type": "adaptive"}}, "True,True,"),
        ({"thinking": {"type": "disabled"}}, "False,False,"),
        ({"output_config": {"effort": "low"}}, ",,low"),
        ({"thinking": {"type": "disabled"}, "chat_template_kwargs": {"thinking": "deep"}}, "False,deep,"),
    ],
)
async def test_thinking_and_effort_are_told_to_the_template(
    asked: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    template = "|{{ enable_thinking }},{{ thinking }},{{ reasoning_effort }}"
    assert await prompt_of(tmp_path, asked, template) == f"|{expected}"


async def test_what_claude_code_sends_is_taken(plain: Site) -> None:
    """Send a body of Claude Code without tools. Its `max_tokens` may be larger than the context."""
    body = {
        "model": "org/tiny",
        "messages": [{"role": "user", "content": [{**TEXT, "cache_control": EPHEMERAL}]}],
        "system": [{**TEXT, "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        "tools": [],
        "metadata": {"user_id": "user_1"},
        "max_tokens": 32000,
        "thinking": {"type": "enabled", "budget_tokens": 31999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "temperature": 1,
        "stream": True,
    }
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a,b", "x-app": "cli"}
    answer = await plain.post(f"{PATH}?beta=true", body, headers=headers)
    assert answer.status_code == 200, answer.text
    *_, delta, stop = events_of(answer)
    assert delta["delta"] == {"stop_reason": "model_context_window_exceeded", "stop_sequence": None}
    assert delta["usage"]["output_tokens"] == 64 - len("<system>T<user>T<A>")
    assert stop == {"type": "message_stop"}


@pytest.mark.parametrize(
    ("engine", "more", "reason"),
    [
        (FakeEngine(eos_after=2), {}, ("end_turn", None)),
        (FakeEngine(eos_after=2), {"stop_token_ids": [200]}, ("end_turn", None)),
        (FakeEngine(), {"stop_sequences": ["x", "ih"]}, ("stop_sequence", "ih")),
        (FakeEngine(), {}, ("max_tokens", None)),
        (FakeEngine(), {"max_tokens": 2000}, ("model_context_window_exceeded", None)),
    ],
)
async def test_why_an_answer_ended_is_told_the_same_way_whole_and_streamed(
    engine: FakeEngine, more: dict[str, Any], reason: tuple[str, str | None], tmp_path: Path
) -> None:
    async with site(tmp_path, engine) as at:
        message = (await at.post(PATH, {**BODY, **more})).json()
        *_, delta, _ = events_of(await at.post(PATH, {**BODY, **more, "stream": True}))
    assert (message["stop_reason"], message["stop_sequence"]) == reason
    assert (delta["delta"]["stop_reason"], delta["delta"]["stop_sequence"]) == reason
    assert delta["usage"] == message["usage"]


async def test_events_have_their_names_and_their_order(plain: Site) -> None:
    answer = await plain.post(PATH, {**BODY, "max_tokens": 2, "stream": True})
    events = events_of(answer)
    names = [line.removeprefix("event: ") for line in answer.text.split("\n") if line.startswith("event: ")]
    deltas = ["content_block_delta"] * 2
    expected = ["message_start", "content_block_start", *deltas, "content_block_stop", "message_delta", "message_stop"]
    assert names == expected == [event["type"] for event in events]
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["stop_reason"] is None
    assert [event["index"] for event in events if "index" in event] == [0, 0, 0, 0]


async def test_a_stream_that_fails_ends_in_an_error_of_this_api(tmp_path: Path) -> None:
    async with site(tmp_path, FakeEngine(fail_after=2, failure=EngineError("boom", code="engine_error"))) as at:
        answer = await at.post(PATH, {**BODY, "stream": True})
    assert answer.text.endswith("\n\n")
    assert answer.text.split("\n")[-4] == "event: error"
    assert events_of(answer)[-1] == {
        "type": "error",
        "error": {"type": "api_error", "message": "boom", "param": None, "code": "engine_error"},
        "request_id": answer.headers["request-id"],
    }


async def test_our_own_fields_mean_what_they_mean_in_a_chat(plain: Site) -> None:
    more = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3, "min_tokens": 2, "ignore_eos": True,
        "logit_bias": {"7": 1.5}, "repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.2,
    }  # fmt: skip
    for path in (PATH, "/v1/chat/completions"):
        assert (await plain.post(path, {**BODY, **more})).status_code == 200
    tasks = [each.task for each in plain.engine.submitted]
    assert tasks[0] == tasks[1]
    assert isinstance(tasks[0], GenerateTask)
    assert tasks[0].sampling.top_k == 7


async def test_rows_come_with_the_block_and_with_its_deltas(plain: Site) -> None:
    body = {**BODY, "attention": {"layers": 0, "heads": 0, "prompt": True}}
    (block,) = (await plain.post(PATH, body)).json()["content"]
    events = events_of(await plain.post(PATH, {**body, "stream": True}))
    last = len("<user>U<A>") - 1
    assert block["attention"]["query_positions"] == [last, last + 1, last + 2, last + 3]
    deltas = [event for event in events if event["type"] == "content_block_delta"]
    assert [event["attention"]["query_positions"] for event in deltas] == [[last + i] for i in range(4)]
    assert block["attention"]["prompt"] == deltas[0]["attention"]["prompt"]
    for i, event in enumerate(deltas):
        (row,) = event["attention"]["attention"][0][0]
        assert block["attention"]["attention"][0][0][i][: last + 1 + i] == row


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an image": (of_user(TEXT, IMAGE), "messages[0].content[1].type"),
    "a document": (of_user({"type": "document", "source": {}}), "messages[0].content[0].type"),
    "an image of a tool": (of_user({**RESULT, "content": [TEXT, IMAGE]}), "messages[0].content[0].content[1].type"),
    "an image of the system": ({"system": [IMAGE]}, "system[0].type"),
    "a tool of the server": ({"tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}]}, "tools[1].type"),
    "the user's call": (of_user(CALL), "messages[0].content[0]"),
    "the assistant's result": ({"messages": [{"role": "assistant", "content": [RESULT]}]}, "messages[0].content[0]"),
    "a block without a type": (of_user({"text": "T"}), "messages[0].content[0].type"),
    "a block without its text": (of_user({"type": "text"}), "messages[0].content[0].text"),
    "a field that no block has": (of_user({**TEXT, "txet": "T"}), "messages[0].content[0].txet"),
    "calls without results": ({"messages": [USER, {"role": "assistant", "content": [CALL]}]}, "messages[1]"),
    "a tool that must be called of none": ({"tool_choice": {"type": "any"}}, "tool_choice"),
    "a call of a tool that no search has found": (
        {"tools": [{**TOOL, "defer_loading": True}], "tool_choice": {"type": "tool", "name": "look"}}, "tool_choice",
    ),
    "a reference to a tool as a block of its own": (
        of_user({"type": "tool_reference", "tool_name": "look"}), "messages[0].content[0].type",
    ),
    "a tool without a name": ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    "too many tools": ({"tools": [TOOL] * (MAX_TOOLS + 1)}, "tools"),
    "edits of the context": ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management"),
    "a container": ({"container": "container_1"}, "container"),
    "servers of tools": ({"mcp_servers": [{"type": "url", "url": "https://example.org", "name": "x"}]}, "mcp_servers"),
    "several answers": ({"n": 2}, "n"),
    "OpenAI's name": ({"stop": "x"}, "stop"),
    "no stop sequence": ({"stop_sequences": [""]}, "stop_sequences[0]"),
    "another's thinking": ({"thinking": {"type": "sometimes"}}, "thinking.type"),
    "a role of OpenAI's": ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    "no token": ({"logit_bias": {"x": 1}}, "logit_bias"),
    "half a character": ({"system": "\ud800"}, "system"),
    "two formats": (
        {"output_format": {**JSON_FORMAT, "schema": {}}, "output_config": {"format": JSON_FORMAT}},
        "output_format",
    ),
    "nothing to generate": ({"max_tokens": 0}, "max_tokens"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
async def test_what_is_not_there_is_refused_by_its_path(what: str, plain: Site) -> None:
    body, path = REFUSED[what]
    content = json.dumps({**BODY, **body}).encode()
    answer = await plain.http.post(PATH, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    error = error_of(answer)
    assert (error["param"], error["type"]) == (path, "invalid_request_error")
    assert error["message"].startswith(f"{path}: ")
    assert not plain.engine.submitted


async def test_what_is_wrong_with_the_chat_is_told_in_the_names_of_this_api(tmp_path: Path) -> None:
    template = "{{ raise_exception('no system') }}"
    async with site(tmp_path, template=template) as at:
        error = await at.error(PATH, {**BODY, "system": "S"}, 400)
        assert error["message"].startswith("messages: the chat template rejects the messages: ")
    many = {"role": "user", "content": [RESULT] * 256}
    async with site(tmp_path) as at:  # more messages than a chat may have
        error = await at.error(PATH, {**BODY, "messages": [many] * 17}, 400)
    assert error["param"].startswith("messages")


async def test_a_prompt_that_is_too_long_is_told_in_the_words_that_claude_code_looks_for(plain: Site) -> None:
    await refuses(plain, PATH, {**BODY, "messages": [{"role": "user", "content": "x" * 99}]}, "prompt is too long")


async def test_tokens_are_counted_of_any_conversation_while_the_model_loads(tmp_path: Path) -> None:
    turns = [USER, {"role": "assistant", "content": "x" * 100}]
    async with site(tmp_path, FakeEngine(is_ready=False)) as at:
        for messages, text in (([USER], "<system>S<user>U<A>"), (turns, f"<system>S<user>U<assistant>{'x' * 100}")):
            body = {"model": "org/tiny", "messages": messages, "system": "S", "tools": [], "max_tokens": 3}
            answer = await at.post(f"{PATH}/count_tokens?beta=true", body)
            assert answer.json() == {"input_tokens": len(text)}
        assert not at.engine.submitted
    async with site(tmp_path, template=None) as at:
        await refuses(at, f"{PATH}/count_tokens", {"messages": [USER]}, code="no_chat_template", param="messages")


async def test_a_key_is_taken_from_either_header(tmp_path: Path) -> None:
    async with site(tmp_path, api_key_file=write_keys(tmp_path, root="admin = true")) as at:
        for headers in (bearer("root"), {"x-api-key": bearer("root")["authorization"].removeprefix("Bearer ")}):
            assert (await at.post(PATH, BODY, headers=headers)).status_code == 200
        refused = await at.post(PATH, BODY, headers={"x-api-key": "wrong"})
        assert (refused.status_code, error_of(refused)["type"]) == (401, "authentication_error")


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
        "name": "wait", "input_schema": {}, "type": "custom", "strict": True, "cache_control": {"type": "ephemeral"},
    }  # fmt: skip
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
