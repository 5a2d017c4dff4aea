"""Calls in the form of each published chat template are read back, and admitted by the grammar."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from lightwell.model.sampling.grammar.json_schema import json_schema_grammar
from lightwell.model.tokenization.chat_formats.call_syntax import ID, Tool
from lightwell.model.tokenization.chat_formats.for_simple_templates import REASONING_FIELDS
from lightwell.model.tokenization.chat_formats.grammar import Answers, answer_grammar
from lightwell.model.tokenization.chat_formats.message import Message, joined
from lightwell.model.tokenization.chat_formats.parser import TaggedText
from lightwell.model.tokenization.chat_formats.probe import ToolUse
from lightwell.model.tokenization.chat_formats.thoughts import Start, ThoughtTags, start_of
from lightwell.model.tokenization.chat_template import ChatTemplate, ChatTemplateError
from lightwell.model.tokenization.tokenizer import Tokenizer
from tests.model.tokenization.chat_formats.conftest import SPECIAL, spelled, with_grammars
from tests.model.tokenization.chat_formats.test_grammar import FORMS, TOOLS, Reader
from tests.server.serving import write_tokenizer
from tests.support.templates import published_templates

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": ""},
        "days": {"type": "integer", "description": ""},
        "cold": {"anyOf": [{"type": "boolean"}, {"type": "string"}], "description": ""},
        "share": {"type": "number", "description": ""},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": ""},
        "empty": {"type": "string", "description": ""},
        "places": {"type": "array", "items": {"type": ["string", "null", "boolean"]}, "description": ""},
        "unit": {"type": "object", "additionalProperties": False, "properties": {}, "description": ""},
    },
    "required": ["city"],
}
ARGUMENTS = {
    "city": 'Bern, "old"\n<b> & it\'s',
    "days": -3,
    "cold": True,
    "share": 0.5,
    "note": None,
    "empty": "",
    "places": ["a", None, True, "it's"],
    "unit": {},
}
DESCRIBED = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather.", "parameters": PARAMETERS},
}
USER = {"role": "user", "content": "How is it?"}

pytestmark = pytest.mark.nightly
every_template = pytest.mark.parametrize("path", published_templates(), ids=lambda path: path.stem)


def use_of(path: Path, tokenizer: Tokenizer) -> tuple[ChatTemplate, ToolUse]:
    template = ChatTemplate(path.read_text(encoding="utf-8"), tokenizer)
    use = template.tool_use
    if not use.by_template or not use.writes_calls:
        pytest.skip("the template writes no calls")
    return template, use


def answer(template: ChatTemplate, use: ToolUse, number: int) -> tuple[str, Start]:
    """Return an assistant's message as the template writes it, and its start."""
    given = json.dumps(ARGUMENTS) if use.arguments_as_text else ARGUMENTS
    calls = [
        {"id": f"abcdefgh{n}", "type": "function", "function": {"name": "get_weather", "arguments": given}}
        for n in range(number)
    ]
    turn = {"role": "assistant", "content": "", "tool_calls": calls}
    text = template.render([USER, turn], add_generation_prompt=False, tools=[DESCRIBED])
    prompt = template.render([USER], tools=[DESCRIBED])
    if text.startswith(prompt):
        start = start_of(template.thought_tags, prompt)
        return with_thought(text.removeprefix(prompt), template.thought_tags, start), start
    begin = text.rindex(use.syntax.trigger, 0, text.index("get_weather", text.index(USER["content"])))
    return text[begin:], Start.ANSWER


def with_thought(text: str, tags: ThoughtTags | None, start: Start) -> str:
    """Return an answer with a thought, if there may be one."""
    if tags is None or start is Start.ANSWER:
        return text
    opening = tags.opening if start is Start.MAYBE else ""
    return f"{opening}Hm.{tags.closing}{text.rpartition(tags.closing)[2]}"


def read(parser: TaggedText, pieces: list[str]) -> Message:
    return joined([*map(parser.push, pieces), parser.flush()])


@every_template
def test_the_texts_around_calls_hold_no_word_of_the_probe(path: Path, tokenizer: Tokenizer) -> None:
    _, use = use_of(path, tokenizer)
    for text in use.syntax.texts:
        assert not any(word in text.lower() for word in ("zq", "7531")), text
        assert not re.match(r"[\w|:]+>", text), f"{text} begins within a tag"
        assert not re.search(r"<\|?\w+\|?$", text), f"{text} ends within a tag"


@every_template
@pytest.mark.parametrize("number", [1, 2])
def test_calls_are_read_back(path: Path, tokenizer: Tokenizer, number: int) -> None:
    template, use = use_of(path, tokenizer)
    if number == 2 and use.syntax.next_call is None:
        pytest.skip("the template writes one call")
    text, start = answer(template, use, number)
    tool = Tool("get_weather", PARAMETERS)
    messages = [
        read(TaggedText(template.thought_tags, start, use.syntax, [tool]), pieces) for pieces in ([text], list(text))
    ]
    for message in messages:
        assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == [
            ("get_weather", ARGUMENTS)
        ] * number
        assert message.reasoning == ("" if start is Start.ANSWER else "Hm.")
    assert messages[0].content == messages[1].content


@every_template
@pytest.mark.parametrize("calls", ["auto", "required"])
@pytest.mark.parametrize("number", [1, 2])
def test_the_grammar_admits_calls(path: Path, folder: Path, tokenizer: Tokenizer, calls: Any, number: int) -> None:
    template, use = use_of(path, tokenizer)
    if number == 2 and use.syntax.next_call is None:
        pytest.skip("the template writes one call")
    text, start = answer(template, use, number)
    answers = Answers(
        tags=template.thought_tags,
        start=start,
        syntax=use.syntax,
        tools=[with_grammars(Tool("get_weather", PARAMETERS), use.syntax, tokenizer.ids_of_special)],
        calls=calls,
        special_ids=tokenizer.ids_of_special,
    )
    theirs = LLTokenizer((folder / "tokenizer.json").read_text(encoding="utf-8"))
    matcher = LLMatcher(theirs, answer_grammar(answers), log_level=0)
    ids, num_admitted = tokenizer.encode(text, add_special_tokens=False).ids, 0
    for number_read, token_id in enumerate(ids, 1):
        if not matcher.try_consume_tokens([token_id]):
            break  # the following text ends the message
        num_admitted = number_read if matcher.is_accepting() else num_admitted
    admitted = tokenizer.decode(ids[:num_admitted], skip_special_tokens=False)
    message = read(TaggedText(template.thought_tags, start, use.syntax, answers.tools), [admitted])
    assert [json.loads(call.arguments) for call in message.tool_calls] == [ARGUMENTS] * number
    assert admitted.removesuffix(use.syntax.optional_end).rstrip().endswith(use.syntax.closing.rstrip())


@every_template
def test_reasoning_is_read_back(path: Path, tokenizer: Tokenizer) -> None:
    template = ChatTemplate(path.read_text(encoding="utf-8"), tokenizer)
    told = {"role": "assistant", "content": "Cold.", **dict.fromkeys(REASONING_FIELDS, "It is -3.")}
    try:
        text = template.render([USER, told], add_generation_prompt=False)
    except ChatTemplateError:
        pytest.skip("the template needs other variables")
    if "It is -3." not in text:
        pytest.skip("the template leaves reasoning out")
    tags = template.thought_tags
    assert tags is not None
    after = text.partition("It is -3.")[2]
    answer = f"It is -3.{after.partition('Cold.')[0]}Cold.{tags.end}"
    special = re.findall(r"<\|[^<>|]*\|>", answer)
    for pieces in ([answer], list(answer)):
        message = read(TaggedText(tags, Start.THOUGHT, special=special), pieces)
        assert (message.reasoning, message.content) == ("It is -3.", "Cold.")
    message = read(TaggedText(tags, Start.MAYBE), [f"{tags.opening}It is"])
    assert (message.reasoning, message.content) == ("It is", "")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """A reader for which all tags are text."""
    folder = tmp_path_factory.mktemp("text")
    write_tokenizer(folder, SPECIAL[:1])
    return Reader(folder)


@every_template
def test_an_answer_is_calls_or_of_a_required_form(path: Path, reader: Reader) -> None:
    syntax = ChatTemplate(path.read_text(encoding="utf-8"), reader.tokenizer).tool_use.syntax
    call = spelled(syntax, [("get", '{"city": "Bern"}')]).replace(ID, "0")
    for form, schema in FORMS.items():
        asked = {"syntax": syntax, "tools": TOOLS, "body": json_schema_grammar(schema)}
        assert [reader.takes(text, **asked) for text in (form, call, "Sure.")] == [True, True, False], form
