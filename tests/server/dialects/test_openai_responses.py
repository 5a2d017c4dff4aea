"""POST /v1/responses, checked with the types of the openai package."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from lightwell.server.engine.messages.request import GenerateTask
from lightwell.server.http.connection import HttpProtocol
from lightwell.server.http.errors import EngineError
from tests.server.bare_server import PATIENCE, serving
from tests.server.dialects.routes import refuses
from tests.server.fake_client import FakeEngine
from tests.server.serving import Site, site

PATH = "/v1/responses"
ROWS = {"layers": 0, "heads": [0, 1]}
LOGPROBS = "message.output_text.logprobs"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
CONVERSATION = [
    {"role": "developer", "content": "D"},
    {"role": "user", "content": [{"type": "input_text", "text": "U"}, {"type": "input_text", "text": "V"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "T"}]},
    {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [
            {"type": "output_text", "text": "A", "annotations": [], "logprobs": [], "attention": {"shape": []}}
        ],
    },
    {"type": "message", "role": "user", "content": "W"},
]
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}{% endfor %}"
)


def events_of(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream, after checking each against the package's types, its name and its number."""
    events = []
    for number, block in enumerate(text.removesuffix("\n\n").split("\n\n")):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        EVENT.validate_python(event)
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        events.append(event)
    return events


def stable(response: dict[str, Any]) -> dict[str, Any]:
    """Return a response without ids and times."""
    output = [{**item, "id": None} for item in response["output"]]
    return {**response, "id": None, "created_at": None, "completed_at": None, "output": output}


async def test_items_become_the_messages_that_the_template_writes(tmp_path: Path) -> None:
    async with site(tmp_path, template=TEMPLATE) as at:
        answer = await at.post(PATH, {"input": CONVERSATION, "instructions": "S", "max_output_tokens": 1})
        await at.post(PATH, {"input": "U", "max_output_tokens": 1})
        prompts = [bytes(each.prompt_token_ids) for each in at.engine.submitted]
    assert answer.status_code == 200, answer.text
    assert prompts == [b"<system>S<system>D<user>U\nV<assistant>(T)A<user>W", b"<user>U"]


async def test_a_whole_answer_is_a_response_of_the_package(tmp_path: Path) -> None:
    body = {
        "input": "x",
        "instructions": "S",
        "max_output_tokens": 4,
        "temperature": 0.5,
        "metadata": {"a": "b"},
        "user": "somebody",
        "store": True,
        "service_tier": "auto",
        "tool_choice": "auto",
        "include": ["reasoning.encrypted_content"],
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
    }
    async with site(tmp_path, FakeEngine(eos_after=2)) as at:
        answer = (await at.post(PATH, body)).json()
    response = Response.model_validate(answer)
    assert response.id.startswith("resp_")
    assert (response.status, response.incomplete_details, response.output_text) == ("completed", None, "hi")
    assert (response.instructions, response.temperature, response.metadata) == ("S", 0.5, {"a": "b"})
    assert (response.user, response.max_output_tokens, response.model) == ("somebody", 4, "org/tiny")
    assert answer["store"] is False
    (message,) = answer["output"]
    assert message["content"] == [{"type": "output_text", "text": "hi", "annotations": [], "logprobs": []}]
    assert response.usage is not None
    num_prompt = len("<system>S<user>x<A>")
    assert (response.usage.input_tokens, response.usage.output_tokens) == (num_prompt, 3)
    assert (response.usage.total_tokens, response.usage.input_tokens_details.cached_tokens) == (num_prompt + 3, 2)


async def test_an_answer_that_reaches_its_limit_is_incomplete(plain: Site) -> None:
    answer = (await plain.post(PATH, {"input": "x", "max_output_tokens": 3})).json()
    assert (answer["status"], answer["output"][0]["status"]) == ("incomplete", "incomplete")
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}


@pytest.mark.parametrize("num_tokens", [0, 1, 6])
@pytest.mark.parametrize("more", [{}, {"include": [LOGPROBS], "top_logprobs": 2}, {"stop": "世"}])
async def test_a_streams_last_event_holds_the_whole_answer(
    more: dict[str, Any], num_tokens: int, tmp_path: Path
) -> None:
    """Also stream characters of several tokens, and an answer without text."""
    body = {"input": "x", "max_output_tokens": 8, **more}
    async with site(tmp_path, FakeEngine(script=tuple("aé世".encode()), eos_after=num_tokens)) as at:
        whole = (await at.post(PATH, body)).json()
        answer = await at.post(PATH, {**body, "stream": True})
    events = events_of(answer.text)
    kinds = [event["type"] for event in events]
    text = "response.output_text.delta"
    assert [kind for kind in kinds if kind != text] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert stable(events[-1]["response"]) == stable(whole)
    deltas = [event for event in events if event["type"] == text]
    assert "".join(event["delta"] for event in deltas) == whole["output"][0]["content"][0]["text"]
    logprobs = [entry for event in deltas for entry in event["logprobs"]]
    assert logprobs == whole["output"][0]["content"][0]["logprobs"]
    assert len(logprobs) == (num_tokens + 1 if more.get("include") else 0)
    assert events[0]["response"]["status"] == "in_progress"


async def test_a_stream_is_the_same_whoever_writes_its_tokens(tmp_path: Path) -> None:
    body = {"input": "x", "max_output_tokens": 24, "stream": True}
    engine = FakeEngine(script=tuple("Grüße, 世界! ".encode()))
    async with (
        site(tmp_path, engine) as at,
        serving(at.app, HttpProtocol) as port,
        httpx.AsyncClient(timeout=PATIENCE) as client,
    ):
        written = (await client.post(f"http://127.0.0.1:{port}{PATH}", json=body)).text
        sent = (await at.post(PATH, body)).text
    assert [each.handle.on_token is None for each in engine.submitted] == [False, True]
    ways = [events_of(text) for text in (written, sent)]
    deltas = [[event["delta"] for event in events if "delta" in event] for events in ways]
    assert deltas[0] == deltas[1]
    assert len(deltas[0]) > 9
    assert stable(ways[0][-1]["response"]) == stable(ways[1][-1]["response"])
    assert ways[0][-1]["response"]["usage"]["output_tokens"] == 24


async def test_attention_comes_with_the_text_and_in_a_stream_with_each_delta(plain: Site) -> None:
    body = {"input": "x", "max_output_tokens": 3, "attention": {**ROWS, "prompt": True}}
    whole = (await plain.post(PATH, body)).json()
    events = events_of((await plain.post(PATH, {**body, "stream": True})).text)
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "attention": body["attention"]}
    (expected,) = (await plain.post("/v1/chat/completions", chat)).json()["choices"]
    Response.model_validate(whole)
    assert whole["output"][0]["content"][0]["attention"] == expected["attention"]
    rows = [event["attention"] for event in events if event["type"] == "response.output_text.delta"]
    first = expected["attention"]["query_positions"][0]
    assert [row["query_positions"] for row in rows] == [[first], [first + 1], [first + 2]]
    assert rows[0]["prompt"] == expected["attention"]["prompt"]
    assert "attention" not in events[-1]["response"]["output"][0]["content"][0]  # it was sent once


async def test_what_is_asked_for_reaches_the_engine_as_from_a_chat(plain: Site) -> None:
    asked = {"seed": 7, "top_k": 3, "min_p": 0.1, "temperature": 0.3, "top_p": 0.5, "stop_token_ids": [9]}
    changes = [{"point": "blocks.0.attn.hook_z", "op": "zero"}]
    asked |= {"interventions": changes, "priority": 4, "timeout": 50}
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    for path, body in ((PATH, {"input": "x", "max_output_tokens": 2}), ("/v1/chat/completions", chat)):
        answer = await plain.post(path, {**body, **asked})
        assert answer.status_code == 200, answer.text
    ours, expected = plain.engine.submitted
    assert ours.task == expected.task
    assert isinstance(ours.task, GenerateTask)
    assert (ours.task.sampling.seed, ours.task.sampling.max_tokens) == (7, 2)
    assert (ours.priority, len(ours.interventions), ours.deadline is None) == (4, 1, False)


async def test_a_conversation_that_is_too_long_is_cut_if_asked(plain: Site) -> None:
    await refuses(plain, PATH, {"input": "x" * 99}, 'Set truncation to "auto"', param="input")
    assert (await plain.post(PATH, {"input": "x" * 99, "truncation": "auto"})).status_code == 200


async def test_what_codex_sends_with_each_turn_is_taken(plain: Site) -> None:
    told = {"reasoning": {"summary": "auto"}, "store": False, "include": ["reasoning.encrypted_content"]}
    told |= {"client_metadata": {"thread_id": "1"}, "prompt_cache_key": "1", "parallel_tool_calls": True}
    answer = await plain.post(PATH, {"input": "x", "max_output_tokens": 1, **told})
    assert answer.status_code == 200, answer.text
    assert answer.json()["reasoning"] == {"effort": None, "summary": None}


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "no conversations are stored"),
        ({"conversation": "conv_1"}, "conversation", "no conversations are stored"),
        ({"background": True}, "background", "stores no responses"),
        ({"prompt": {"id": "p"}}, "prompt", "stores no prompts"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "'medium'"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary", "not summarised"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "does not support it"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "needs schema"),
        ({"include": ["x"]}, "include[0]", LOGPROBS),
        ({"top_logprobs": 2}, "top_logprobs", LOGPROBS),
        ({"max_tokens": 2}, "max_tokens", "max_output_tokens"),
        ({"messages": [{"role": "user", "content": "x"}]}, "messages", "input"),
        ({"n": 2}, "n", "/v1/chat/completions"),
        ({"response_format": {"type": "json_object"}}, "response_format", "text.format"),
        ({"logprobs": True}, "logprobs", "include"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'web_search' is not supported"),
        ({"tools": [TOOL, {"type": "file_search"}]}, "tools[1].type", "'file_search' is not supported"),
        ({"tools": [{"type": "custom", "name": "f"}]}, "tools[0].type", "arguments of a tool are JSON"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": []}]}, "tools[0].tools", "at least 1"),
        (
            {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom", "name": "f"}]}]},
            "tools[0].tools[0].type",
            "arguments of a tool are JSON",
        ),
        (
            {"tools": [TOOL, {"type": "web_search"}], "tool_choice": {"type": "web_search"}},
            "tool_choice",
            "'web_search'",
        ),
        ({"tools": [{**TOOL, "function": {}}]}, "tools[0].function", "no such field"),
        ({"tool_choice": {"type": "mcp", "server_label": "x"}}, "tool_choice", "'mcp'"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type", "send the item itself"),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0].type", "'web_search_call'"),
        ({"input": [{"type": "reasoning", "encrypted_content": "?"}]}, "input[0].encrypted_content", "can decrypt it"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "'input_text'",
        ),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "'developer'"),
        ({"input": [{**CALL, "call_id": ""}]}, "input[0].call_id", "at least 1 character"),
        ({"input": []}, "input", "at least 1"),
        ({"max_output_tokens": 99}, "max_output_tokens", "at most 54"),
        ({"max_output_tokens": 2, "min_tokens": 3}, "min_tokens", "max_output_tokens"),
        ({"metadata": {"a": 1}}, "metadata.a", "string"),
    ],
)
async def test_what_is_not_supported_is_refused_by_its_own_name(
    body: dict[str, Any], param: str, said: str, plain: Site
) -> None:
    error = await plain.error(PATH, {"input": "x", **body}, 400)
    assert error["param"] == param, error
    assert said in error["message"]
    assert error["message"].startswith(f"{param}:")
    assert plain.engine.submitted == []


async def test_null_asks_for_nothing(plain: Site) -> None:
    nothing = dict.fromkeys(
        (
            "previous_response_id", "conversation", "background", "prompt", "reasoning", "text", "tools", "tool_choice",
            "parallel_tool_calls", "include", "top_logprobs", "truncation", "stream", "stream_options", "metadata",
            "instructions", "max_output_tokens", "max_tool_calls", "temperature", "top_p", "user", "store",
        )
    )  # fmt: skip
    left_out = (await plain.post(PATH, {"input": "x"})).json()
    null = (await plain.post(PATH, {"input": "x", **nothing})).json()
    assert stable(null) == stable(left_out)


async def test_a_stream_that_fails_ends_with_the_error(tmp_path: Path) -> None:
    async with site(tmp_path, FakeEngine(fail_after=2, failure=EngineError("boom"))) as at:
        events = events_of((await at.post(PATH, {"input": "x", "stream": True})).text)
        whole = await at.error(PATH, {"input": "x"}, 500)
    last = events[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {
        "code": "server_error", "message": "boom", "type": whole["type"], "param": None,
    }  # fmt: skip
    (message,) = last["response"]["output"]
    assert (message["content"][0]["text"], message["status"]) == ("hi", "incomplete")
