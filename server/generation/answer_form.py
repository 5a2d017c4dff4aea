"""The form of an answer to a chat: its grammar, and the parser that separates reasoning and calls from text."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from llguidance import LLMatcher

from lightwell.model.sampling.grammar.bare_arguments import bare_arguments_grammar, value_grammars
from lightwell.model.sampling.grammar.checking import reason_of, remembered
from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.model.sampling.grammar.json_schema import json_schema_grammar
from lightwell.model.sampling.grammar.thought_limit import Pieces, ThoughtLimit
from lightwell.model.tokenization.chat_formats.call_syntax import CallSyntax, Tool
from lightwell.model.tokenization.chat_formats.grammar import Answers, answer_grammar, lenient
from lightwell.model.tokenization.chat_formats.parser import TaggedText
from lightwell.model.tokenization.chat_formats.thoughts import Start, start_of
from lightwell.server.generation.grammars import in_grammar_thread
from lightwell.server.generation.request import ChatRequest
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.http.errors import BadRequest
from lightwell.server.schemas.tools import ToolDefinition


@dataclass(frozen=True)
class AnswerForm:
    """The form of an answer."""

    grammar: str | None = None
    """The grammar that it keeps to, or None for free text."""
    new_parser: Callable[[], TaggedText] = TaggedText
    kept_ids: frozenset[int] = frozenset()
    """Special tokens that the parser reads."""
    prefix: Pieces = ()
    """The beginning of the answer that is part of the prompt."""
    thought_limit: ThoughtLimit | None = None


async def answer_form(
    model: ServedModel,
    request: ChatRequest,
    prompt: str,
    grammar: str | None = None,
    *,
    prefilled: str = "",
    thinking_budget: int | None = None,
) -> AnswerForm:
    """Return the form of the answer to `prompt`, which is the conversation as the template wrote it, up to the
    `prefilled` beginning of the answer.

    `grammar`, in llguidance's dialect of Lark, describes the text after the reasoning, unless the answer is a call;
    None is free text. Reasoning has at most `thinking_budget` tokens, or any number if that is None. Raises BadRequest
    for a tool with a schema that no grammar expresses.
    """
    template = model.chat_template
    assert template is not None, "the template has written the prompt"
    tags = template.thought_tags
    start = start_of(tags, prompt)
    definitions = request.chat.callable_tools
    syntax = template.tool_use.syntax if definitions else None
    tools: list[Tool] = []
    if syntax is not None:
        tools = await in_grammar_thread(_read_tools, definitions, syntax, model.tokenizer.ids_of_special)
    body_grammar = grammar
    limit = None
    if thinking_budget is not None and tags is not None and start in (Start.THOUGHT, Start.MAYBE):
        limit = ThoughtLimit(
            max_tokens=thinking_budget,
            is_open=start is Start.THOUGHT,
            opening=tags.opening,
            closing=_pieces(model, tags.closing),
            other_end=syntax.opening if syntax is not None and syntax.is_tagged else "",
        )
    if tools or limit is not None or (grammar is not None and start is not Start.ANSWER):
        answers = Answers(
            tags=tags,
            start=start,
            syntax=syntax,
            tools=tools,
            calls="required" if request.chat.must_call else "auto",
            parallel=request.chat.may_call_several,
            body=grammar,
            special_ids=model.tokenizer.ids_of_special,
        )
        grammar = await in_grammar_thread(_composed, answers, request.form_field)
    texts = [*(() if syntax is None else syntax.texts), *(() if tags is None else (*tags.texts, tags.end))]
    kept = _kept_tokens(model, texts)
    # A grammar never permits special tokens, so text that looks like a special token is ordinary text.
    special = tuple(kept) if body_grammar is None else ()
    if syntax is None and start is Start.ANSWER and not special:
        return AnswerForm(grammar, prefix=_pieces(model, prefilled))
    parser = TaggedText(tags, start, syntax, tools, special)
    if prefilled:
        await asyncio.to_thread(parser.skip, prefilled)
    return AnswerForm(grammar, parser.copy, frozenset(kept.values()), _pieces(model, prefilled), limit)


@remembered
def _composed(answers: Answers, form_field: str) -> str:
    """Return the grammar. Raises BadRequest if the schemas of the tools, each correct, make none together."""
    grammar = answer_grammar(answers)
    problem = _problem(grammar)
    if problem:
        field = "tools" if answers.tools else form_field
        raise BadRequest(f"{field}: no answer can match it: {problem}.", param=field)
    return grammar


@remembered
def _problem(grammar: str) -> str:
    """Return why llguidance refuses a grammar, in plain words, or nothing if it does not."""
    message = LLMatcher.validate_grammar(grammar)
    return (reason_of(message) or "no value satisfies them") if message else ""


def _kept_tokens(model: ServedModel, texts: list[str]) -> dict[str, int]:
    special = model.tokenizer.ids_of_special.items()
    return {token: token_id for token, token_id in special if any(token in text for text in texts)}


def _pieces(model: ServedModel, text: str) -> Pieces:
    there = {token: i for token, i in model.tokenizer.ids_of_special.items() if token in text}
    pattern = "|".join(map(re.escape, sorted(there, key=len, reverse=True)))
    parts = re.split(f"({pattern})", text) if there else [text]
    return tuple(there.get(part, part) for part in parts if part)


def _read_tools(
    definitions: Mapping[int, ToolDefinition], syntax: CallSyntax, special_ids: Mapping[str, int]
) -> list[Tool]:
    """Return the tools as grammars have them. Raises BadRequest for a schema that no grammar expresses."""
    quote_id = None if syntax.bare is None else special_ids.get(syntax.bare.quote)
    write = partial(_tool, syntax=syntax, quote_id=quote_id)
    return [_read_tool(f"tools[{number}].function.parameters", each, write) for number, each in definitions.items()]


def _read_tool(field: str, definition: ToolDefinition, write: Callable[..., Tool]) -> Tool:
    function = definition.function
    parameters = function.parameters or {"type": "object", "properties": {}, "additionalProperties": False}
    schema = {"type": "object", **parameters}  # arguments are an object, even if the schema omits the type
    try:
        return replace(write(json.dumps(schema), is_lenient=False), name=function.name)
    except GrammarError as error:
        # Constraints that a grammar cannot express are left out: many tools contain some.
        if function.strict or _why_impossible(schema := _possible(schema)):
            place = field + error.path
            raise BadRequest(f"{place}: {error.message}.", param=place, code="grammar_refused") from None
    return replace(write(json.dumps(schema), is_lenient=True), name=function.name)


def _possible(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in which arguments that no value can satisfy allow any value. Otherwise no call would be
    possible. An example is an array with an `enum` that is meant for its items.
    """
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not _why_impossible(schema):
        return schema
    alone = {name: {**schema, "properties": {name: each}, "required": [name]} for name, each in properties.items()}
    return {**schema, "properties": {n: True if _why_impossible(alone[n]) else each for n, each in properties.items()}}


def _why_impossible(schema: Mapping[str, Any]) -> str:
    """Return the reason why no call can keep to a schema, even without the unsupported keywords, or an empty text."""
    return _problem(LLMatcher.grammar_from_json_schema(json.dumps(lenient(schema))))


@remembered
def _tool(parameters: str, syntax: CallSyntax, quote_id: int | None, is_lenient: bool) -> Tool:
    """Return a tool, still without its name, with its grammars. Raises GrammarError for keywords that cannot be
    enforced, unless lenient.
    """
    schema = json.loads(parameters)
    held, bare, pairs = lenient(schema) if is_lenient else schema, syntax.bare, syntax.pairs
    if bare is not None:
        return Tool("", held, bare_arguments_grammar(schema, bare, quote_id, is_lenient=is_lenient))
    # some models write no space after a colon
    tool = Tool("", held, None if is_lenient else json_schema_grammar(schema, whitespace_pattern=" ?"))
    if pairs is None:
        return tool
    texts = [] if pairs.is_python else [each for each in schema.get("properties") or () if "string" in tool.kinds(each)]
    return replace(tool, value_grammars=value_grammars(schema, pairs, texts, is_lenient=is_lenient))
