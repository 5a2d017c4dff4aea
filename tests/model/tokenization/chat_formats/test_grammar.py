"""llguidance holds answers to the grammars: it accepts each text that the parser reads as a call, and no other call."""

import json
import random
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from lightwell.model.sampling.grammar.json_schema import json_schema_grammar
from lightwell.model.tokenization.chat_formats.call_syntax import GENERIC, CallSyntax, Tool
from lightwell.model.tokenization.chat_formats.grammar import Answers, answer_grammar
from lightwell.model.tokenization.chat_formats.message import joined
from lightwell.model.tokenization.chat_formats.parser import TaggedText
from lightwell.model.tokenization.chat_formats.thoughts import Start, ThoughtTags
from lightwell.model.tokenization.tokenizer import Tokenizer
from tests.model.tokenization.chat_formats.conftest import spelled, with_grammars
from tests.model.tokenization.chat_formats.test_parser import (
    ARGS,
    BARE,
    CHANNELS,
    GPT_OSS,
    LIST,
    LLAMA,
    MISTRAL,
    SYNTAXES,
    XML,
    every_syntax,
)

THINK = ThoughtTags("<think>", "</think>")
THINK_TOKENS = ThoughtTags("[THINK]", "[/THINK]")
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/name"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "minLength": 1}},
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = (Tool("get", CITY), Tool("get_all", NOTHING))
INTEGER = 'start: %json {"type": "integer"}'


class Reader:
    """A tokenizer in llguidance's form, and llguidance's verdicts on texts."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.from_folder(folder)
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        self._end = self.tokenizer.ids_of_special["<|eos|>"]
        self._theirs = LLTokenizer(text, eos_token=self._end)
        self._compiled: dict[str, LLMatcher] = {}

    def _matcher(self, **answers: Any) -> LLMatcher:
        """Return a matcher at the beginning of an answer. Each grammar is compiled once."""
        key = repr(answers)
        if key not in self._compiled:
            self._compiled[key] = self._compile(**answers)
        return self._compiled[key].deep_copy()

    def _compile(self, **answers: Any) -> LLMatcher:
        if "syntax" in answers:
            special_ids = self.tokenizer.ids_of_special
            answers["tools"] = [with_grammars(tool, answers["syntax"], special_ids) for tool in answers["tools"]]
        grammar = answer_grammar(Answers(special_ids=self.tokenizer.ids_of_special, **answers))
        problem = LLMatcher.validate_grammar(grammar, self._theirs)
        assert not problem, f"{problem}\n{grammar}"
        return LLMatcher(self._theirs, grammar, log_level=0)

    def written(self, chosen: random.Random, **answers: Any) -> str:
        """Return a random text of a model for which all allowed tokens are equally likely."""
        matcher, ids = self._matcher(**answers), []
        while not matcher.is_stopped():
            mask = matcher.compute_bitmask()
            allowed = [token for token in range(self.tokenizer.vocab_size) if mask[token // 8] >> token % 8 & 1]
            ids.append(chosen.choice(allowed))
            assert matcher.consume_token(ids[-1])
        return self.tokenizer.decode([each for each in ids if each != self._end], skip_special_tokens=False)

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def takes(self, text: str, **answers: Any) -> bool:
        return self.takes_ids(self.ids(text), **answers)

    def takes_ids(self, ids: list[int], **answers: Any) -> bool:
        matcher = self._matcher(**answers)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.fixture(scope="module")
def reader(folder: Path) -> Reader:
    return Reader(folder)


THOUGHTS = {
    "none": ({}, ""),
    "maybe": ({"tags": THINK, "start": Start.MAYBE}, "<think>\nhm <tool_call> x\n</think>\n\n"),
    "open": ({"tags": THINK, "start": Start.THOUGHT}, "I call <tool_call>{ </think>\n"),
    "maybe, tokens": ({"tags": THINK_TOKENS, "start": Start.MAYBE}, "[THINK]hm[/THINK]\n"),
    "open, tokens": ({"tags": THINK_TOKENS, "start": Start.THOUGHT}, "hm[/THINK]"),
}
MODES: dict[str, dict[str, Any]] = {"auto": {}, "required": {"calls": "required"}, "body": {"body": INTEGER}}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("thoughts", THOUGHTS)
@every_syntax
def test_calls_are_held_to_the_tools_and_anything_else_is_text_or_the_body(
    reader: Reader, syntax: CallSyntax, thoughts: str, mode: str
) -> None:
    fields, thought = THOUGHTS[thoughts]
    asked = {"syntax": syntax, "tools": TOOLS, **fields, **MODES[mode]}
    call = spelled(syntax, [("get", '{"city": "Bern", "days": 3}')])
    for text in (call, f"\n{call}", spelled(syntax, [("get_all", "{}")])):
        assert reader.takes(thought + text, **asked), text
    for wrong in (
        *(() if syntax is LIST and mode == "auto" else (call.replace("get", "got"),)),
        call.replace("3", '"3"'),
        call.replace("city", "town"),
        spelled(syntax, [("get_all", '{"x": 1}')]),
        call[:-1] if syntax.closing else call[:-2],
        *(() if syntax.pairs else (call.replace("Bern", ""),)),  # of texts without quotes, only choices are enforced
    ):
        assert not reader.takes(thought + wrong, **asked), wrong
    assert reader.takes(f"{thought}Hello.\n\n{{", **asked) == (mode == "auto")
    assert reader.takes(f"{thought}12", **asked) == (mode != "required")
    if thought:
        may_be_thought = fields["start"] is Start.THOUGHT and mode == "auto"
        may_be_answer = fields["start"] is Start.MAYBE and mode != "required"
        assert reader.takes("12", **asked) == (may_be_answer or may_be_thought)
    if fields.get("start") is not Start.THOUGHT:
        for space in ("\n", " " * 20):  # the parser would see a call behind it
            assert not reader.takes(space + call.replace("city", "town"), **asked)


def object_of(**properties: Any) -> dict[str, Any]:
    required = list(properties)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


FORMS = {
    '{"legs": 4}': object_of(legs={"type": "integer"}),
    '{"name": "Bo", "legs": 4}': object_of(name={"type": "string"}, legs={"type": "integer"}),
    '{"name": 4}': object_of(name={"type": "integer"}),
}


@pytest.mark.parametrize("form", FORMS)
@every_syntax
def test_an_answer_is_calls_or_of_a_form_that_begins_like_them(reader: Reader, syntax: CallSyntax, form: str) -> None:
    asked = {"syntax": syntax, "tools": TOOLS, "body": json_schema_grammar(FORMS[form])}
    call = spelled(syntax, [("get", '{"city": "Bern"}')])
    for text in (form, call):
        assert reader.takes(text, **asked)
    for wrong in ("Sure.", f"Sure: {form}", f"{form}{call}"):
        assert not reader.takes(wrong, **asked)


@pytest.mark.parametrize("syntax", [GENERIC, MISTRAL, ARGS], ids=["generic", "mistral", "args"])
def test_text_may_come_before_a_call_and_several_calls_where_they_are_allowed(
    reader: Reader, syntax: CallSyntax
) -> None:
    two = spelled(syntax, [("get_all", "{}"), ("get", '{"city": "Bern"}')])
    for parallel, calls in product((True, False), ("auto", "required")):
        asked = {"syntax": syntax, "tools": TOOLS, "calls": calls, "parallel": parallel}
        assert reader.takes(two, **asked) == parallel
        assert reader.takes(f"Yes.\n{spelled(syntax, [('get_all', '{}')])}", **asked) == (calls == "auto")


@pytest.mark.parametrize("calls", ["auto", "required"])
@every_syntax
def test_white_space_after_a_call_asks_for_no_other(reader: Reader, syntax: CallSyntax, calls: str) -> None:
    """A newline that a model writes out of habit must not by itself begin a further call."""
    asked = {"syntax": syntax, "tools": TOOLS, "calls": calls}
    one, two = (spelled(syntax, [("get_all", "{}")] * number) for number in (1, 2))
    after = (syntax.next_call or "").removeprefix(syntax.closing)
    if space := after[: len(after) - len(after.lstrip())]:
        assert reader.takes(f"{one}{space}", **asked)
        assert reader.takes(f"{two}{space}\n", **asked)
        assert not reader.takes(f"{one}{space}x", **asked)
    if syntax.next_call is not None:
        assert reader.takes(two, **asked)


def test_a_model_may_mark_a_call_by_a_token_of_its_own(reader: Reader) -> None:
    call = '<|python_tag|>{"name": "get_all", "parameters": {}}'
    assert reader.takes(call, syntax=LLAMA, tools=TOOLS)
    assert not reader.takes("<|python_tag|>print(1)", syntax=LLAMA, tools=TOOLS)


def test_a_list_that_is_no_call_is_text(reader: Reader) -> None:
    for text in ("[1] says so.", "[get well](soon)", "[]", '["get(1)"]'):
        assert reader.takes(text, syntax=LIST, tools=TOOLS)
        assert not reader.takes(text, syntax=LIST, tools=TOOLS, calls="required")
    assert not reader.takes("[get(town='Bern')]", syntax=LIST, tools=TOOLS)


def test_answers_that_have_a_tag_of_their_own_begin_with_it(reader: Reader) -> None:
    thought = f"{CHANNELS.opening}Hm.{CHANNELS.closing}"
    call = " to=functions.get_all<|channel|>commentary json<|message|>{}"
    asked = {"tags": CHANNELS, "start": Start.MAYBE}
    for before in ("", thought):
        assert reader.takes(f"{before}{CHANNELS.answer}Yes.", syntax=GPT_OSS, tools=TOOLS, **asked)
        assert reader.takes(f"{before}{call}", syntax=GPT_OSS, tools=TOOLS, **asked)
        assert reader.takes(f"{before}{CHANNELS.answer}12", body=INTEGER, **asked)
        assert not reader.takes(f"{before}{CHANNELS.answer}twelve", body=INTEGER, **asked)
        assert not reader.takes(f"{before}{call}", syntax=GPT_OSS, tools=TOOLS[:1], **asked)


def test_arguments_without_quotes_are_held_to_their_types(reader: Reader) -> None:
    parts = {"word": {"type": "string"}, "unit": {"enum": ["C", "F"]}}
    properties = {
        "text": {"anyOf": [{"$ref": "#/$defs/word"}, {"type": "null"}]},
        "unit": {"$ref": "#/$defs/unit"},
        "list": {"type": "array", "items": {"$ref": "#/$defs/word"}},
    }
    tool = Tool("f", {"properties": properties, "required": ["unit"], "$defs": parts})

    def takes(**arguments: Any) -> bool:
        return reader.takes(spelled(XML, [("f", json.dumps(arguments))]), syntax=XML, tools=[tool])

    assert takes(text="</function> is text", unit="C", list=["a", "b"])
    assert takes(unit="F")
    assert not takes(text="no unit")
    assert not takes(unit="K")
    assert not takes(unit="C", list=[1])
    assert not takes(unit="C", more=1)


VALUES = {
    "a": {"type": "array", "items": {"enum": ["a", 1, None]}, "minItems": 2},
    "b": {"type": "object", "properties": {"x": {"type": "boolean"}}, "additionalProperties": False},
}


@pytest.mark.parametrize(
    ("name", "value", "is_held"),
    [
        ("a", "['a', None]", True),
        ("a", '["a",null, 1]', True),
        ("a", "['a']", False),
        ("a", "['b', 1]", False),
        ("a", "[true, 1]", False),
        ("b", "{'x': True}", True),
        ("b", '{"x": false}', True),
        ("b", "{}", True),
        ("b", "{'x': 'a'}", False),
        ("b", "{'y': True}", False),
    ],
)
def test_values_as_python_writes_them_are_held_to_their_schemas(
    reader: Reader, name: str, value: str, is_held: bool
) -> None:
    tagged = f"<tool_call>\n<function=f>\n<parameter={name}>\n{value}\n</parameter>\n</function>\n</tool_call>"
    tools = [Tool("f", {"properties": VALUES})]
    assert reader.takes(tagged, syntax=XML, tools=tools) == is_held
    assert reader.takes(f"[f({name}={value})]", syntax=LIST, tools=tools) == is_held


@pytest.mark.parametrize("text", ["'AB'", '"AB"', "'ABC'", '"ABC"', "'a\\'b'", "''"])
def test_texts_in_python_are_held_to_their_pattern(reader: Reader, text: str) -> None:
    tools = [Tool("f", {"properties": {"a": {"type": "string", "pattern": "^[A-Z]{2}$"}, "b": {"type": "string"}}})]
    assert reader.takes(f"[f(a={text})]", syntax=LIST, tools=tools) == (text == '"AB"')
    assert reader.takes(f"[f(b={text})]", syntax=LIST, tools=tools)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("thoughts", ["maybe", "open", "maybe, tokens", "open, tokens"])
@pytest.mark.parametrize("name", ["generic", "mistral", "xml", "bare"])
def test_a_thought_may_be_left_open(reader: Reader, name: str, thoughts: str, mode: str) -> None:
    syntax, (fields, _) = SYNTAXES[name], THOUGHTS[thoughts]
    asked = {"syntax": syntax, "tools": TOOLS, **fields, **MODES[mode]}
    begun = ("" if fields["start"] is Start.THOUGHT else fields["tags"].opening) + "hm <tool_call> x"
    assert reader.takes(begun, **asked) == (mode == "auto")
    call = spelled(syntax, [("get", '{"city": "Bern", "days": 3}')])
    assert reader.takes(f"{begun}\n{call}", **asked)
    assert not reader.takes(f"{begun}\n{call.replace('days', 'weeks')}", **asked)


@pytest.mark.parametrize("thoughts", THOUGHTS)
def test_a_body_without_tools_begins_after_the_thought(reader: Reader, thoughts: str) -> None:
    fields, thought = THOUGHTS[thoughts]
    assert reader.takes(f"{thought}12", body=INTEGER, **fields)
    assert not reader.takes(f"{thought}twelve", body=INTEGER, **fields)


cities = st.fixed_dictionaries(
    {"city": st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5)},
    optional={"days": st.integers(-99, 99)},
).map(lambda made: {name: made[name] for name in CITY["properties"] if name in made})  # in the schema's order
one_call: st.SearchStrategy[tuple[str, dict[str, Any]]] = st.one_of(
    st.tuples(st.just("get"), cities), st.just(("get_all", {}))
)


@every_syntax
@given(calls=st.lists(one_call, min_size=1, max_size=3), content=st.sampled_from(["", "So:\n"]))
def test_what_the_parser_calls_a_call_the_grammar_takes(
    reader: Reader, syntax: CallSyntax, calls: list[tuple[str, dict[str, Any]]], content: str
) -> None:
    content = content if syntax.is_tagged else ""
    calls = calls[:1] if syntax is LLAMA else calls
    written = [(tool, json.dumps(arguments, ensure_ascii=False)) for tool, arguments in calls]
    text = content + spelled(syntax, written)
    parser = TaggedText(syntax=syntax, tools=TOOLS)
    message = joined([parser.push(text), parser.flush()])
    assert [(call.name, call.arguments) for call in message.tool_calls] == written
    assert reader.takes(text, syntax=syntax, tools=TOOLS)


CHOICES: dict[str, Any] = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["C", "F"]},
        "deep": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["unit"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(8))
@every_syntax
def test_whatever_a_model_writes_under_the_grammar_are_calls_that_keep_to_their_schemas(
    reader: Reader, syntax: CallSyntax, seed: int
) -> None:
    tools = (Tool("choose", CHOICES), Tool("get_all", NOTHING))
    text = reader.written(random.Random(seed), syntax=syntax, tools=tools, calls="required")
    parser = TaggedText(syntax=syntax, tools=tools)
    message = joined([parser.push(text), parser.flush()])
    assert message.tool_calls
    assert not message.content
    for call in message.tool_calls:
        jsonschema.validate(json.loads(call.arguments), CHOICES if call.name == "choose" else NOTHING)


def test_a_text_between_tokens_holds_anything_but_what_would_be_read_as_its_end(reader: Reader) -> None:
    tool = Tool("f", {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
    asked = {"syntax": BARE, "tools": [tool]}
    for text in ('say "x"\n}<', "<tool_call|", "\\"):
        assert reader.takes(spelled(BARE, [("f", json.dumps({"a": text}))]), **asked)
    assert not reader.takes('<|tool_call>call:f{a:<|"|>x<tool_call|>y<|"|>}<tool_call|>', **asked)
    before, after = (reader.ids(text) for text in ('<|tool_call>call:f{a:<|"|>', '<|"|>}<tool_call|>'))
    assert reader.takes_ids([*before, *b"<|", *after], **asked)
    assert not reader.takes_ids([*before, *b'<|"|>', *after], **asked)
