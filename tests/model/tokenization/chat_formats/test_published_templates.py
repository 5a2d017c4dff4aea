"""Calls in the form of each published chat template are read back, and admitted by the grammar."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from model.sampling.grammar.bare_arguments import bare_arguments_grammar
from model.tokenization.chat_formats.call_syntax import Tool
from model.tokenization.chat_formats.grammar import Answers, answer_grammar
from model.tokenization.chat_formats.message import Message, joined
from model.tokenization.chat_formats.parser import TaggedText
from model.tokenization.chat_formats.probe import ToolUse
from model.tokenization.chat_formats.thoughts import Start, ThoughtTags, start_of
from model.tokenization.chat_template import ChatTemplate
from model.tokenization.tokenizer import Tokenizer
from tests.support.templates import published_templates

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": ""},
        "days": {"type": "integer", "description": ""},
        "cold": {"anyOf": [{"type": "boolean"}, {"type": "string"}], "description": ""},
        "places": {"type": "array", "items": {"type": "string"}, "description": ""},
        "unit": {"type": "object", "additionalProperties": False, "properties": {}, "description": ""},
    },
    "required": ["city"],
}
SCALARS = {"city": 'Bern, "old"', "days": 3, "cold": True}
ARGUMENTS = {**SCALARS, "places": ["a", "b"], "unit": {}}
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
    if not use.by_template:
        pytest.skip("the template's calls are written in the generic form")
    return template, use


def answer(template: ChatTemplate, use: ToolUse, number: int) -> tuple[str, Start, dict[str, Any]]:
    """Return an assistant's message as the template writes it, its start, and the arguments of its calls: arrays and
    objects are left out if the template writes them as Python does.
    """
    for arguments in (ARGUMENTS, SCALARS):
        given = json.dumps(arguments) if use.arguments_as_text else arguments
        calls = [
            {"id": f"abcdefgh{n}", "type": "function", "function": {"name": "get_weather", "arguments": given}}
            for n in range(number)
        ]
        turn = {"role": "assistant", "content": "", "tool_calls": calls}
        text = template.render([USER, turn], add_generation_prompt=False, tools=[DESCRIBED])
        if "['a'" not in text:
            break
    prompt = template.render([USER], tools=[DESCRIBED])
    text = re.sub(r', "id": "\w+"', "", text)  # Mistral Nemo: the server makes the ids
    if text.startswith(prompt):
        start = start_of(template.thought_tags, prompt)
        return with_thought(text.removeprefix(prompt), template.thought_tags, start), start, arguments
    begin = text.rindex(use.syntax.trigger, 0, text.index("get_weather", text.index(USER["content"])))
    return text[begin:], Start.ANSWER, arguments


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
    text, start, arguments = answer(template, use, number)
    tool = Tool("get_weather", PARAMETERS)
    messages = [
        read(TaggedText(template.thought_tags, start, use.syntax, [tool]), pieces) for pieces in ([text], list(text))
    ]
    for message in messages:
        assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == [
            ("get_weather", arguments)
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
    if path.stem == "Kimi-K3":
        pytest.skip("its thoughts have tags that are not known")
    text, start, arguments = answer(template, use, number)
    bare = use.syntax.bare
    own = None if bare is None else bare_arguments_grammar(PARAMETERS, bare, tokenizer.ids_of_special.get(bare.quote))
    answers = Answers(
        tags=template.thought_tags,
        start=start,
        syntax=use.syntax,
        tools=[Tool("get_weather", PARAMETERS, own)],
        calls=calls,
        special_ids=tokenizer.ids_of_special,
    )
    theirs = LLTokenizer((folder / "tokenizer.json").read_text(encoding="utf-8"))
    matcher = LLMatcher(theirs, answer_grammar(answers), log_level=0)
    ids, num_admitted = tokenizer.encode(text, add_special_tokens=False).ids, 0
    for number_read, token_id in enumerate(ids, 1):
        if not matcher.try_consume_tokens([token_id]):
            break  # the rest of the text ends the message
        num_admitted = number_read if matcher.is_accepting() else num_admitted
    admitted = tokenizer.decode(ids[:num_admitted], skip_special_tokens=False)
    message = read(TaggedText(template.thought_tags, start, use.syntax, answers.tools), [admitted])
    assert [json.loads(call.arguments) for call in message.tool_calls] == [arguments] * number
    assert admitted.rstrip().endswith(use.syntax.closing.rstrip())
