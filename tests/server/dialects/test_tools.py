"""Tools and reasoning in POST /v1/chat/completions: their form in the prompt, calls and thoughts in the answer."""

import gc
import json
import re
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest
from llguidance import LLMatcher

from lightwell.server.engine.messages.request import GenerateTask
from tests.model.tokenization.chat_formats import templates
from tests.server.dialects.routes import refuses
from tests.server.fake_client import INFO, FakeEngine
from tests.server.serving import Site, events_of, site, tiny_config, write_tokenizer

PATH = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "How is Bern?"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather now.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "get_time"}}
HERMES_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "K\u00f6ln"}}\n</tool_call>'
SPECIAL = ("<|end|>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call>", "<tool_call|>", '<|"|>')
LENGTH = 4096


@asynccontextmanager
async def tool_site(
    folder: Path,
    answer: str = "ok",
    template: str = templates.HERMES,
    special: Sequence[str] = SPECIAL,
    **options: Any,
) -> AsyncIterator[Site]:
    """Run a site with a model that answers every chat with this text."""
    write_tokenizer(folder, special)
    ids: list[int] = []
    for part in re.split(f"({'|'.join(map(re.escape, special))})", answer):
        ids += [256 + special.index(part)] if part in special else part.encode()
    engine = FakeEngine(script=tuple(ids), eos_after=len(ids), engine_info=replace(INFO, max_model_len=LENGTH))
    config = replace(tiny_config(), max_model_len=LENGTH, vocab_size=300)
    async with site(folder, engine, template=template, config=config, max_model_len=LENGTH, **options) as at:
        yield at


def body(**more: Any) -> dict[str, Any]:
    return {"messages": MESSAGES, "tools": [WEATHER, TIME], "max_tokens": 500, **more}


def prompt_of(at: Site) -> str:
    return bytes(each for each in at.engine.submitted[-1].prompt_token_ids if each < 256).decode()


def grammar_of(at: Site) -> str | None:
    task = at.engine.submitted[-1].task
    assert isinstance(task, GenerateTask)
    return task.grammar


async def test_a_call_has_openais_shape(tmp_path: Path) -> None:
    async with tool_site(tmp_path, HERMES_CALL) as at:
        (choice,) = (await at.post(PATH, body())).json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": None}
    assert re.fullmatch("call_[A-Za-z0-9]{24}", call.pop("id"))
    assert call == {"type": "function", "function": {"name": "get_weather", "arguments": '{"city": "K\u00f6ln"}'}}


async def test_a_stream_names_a_call_and_then_sends_its_arguments(tmp_path: Path) -> None:
    async with tool_site(tmp_path, f"I look.\n{HERMES_CALL}\n{HERMES_CALL}") as at:
        data = events_of(await at.post(PATH, body(stream=True)))
    choices = [chunk["choices"][0] for chunk in data[:-1]]
    deltas = [choice["delta"] for choice in choices]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "I look."
    for index in (0, 1):
        first, *rest = (call for delta in deltas for call in delta.get("tool_calls", ()) if call["index"] == index)
        assert (first["type"], first["function"]["name"]) == ("function", "get_weather")
        assert first["id"].startswith("call_")
        assert all(set(call) == {"index", "function"} and set(call["function"]) == {"arguments"} for call in rest)
        assert "".join(call["function"]["arguments"] for call in (first, *rest)) == '{"city": "K\u00f6ln"}'
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]


async def test_every_token_of_a_call_has_its_id_and_its_number(tmp_path: Path) -> None:
    """Check that ids, log-probabilities and usage also cover tokens that are held back."""
    more = {"stream": True, "return_token_ids": True, "logprobs": True, "stream_options": {"include_usage": True}}
    async with tool_site(tmp_path, HERMES_CALL) as at:
        data = events_of(await at.post(PATH, body(**more)))
    choices = [choice for chunk in data[:-1] for choice in chunk["choices"]][1:]
    ids = [token_id for choice in choices for token_id in choice["token_ids"]]
    assert bytes(each for each in ids if each < 256).decode() == HERMES_CALL
    assert sum(len(choice["logprobs"]["content"]) for choice in choices if choice["logprobs"]) == len(ids)
    assert data[-2]["usage"]["completion_tokens"] == len(ids)


async def test_a_call_whose_tag_is_a_special_token_is_read(tmp_path: Path) -> None:
    text = '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Bern"}}]'
    async with tool_site(tmp_path, text, templates.MISTRAL) as at:
        (choice,) = (await at.post(PATH, body())).json()["choices"]
        without = (await at.post(PATH, {"messages": MESSAGES})).json()["choices"][0]["message"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["message"]["content"] is None
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Bern"}'}
    assert re.fullmatch("[A-Za-z0-9]{9}", call["id"])
    assert without["content"] == text.removeprefix("[TOOL_CALLS]"), (
        "special tokens are skipped where there are no tools"
    )


class Weather(pydantic.BaseModel):
    """The weather now."""

    city: str


async def test_openais_client_parses_a_streamed_call_and_sends_its_result(tmp_path: Path) -> None:
    tools = [openai.pydantic_function_tool(Weather, name="get_weather")]
    turns: list[Any] = list(MESSAGES)
    async with tool_site(tmp_path, HERMES_CALL) as at:
        http: Any = at.http  # a client of httpx; the package expects its own copy, which differs only in name
        api = openai.AsyncOpenAI(base_url="http://lightwell/v1", api_key="none", http_client=http)
        async with api.chat.completions.stream(model="org/tiny", messages=turns, tools=tools) as stream:
            answer = await stream.get_final_completion()
        message = answer.choices[0].message
        assert message.tool_calls
        (call,) = message.tool_calls
        assert call.function.parsed_arguments == Weather(city="K\u00f6ln")
        turns += [message.model_dump(exclude={"parsed"}), {"role": "tool", "tool_call_id": call.id, "content": "3"}]
        for turn in turns[1]["tool_calls"]:
            turn["function"].pop("parsed_arguments")
        again = await api.chat.completions.parse(model="org/tiny", messages=turns, tools=tools)
        assert again.choices[0].finish_reason == "tool_calls"
        assert prompt_of(at).count("K\u00f6ln") == 1


@pytest.mark.parametrize("template", [templates.HERMES, templates.PLAIN, templates.NO_SYSTEM])
async def test_the_model_sees_the_tools_and_what_came_of_them(tmp_path: Path, template: str) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Bern"}'}}
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3 degrees"},
    ]
    async with tool_site(tmp_path, template=template) as at:
        assert (await at.post(PATH, body(messages=turns))).status_code == 200
        prompt = prompt_of(at)
        tokens = (await at.post("/tokenize", {"messages": turns, "tools": [WEATHER, TIME]})).json()["tokens"]
        none = (await at.post("/tokenize", {"messages": turns})).json()["tokens"]
    assert "The weather now." in prompt
    assert '{"name": "get_weather", "arguments": {"city": "Bern"}}' in prompt
    assert prompt.index("How is Bern?") < prompt.index("3 degrees")
    assert tokens == list(prompt.encode())
    assert b"The weather now." not in bytes(none)


async def test_the_grammar_follows_the_choice(tmp_path: Path) -> None:
    named = {"type": "function", "function": {"name": "get_time"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    grammars = {}
    async with tool_site(tmp_path) as at:
        for name, choice in {"auto": "auto", "required": "required", "named": named, "allowed": allowed}.items():
            assert (await at.post(PATH, body(tool_choice=choice))).status_code == 200
            grammars[name] = grammar_of(at) or ""
        await at.post(PATH, body())
        assert grammar_of(at) == grammars["auto"]
        await at.post(PATH, body(tool_choice="none"))
        assert grammar_of(at) is None
        assert "get_weather" not in prompt_of(at)
        await at.post(PATH, {"messages": MESSAGES})
        assert grammar_of(at) is None
        await at.post(PATH, body(tool_choice="required", parallel_tool_calls=False))
        grammars["single"] = grammar_of(at) or ""
    assert len(set(grammars.values())) == len(grammars)
    for grammar in grammars.values():
        assert not LLMatcher.validate_grammar(grammar), grammar
    assert {name for name, grammar in grammars.items() if "get_weather" in grammar} == {"auto", "required", "single"}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [TIME, TIME]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "string"}}}]},
         "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"required": 1}}}]},
         "tools[0].function.parameters.required"),
        ({"tools": [TIME] * 129}, "tools"),
        ({"tools": [{"type": "browser", "function": {"name": "a"}}]}, "tools[0].type"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tools": None, "functions": [{"name": "f"}]}, "functions"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [{"id": "1", "function":
         {"name": "f", "arguments": "{}"}}]}]}, "messages[0].tool_calls"),
        ({"messages": [*MESSAGES, {"role": "assistant", "tool_calls": [{"id": "1", "function":
         {"name": "f", "arguments": "[1]"}}]}]}, "messages[1].tool_calls[0].function.arguments"),
        ({"messages": [*MESSAGES, {"role": "assistant", "tool_calls": [{"id": "1", "function":
         {"name": "f", "arguments": "{"}}]}]}, "messages[1].tool_calls[0].function.arguments"),
    ],
)  # fmt: skip
async def test_an_error_names_the_field(tmp_path: Path, more: dict[str, Any], param: str) -> None:
    async with tool_site(tmp_path) as at:
        assert (await at.error(PATH, body(**more), 400))["param"] == param


def nested(depth: int) -> dict[str, Any]:
    return {"properties": {"x": nested(depth - 1)}} if depth else {}


@pytest.mark.parametrize(
    "parameters", [nested(40), {"properties": {f"p{n}": {} for n in range(5000)}}], ids=["deep", "large"]
)
async def test_a_schema_without_end_is_refused(tmp_path: Path, parameters: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    async with tool_site(tmp_path) as at:
        await refuses(at, PATH, body(tools=[tool]), "accepted", param="tools[0].function.parameters")


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "array", "items": {}, "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "items": {"type": "string"}, "enum": ["a", "b"]}, "no value"),
    ],
    ids=["not enforced", "no value"],
)
async def test_strict_refuses_what_cannot_be_enforced(tmp_path: Path, schema: dict[str, Any], told: str) -> None:
    parameters = {"type": "object", "properties": {"x": schema, "y": {"type": "integer"}}, "required": ["x", "y"]}
    for template in (templates.HERMES, templates.XML, templates.LFM2):
        async with tool_site(tmp_path, template=template) as at:
            for strict, status in ((None, 200), (False, 200), (True, 400)):
                tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": strict}}
                answer = await at.post(PATH, body(tools=[tool]))
                assert answer.status_code == status
            assert told in answer.json()["error"]["message"]


@pytest.mark.parametrize("template", [templates.HERMES, templates.LFM2])
@pytest.mark.parametrize("strict", [False, True])
async def test_an_argument_that_no_value_satisfies_is_left_out(tmp_path: Path, template: str, strict: bool) -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "array", "enum": ["a"]}, "y": {"type": "integer"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": strict}}
    async with tool_site(tmp_path, template=template) as at:
        assert (await at.post(PATH, body(tools=[tool]))).status_code == 200


async def test_a_schema_that_names_its_parts_is_told_to_model_and_grammar(tmp_path: Path) -> None:
    parameters = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/place"}},
        "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}}},
    }
    async with tool_site(tmp_path) as at:
        tool = {"type": "function", "function": {"name": "go", "parameters": parameters}}
        assert (await at.post(PATH, body(tools=[tool]))).status_code == 200
        assert not LLMatcher.validate_grammar(grammar_of(at) or "")
        assert json.dumps(parameters) in prompt_of(at)


async def test_gemmas_template_writes_past_calls_and_their_results(tmp_path: Path) -> None:
    function = {"name": "get_weather", "arguments": '{"unit": "C", "city": "Bern"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]
    async with tool_site(tmp_path, template=templates.GEMMA_4) as at:
        assert (await at.post(PATH, body(messages=turns))).status_code == 200
        prompt = prompt_of(at)  # without its special tokens
    assert "call:get_weather{city:Bern,unit:C}" in prompt
    assert prompt.endswith("<|tool_response>get_weather{value:3}<tool_response|>")


async def test_long_schemas_of_tools_are_not_kept_for_good(tmp_path: Path) -> None:
    async with tool_site(tmp_path, HERMES_CALL) as at:

        async def ask(number: int) -> None:
            city = {"type": "string", "description": f"{number}" * 200_000}
            function = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": city}}}
            asked = body(tools=[{"type": "function", "function": function}], tool_choice="required", truncate=True)
            assert (await at.post(PATH, asked)).status_code == 200

        await ask(0)
        tracemalloc.start()
        try:
            for number in range(1, 31):  # 6 MB; 5 MB are kept in any case
                await ask(number)
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < 8_000_000
        finally:
            tracemalloc.stop()


BODY: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 500}
OPENS = templates.QWEN_3, "<think>\nIt is cold.\n</think>\n\nCold."
OPENED = templates.OPEN_THOUGHT, "It is cold.\n</think>\n\nCold."


@pytest.mark.parametrize(("template", "text"), [OPENS, OPENED], ids=["model opens", "prompt opens"])
async def test_reasoning_is_told_apart_from_content(tmp_path: Path, template: str, text: str) -> None:
    async with tool_site(tmp_path, text, template) as at:
        (choice,) = (await at.post(PATH, BODY)).json()["choices"]
        data = events_of(await at.post(PATH, {**BODY, "stream": True}))
    reasoning = {"reasoning_content": "It is cold.", "reasoning": "It is cold."}
    assert choice["message"] == {"role": "assistant", "content": "Cold.", **reasoning}
    assert choice["finish_reason"] == "stop"
    deltas = [chunk["choices"][0]["delta"] for chunk in data[:-1]]
    for name in ("reasoning_content", "reasoning", "content"):
        assert "".join(delta.get(name, "") for delta in deltas) == {**reasoning, "content": "Cold."}[name]


async def test_reasoning_is_left_out_on_demand(tmp_path: Path) -> None:
    async with tool_site(tmp_path, OPENED[1], OPENED[0]) as at:
        (choice,) = (await at.post(PATH, {**BODY, "include_reasoning": False})).json()["choices"]
        data = events_of(await at.post(PATH, {**BODY, "include_reasoning": False, "stream": True}))
    assert choice["message"] == {"role": "assistant", "content": "Cold."}
    deltas = [chunk["choices"][0]["delta"] for chunk in data[:-1]]
    assert {name for delta in deltas for name in delta} == {"role", "content"}
    assert len(deltas) < len("It is cold."), "nothing is sent for tokens of which nothing is seen"


async def test_a_template_that_is_told_not_to_think_has_no_reasoning(tmp_path: Path) -> None:
    async with tool_site(tmp_path, "Cold.</think>", templates.QWEN_3) as at:
        body = {**BODY, "chat_template_kwargs": {"enable_thinking": False}}
        (choice,) = (await at.post(PATH, body)).json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Cold.</think>"}
