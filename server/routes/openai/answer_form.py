"""Decides what an answer to a chat may be made of: the grammar that it keeps to, and what reads reasoning and calls out
of it.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from llguidance import LLMatcher

from model.tokenization.chat_formats.call_syntax import Tool
from model.tokenization.chat_formats.grammar import Answers, answer_grammar, lenient
from model.tokenization.chat_formats.parser import MessageParser, PlainText, TaggedText
from model.tokenization.chat_formats.thoughts import Start, start_of
from server.http.errors import BadRequest
from server.routes.context import AppContext
from server.schemas.tools import ToolDefinition, ToolFields


@dataclass(frozen=True)
class AnswerForm:
    """What an answer is made of."""

    grammar: str | None = None
    """The grammar that it keeps to, or None for free text."""
    new_parser: Callable[[], MessageParser] = PlainText
    kept_ids: frozenset[int] = frozenset()
    """Special tokens that the parser reads."""


async def answer_form(context: AppContext, body: ToolFields, prompt: str, grammar: str | None = None) -> AnswerForm:
    """Return the form of the answer to `prompt`, which is the conversation as the template wrote it.

    `grammar`, in llguidance's dialect of Lark, is what the answer keeps to where it is no call, after the reasoning;
    None is free text.
    Raises BadRequest for a tool whose schema cannot be kept to.
    """
    template = context.chat_template
    assert template is not None, "the template has written the prompt"
    tags = template.thought_tags
    start = start_of(tags, prompt)
    tools = await _checked(body.callable_tools)
    syntax = template.tool_use.syntax if tools else None
    if tools or (grammar is not None and start is not Start.ANSWER):
        answers = Answers(
            tags=tags,
            start=start,
            syntax=syntax,
            tools=tools,
            calls="required" if body.must_call else "auto",
            parallel=body.may_call_several,
            body=grammar,
            special_ids=context.tokenizer.ids_of_special,
        )
        grammar = await asyncio.to_thread(answer_grammar, answers)
    if syntax is None and start is Start.ANSWER:
        return AnswerForm(grammar)
    texts = [*(syntax.texts if syntax is not None else ()), *((tags.opening, tags.closing) if tags is not None else ())]
    return AnswerForm(grammar, partial(TaggedText, tags, start, syntax, tools), _kept_ids(context, texts))


def _kept_ids(context: AppContext, texts: list[str]) -> frozenset[int]:
    special = context.tokenizer.ids_of_special.items()
    return frozenset(token_id for token, token_id in special if any(token in text for text in texts))


async def _checked(tools: Mapping[int, ToolDefinition]) -> list[Tool]:
    """Return the tools as grammars have them. Raises BadRequest for a schema of which no grammar can be made."""
    if not tools:
        return []
    found = [_tool(tool) for tool in tools.values()]
    problem = await asyncio.to_thread(_first_problem, dict(zip(tools, found, strict=True)))
    if problem is not None:
        raise problem
    return found


def _tool(tool: ToolDefinition) -> Tool:
    function = tool.function
    parameters = function.parameters or {"type": "object", "properties": {}, "additionalProperties": False}
    schema = {"type": "object", **parameters}  # what a call is given is an object, even if the schema leaves that out
    return Tool(function.name, schema if function.strict else lenient(schema))


def _first_problem(tools: Mapping[int, Tool]) -> BadRequest | None:
    for number, tool in tools.items():
        problem = LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(tool.parameters)))
        if problem:
            field = f"tools[{number}].function.parameters"
            reason = " ".join(problem.split())[:500]
            return BadRequest(f"{field}: no call can be held to this schema: {reason}", param=field)
    return None
