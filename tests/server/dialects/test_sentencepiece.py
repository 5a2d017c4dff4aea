"""Structured outputs with a tokenizer that marks spaces in front of words, as Llama 2's does."""

import json
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import pytest

from tests.model.tokenization import tokenizer_folders as folders
from tests.model.tokenization.chat_formats import templates
from tests.server.inline_engine import InlineEngine, engine_with, site_of
from tests.server.serving import Site

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["city", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}
USER = [{"role": "user", "content": "Where?"}]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> InlineEngine:
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "tokenizer_class": "LlamaTokenizer"}
    return engine_with(folders.llama2_like(), tmp_path_factory.mktemp("llama"), **config)


@pytest.fixture
async def at(engine: InlineEngine) -> AsyncIterator[Site]:
    async with site_of(engine, templates.HERMES) as built:
        yield built


async def choice_of(at: Site, path: str, **fields: Any) -> dict[str, Any]:
    asked = {"messages": USER} if path == CHAT else {"prompt": ""}
    answer = await at.post(path, {**asked, "max_tokens": 100, "temperature": 1.0, "seed": 4, **fields})
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return dict(choice)


async def test_answers_keep_to_their_schemas(at: Site) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    for seed in range(3):
        chat = await choice_of(at, CHAT, response_format=form, seed=seed)
        text = await choice_of(at, COMPLETIONS, response_format=form, seed=seed)
        for each in (chat["message"]["content"], text["text"]):
            jsonschema.validate(json.loads(each), SCHEMA)
    started = await choice_of(at, CHAT, response_format={"type": "json_object"})
    assert started["message"]["content"].startswith("{")


async def test_a_required_call_keeps_to_its_tool(at: Site) -> None:
    choice = await choice_of(at, CHAT, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_choices_and_grammars_hold(at: Site, path: str) -> None:
    cases: list[tuple[dict[str, Any], tuple[str, ...]]] = [
        ({"structured_outputs": {"choice": ["in the city", "in a forest"]}}, ("in the city", "in a forest")),
        ({"structured_outputs": {"grammar": 'root ::= "yes, " ("a" | "b") "."'}}, ("yes, a.", "yes, b.")),
        ({"guided_regex": " in the (house|yard)"}, (" in the house", " in the yard")),
        ({"guided_choice": ["a</s>b 茨姫"]}, ("a</s>b 茨姫",)),
    ]
    for fields, expected in cases:
        choice = await choice_of(at, path, **fields)
        assert choice.get("text", choice.get("message", {}).get("content")) in expected


async def test_offsets_count_the_first_space(at: Site) -> None:
    choice = await choice_of(at, COMPLETIONS, guided_choice=[" in the house"], logprobs=0, return_token_ids=True)
    offsets = choice["logprobs"]["text_offset"]
    assert offsets[0] == 0
    pieces = [choice["text"][begin:end] for begin, end in zip(offsets, [*offsets[1:], None], strict=True)]
    spelt = [bytes(at.model.tokenizer.token_bytes(i) or ()).decode() for i in choice["token_ids"]]
    assert pieces == spelt
    assert "".join(pieces) == " in the house"
