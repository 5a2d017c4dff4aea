"""Templates without tools get tools as text, in roles that they accept."""

from typing import Any

import pytest

from lightwell.model.tokenization.chat_template import ChatTemplate
from lightwell.model.tokenization.tokenizer import Tokenizer
from tests.model.tokenization.chat_formats import templates

TOOL = {"type": "function", "function": {"name": "get", "description": "", "parameters": {"type": "object"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get", "arguments": {"city": "K\u00f6ln"}}}
TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How is it?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "3", "tool_call_id": "call_1"},
    {"role": "tool", "content": "4", "tool_call_id": "call_1"},
    {"role": "user", "content": "And?"},
]


async def written(source: str, tokenizer: Tokenizer, turns: list[dict[str, Any]], *tools: dict[str, Any]) -> str:
    template = ChatTemplate(source, tokenizer)
    rows, left = await template.with_tools(turns, tools)
    return template.render(rows, tools=left)


async def test_tools_join_the_system_message(tokenizer: Tokenizer) -> None:
    text = await written(templates.PLAIN, tokenizer, TURNS, TOOL)
    assert text.startswith("<|system|>Be brief.\n\nYou can call")
    assert text.count("<|system|>") == 1
    assert '"name": "get"' in text.partition("<|user|>")[0]


async def test_calls_and_results_are_messages_of_assistant_and_user(tokenizer: Tokenizer) -> None:
    text = await written(templates.PLAIN, tokenizer, TURNS)
    call = '<tool_call>\n{"name": "get", "arguments": {"city": "K\u00f6ln"}}\n</tool_call>'
    assert f"<|assistant|>I look.\n{call}\n{call}<|user|><tool_response>\n3\n</tool_response>" in text
    assert text.endswith("<tool_response>\n4\n</tool_response>\nAnd?<|A|>")


async def test_a_template_without_system_messages_gets_tools_with_the_first_question(tokenizer: Tokenizer) -> None:
    text = await written(templates.NO_SYSTEM, tokenizer, TURNS[1:], TOOL)
    assert text.startswith("<user>You can call")
    assert "\n\nHow is it?<assistant>I look." in text, "and roles alternate, or it would have been refused"


@pytest.mark.parametrize("source", [templates.PLAIN, templates.HERMES])
async def test_a_chat_without_tools_is_left_as_it_is(tokenizer: Tokenizer, source: str) -> None:
    template = ChatTemplate(source, tokenizer)
    assert await template.with_tools(TURNS[:2], []) == (TURNS[:2], [])


async def test_a_template_that_joins_texts_gets_arguments_as_text(tokenizer: Tokenizer) -> None:
    text = await written(templates.ARGUMENTS_AS_TEXT, tokenizer, TURNS[1:4], TOOL)
    assert '<|call|>function<|sep|>get\n```json\n{"city": "K\u00f6ln"}\n```<|call_end|><|calls_end|>' in text
