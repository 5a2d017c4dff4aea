"""Grammars, reasoning, tools and forced tokens together, with a real engine and random weights.

Each test checks a combination that failed in another server.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import tokenizers

from tests import tiny
from tests.model.tokenization.chat_formats import templates
from tests.server.dialects.test_tools import MESSAGES, PATH
from tests.server.fake_client import INFO
from tests.server.inline_engine import InlineEngine, site_of
from tests.server.serving import Site, events_of

OPEN_THOUGHT = templates.HERMES.replace("{{ m.content }}", "{{ (m.content or '').split('</think>')[-1] }}").replace(
    "<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n{% if enable_thinking | default(true) %}<think>\n"
    "{% else %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)  # fmt: skip
"""A template that writes tools and opens a thought."""
SPECIAL = ("</think>", "<tool_call>", "</tool_call>")
"""Special tokens of models with reasoning and tool calls."""
LENGTH = 4096
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "objective": {"type": "string", "pattern": "^[a-z]{1,8}$"},
        "priority": {"enum": ["as soon as possible", "later"]},
    },
    "required": ["objective", "priority"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
    for name, schema in (("plan_the_day", SCHEMA), ("look_around", NOTHING))
]
SCHEMAS = {"plan_the_day": SCHEMA, "look_around": NOTHING}
SEEDS = range(2)
ONE_CALL: dict[str, Any] = {"tools": TOOLS, "parallel_tool_calls": False}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> InlineEngine:
    folder = tmp_path_factory.mktemp("llama")
    size = tiny.VOCAB_SIZE + len(SPECIAL)
    tiny.make_variant("llama-gqa", folder, vocab_size=size, max_position_embeddings=LENGTH)
    path = str(folder / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(path)
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(path)
    return InlineEngine(folder=folder, engine_info=replace(INFO, max_model_len=LENGTH))


@pytest.fixture
async def at(engine: InlineEngine) -> AsyncIterator[Site]:
    async with site_of(engine, OPEN_THOUGHT) as built:
        yield built


def body_of(at: Site, seed: int, **more: Any) -> dict[str, Any]:
    """Return a body that makes the model end its thought soon, and its answer as soon as the grammar allows it."""
    ids = at.model.tokenizer.ids_of_special
    bias = {str(ids["</think>"]): 6.0, str(ids["<|end|>"]): 3.0}
    sampled = {"temperature": 1.0, "seed": seed, "logit_bias": bias}
    return {"messages": MESSAGES, "max_tokens": 500, **sampled, **more}


async def message_of(at: Site, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Check that a stream gives the same message, and return the message and its finish reason."""
    answer = await at.post(PATH, body)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    message = choice["message"]
    *events, end = events_of(await at.post(PATH, {**body, "stream": True}))
    assert end == "[DONE]"
    deltas = [event["choices"][0]["delta"] for event in events]
    for name in ("reasoning", "content"):
        assert "".join(delta.get(name) or "" for delta in deltas) == (message.get(name) or "")
    parts = [part for delta in deltas for part in delta.get("tool_calls", ())]
    for index, call in enumerate(message.get("tool_calls", ())):
        own = [part["function"] for part in parts if part["index"] == index]
        assert own[0]["name"] == call["function"]["name"]
        assert "".join(part.get("arguments") or "" for part in own) == call["function"]["arguments"]
    assert len({part["index"] for part in parts}) == len(message.get("tool_calls", ()))
    assert events[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    return message, choice["finish_reason"]


def check_calls(message: dict[str, Any]) -> list[str]:
    """Check the arguments of all calls, and return the names."""
    calls = [call["function"] for call in message["tool_calls"]]
    for call in calls:
        jsonschema.validate(json.loads(call["arguments"]), SCHEMAS[call["name"]])
    return [call["name"] for call in calls]


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_call_that_is_required_comes_after_the_thought_and_comes_to_an_end(at: Site, seed: int) -> None:
    """Check against a failure of a server with several tokens per step: it lost its position in the grammar at the end
    of the thought, and then failed or wrote calls for ever.
    """
    forced = at.engine.engine.stats().forced_tokens_total
    body = body_of(at, seed, **ONE_CALL, tool_choice="required")
    message, end = await message_of(at, body)
    assert end == "tool_calls"
    assert len(check_calls(message)) == 1
    assert message["content"] is None
    assert at.engine.engine.stats().forced_tokens_total > forced


@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "look_around"}}])
async def test_the_grammar_of_required_calls_has_room_for_a_thought_where_there_is_one(
    at: Site, choice: Any, thinks: bool
) -> None:
    """Check against a failure of another server: its grammar always began with the call, and rejected the end of a
    thought that the prompt had opened.
    """
    more = {**ONE_CALL, "tool_choice": choice, "chat_template_kwargs": {"enable_thinking": thinks}}
    for seed in SEEDS:
        message, end = await message_of(at, body_of(at, seed, **more))
        assert end == "tool_calls"
        names = check_calls(message)
        assert choice == "required" or set(names) == {"look_around"}
        assert thinks or "reasoning" not in message


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_strict_tools_are_held_to_their_schemas_beside_reasoning(at: Site, choice: str) -> None:
    """Check against a failure of another server: with templates for both reasoning and calls, `strict` had no effect,
    and misspelt or unknown names reached the client.
    """
    called = 0
    for seed in SEEDS:
        body = body_of(at, seed, **ONE_CALL, tool_choice=choice)
        body["logit_bias"][str(at.model.tokenizer.ids_of_special["<tool_call>"])] = 15.0
        message, end = await message_of(at, body)
        assert end in ("tool_calls", "stop")
        if end == "tool_calls":
            called += len(check_calls(message))
    assert called


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_mark_of_a_call_or_a_thought_is_left_in_texts(at: Site, seed: int) -> None:
    """Check against a failure of another server: its reasoning parser returned the calls after the thought as text."""
    body = body_of(at, seed, tools=TOOLS)
    body["logit_bias"][str(at.model.tokenizer.ids_of_special["<tool_call>"])] = 9.0
    message, end = await message_of(at, body)
    for text in (message.get("reasoning") or "", message["content"] or ""):
        assert "</think>" not in text
    assert not any(mark in (message["content"] or "") for mark in SPECIAL)
    assert end == "length" or (end == "tool_calls") == bool(message.get("tool_calls"))


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_schema_holds_from_the_first_character_after_the_thought(at: Site, seed: int) -> None:
    """Check against a failure of a server with several tokens per step: it wrote the first token of the answer twice,
    or did not apply the grammar to it, which gave two braces.
    """
    form = {"type": "json_schema", "json_schema": {"name": "plan", "schema": SCHEMA, "strict": True}}
    message, end = await message_of(at, body_of(at, seed, response_format=form))
    assert end == "stop"
    jsonschema.validate(json.loads(message["content"]), SCHEMA)
    stepwise = (await at.post(PATH, body_of(at, seed, response_format=form, logprobs=True))).json()["choices"][0]
    assert stepwise["message"] == message, "the tokens that take no step are those of single steps"


@pytest.mark.parametrize("bias", [0.0, 12.0])
async def test_with_tools_and_a_schema_an_answer_is_calls_or_text_of_the_schema(at: Site, bias: float) -> None:
    """Check against a failure of another server: with tools, the schema had no effect, or calls were impossible."""
    form = {"type": "json_schema", "json_schema": {"name": "plan", "schema": SCHEMA, "strict": True}}
    ends = set()
    for seed in SEEDS:
        body = body_of(at, seed, **ONE_CALL, response_format=form)
        body["logit_bias"][str(at.model.tokenizer.ids_of_special["<tool_call>"])] = bias
        message, end = await message_of(at, body)
        ends.add(end)
        if end == "tool_calls":
            check_calls(message)
            assert message["content"] is None
        else:
            jsonschema.validate(json.loads(message["content"]), SCHEMA)
    assert ends == ({"tool_calls"} if bias else ends & {"stop", "tool_calls"})


DRAFTED: dict[str, dict[str, Any]] = {
    "call": {**ONE_CALL, "tool_choice": "required"},
    "thought": {"thinking_budget": 9, "max_tokens": 60},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "plan", "schema": SCHEMA}}},
    "stop": {"stop": ["e"], "max_tokens": 60, "ignore_eos": True, "chat_template_kwargs": {"enable_thinking": False}},
    "choices": {"n": 3, "logprobs": True, "top_logprobs": 2, "max_tokens": 40},
}


@pytest.mark.parametrize("name", DRAFTED)
async def test_an_answer_is_the_same_with_drafts_from_a_prediction(engine: InlineEngine, name: str) -> None:
    drafting = InlineEngine(folder=engine.folder, engine_info=engine.engine_info, options={"speculation": "ngram"})
    async with site_of(drafting, OPEN_THOUGHT) as at:
        body = body_of(at, 1, **DRAFTED[name], return_token_ids=True)
        plain = (await at.post(PATH, {**body, "speculation": False})).json()
        assert "completion_tokens_details" not in plain["usage"]
        text = at.model.tokenizer.decode(plain["choices"][0]["token_ids"], False)
        prediction = {"type": "content", "content": [{"type": "text", "text": text[:9] + "..." + text[12:]}]}
        drafted = (await at.post(PATH, {**body, "prediction": prediction})).json()
        too_long = {"type": "content", "content": "word " * 20_000}
        assert (await at.post(PATH, {**body, "prediction": too_long, "max_tokens": 1})).status_code == 200
    drafts = drafted["usage"]["completion_tokens_details"]
    assert drafts["accepted_prediction_tokens"] > 0
    assert drafts["rejected_prediction_tokens"] >= 0
    assert drafted["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    for one, two in zip(drafted["choices"], plain["choices"], strict=True):
        for key in ("token_ids", "logprobs", "finish_reason", "stop_reason"):
            assert one.get(key) == two.get(key), key
