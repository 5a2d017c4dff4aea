"""Values of arguments that are not JSON: the reader reads each value that the grammar accepts."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from lightwell.model.tokenization.chat_formats.call_syntax import CallSyntax, PairSyntax, Tool
from lightwell.model.tokenization.chat_formats.grammar import Answers, answer_grammar
from lightwell.model.tokenization.chat_formats.message import joined
from lightwell.model.tokenization.chat_formats.parser import TaggedText
from tests.model.tokenization.chat_formats.conftest import with_grammars
from tests.model.tokenization.chat_formats.test_grammar import Reader, reader
from tests.model.tokenization.chat_formats.test_parser import LIST, XML, cut, deltas

__all__ = ["reader"]
FREE: dict[str, Any] = {"path": {"type": "string"}, "options": {"type": "object"}, "items": {"type": "array"}}


def of_values(values: dict[str, str]) -> str:
    """Return a call in XML."""
    written = [f"\n<parameter={name}>\n{value}\n</parameter>" for name, value in values.items()]
    return f"<tool_call>\n<function=f>{''.join(written)}\n</function>\n</tool_call>"


@pytest.mark.parametrize("syntax", [XML, LIST], ids=["xml", "list"])
def test_many_tools_with_free_arguments_share_the_rules_of_these(syntax: CallSyntax) -> None:
    sizes = []
    for number in (1, 2, 3):
        properties = [{**FREE, "deep": {"properties": {f"a{n}": {}, "b": {"type": "object"}}}} for n in range(number)]
        tools = [with_grammars(Tool(f"f{n}", {"properties": each}), syntax, {}) for n, each in enumerate(properties)]
        sizes.append(len(answer_grammar(Answers(syntax=syntax, tools=tools))))
    assert all(after - before < 2000 for before, after in pairwise(sizes))


@pytest.mark.nightly  # the test above shows why
def test_no_number_of_free_arguments_is_too_large(reader: Reader) -> None:
    tools = [Tool("f", {"properties": FREE}), *(Tool(f"f{number}", {"properties": FREE}) for number in range(600))]
    asked = {"syntax": XML, "tools": tools, "calls": "required"}
    assert reader.takes(of_values({"items": "[1, [{'a': None}]]", "options": '{"a": [true]}'}), **asked)
    assert not reader.takes(of_values({"items": '{"a": 1}'}), **asked)


def read(text: str, syntax: CallSyntax, properties: dict[str, Any], cuts: list[int] | None = None) -> Any:
    """Return the arguments of the one call, from a text that comes in pieces, or the content of a text without one."""
    parser = TaggedText(syntax=syntax, tools=[Tool("f", {"properties": properties})])
    message = joined(deltas(parser, cut(text, cuts or [])))
    return json.loads(message.tool_calls[0].arguments) if message.tool_calls else message.content


@pytest.mark.parametrize("value", ["[ERROR]", "[a, b]", "[1 2]", "{x: y}", "{'a' : 5 6}", "[1, None 2]", "[NaN]"])
def test_a_text_in_brackets_that_is_no_literal_is_a_text(reader: Reader, value: str) -> None:
    properties = {"a": {"type": ["string", "array", "object"]}}
    text = of_values({"a": value})
    assert reader.takes(text, syntax=XML, tools=[Tool("f", {"properties": properties})])
    assert read(text, XML, properties) == {"a": value}
    assert read(of_values({"a": "[1 , None, {'b' : 5 }]"}), XML, properties) == {"a": [1, None, {"b": 5}]}


@pytest.mark.parametrize("cuts", [[], list(range(40))], ids=["whole", "by character"])
def test_literals_without_a_comma_are_no_number(cuts: list[int]) -> None:
    assert read("[f(a=[1 2, 3 ], b=4 )]", LIST, {"a": {}, "b": {}}, cuts) == {"a": ["1 2", 3], "b": 4}


GLM = replace(XML, pairs=PairSyntax("\n<parameter=", ">\n", "</parameter>"))


@pytest.mark.parametrize("value", ["['{}']", "{{\"a\": '{}'}}", '["{}"]', '{{"{}": 1}}', '{{"b": 1, "{}": 2}}'])
@pytest.mark.parametrize(("syntax", "end"), [(XML, "\n</parameter>"), (GLM, "</parameter>")], ids=["line", "tag"])
def test_no_text_in_a_value_holds_the_tag_that_ends_it(
    reader: Reader, syntax: CallSyntax, end: str, value: str
) -> None:
    properties = {"a": {"type": ["array", "object"], "properties": {"b": {}}, "additionalProperties": True}}
    asked = {"syntax": syntax, "tools": [Tool("f", {"properties": properties})]}
    for inner, is_taken in ((f"x{end}y", False), ("x</parameter y", True)):
        text = f"<tool_call>\n<function=f>\n<parameter=a>\n{value.format(inner)}{end}\n</function>\n</tool_call>"
        assert reader.takes(text, **asked) == is_taken


@pytest.mark.parametrize(("name", "in_list", "in_xml"), [
    ("a=b", False, True), ("a)", False, True), (" a", False, True), ("a\n", False, True), ("b>\nc", True, False),
])  # fmt: skip
def test_a_name_that_is_not_read_as_it_is_written_is_left_out(
    reader: Reader, name: str, in_list: bool, in_xml: bool
) -> None:
    properties = {name: {"type": "integer"}, "d": {"type": "integer"}}
    asked = {"tools": [Tool("f", {"properties": properties, "required": [name, "d"]})]}
    texts = {f"[f({name}=1, d=2)]": (LIST, in_list), of_values({name: "1", "d": "2"}): (XML, in_xml)}
    for text, (syntax, is_held) in texts.items():
        assert reader.takes(text, syntax=syntax, **asked) == is_held
        if is_held:
            assert read(text, syntax, properties) == {name: 1, "d": 2}
    assert reader.takes("[f(d=2)]", syntax=LIST, **asked) != in_list
    assert reader.takes(of_values({"d": "2"}), syntax=XML, **asked) != in_xml


@pytest.mark.parametrize("value", ["\U0001fae9", "a\U000e0001b", "\xad", "\u200b'\"", "\U0001f600"])
@pytest.mark.parametrize("cuts", [[], list(range(40))], ids=["whole", "by character"])
def test_a_choice_keeps_its_value_in_each_spelling(reader: Reader, value: str, cuts: list[int]) -> None:
    properties = {"a": {"enum": [value, 1]}}
    for text in (f"[f(a={written})]" for written in (repr(value), json.dumps(value, ensure_ascii=False))):
        assert reader.takes(text, syntax=LIST, tools=[Tool("f", {"properties": properties})])
        assert read(text, LIST, properties, cuts) == {"a": value}


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (r"\ud83d\ude00 \uD83D\uDE00 \U0001F600", "\U0001f600 \U0001f600 \U0001f600"),
        (r"\ud800 \udc00 \ud800\n", "\\ud800 \\udc00 \\ud800\n"),
        (r"\ud800\ud83d\ude00", "\\ud800\U0001f600"),
        (r"\ud83d", "\\ud83d"),
        (r"\U0000d800 \U00110000 \U12 \u12 \x1", "\\U0000d800 \\U00110000 \\U12 \\u12 \\x1"),
    ],
)
@pytest.mark.parametrize("cuts", [[], list(range(90))], ids=["whole", "by character"])
def test_an_escape_that_is_no_character_is_text(reader: Reader, written: str, value: str, cuts: list[int]) -> None:
    properties = {"a": {"type": "string"}}
    text = f"[f(a='{written}')]"
    assert reader.takes(text, syntax=LIST, tools=[Tool("f", {"properties": properties})])
    assert read(text, LIST, properties, cuts) == {"a": value}
    assert value.encode()


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("[1, 2,]", [1, 2]),
        ("[1, [',', ']',], ]", [1, [",", "]"]]),
        ("{'a': 1, 'b': {'c': None,},\n}", {"a": 1, "b": {"c": None}}),
        ("(1, 'b')", [1, "b"]),
        ("[(1, (2,)), ()]", [[1, [2]], []]),
        ("{'a': (True, {'b': ()})}", {"a": [True, {"b": []}]}),
        (r"'\033[1m \101\7 \1 \x41\9'", "\033[1m A\\7 \\1 A\\9"),
        ("[0x1F, 0o17, 0b11, 1_000, +5, .5, 5., -2e3, 1E+2]", [31, 15, 3, 1000, 5, 0.5, 5.0, -2000.0, 100.0]),
        ("[inf, nan, 0x, 1__0]", ["inf", "nan", "0x", "1__0"]),
        ("[01234, -007, ٣, 0x1E, 01e2]", ["01234", "-007", "٣", 30, 100.0]),
    ],
)
@pytest.mark.parametrize("cuts", [[], list(range(90))], ids=["whole", "by character"])
@pytest.mark.parametrize("end", ["", ",", ", "])
def test_literals_have_the_values_that_python_gives_them(written: str, value: Any, cuts: list[int], end: str) -> None:
    text = f"[f(a={written}{end}), f(a=1)]"
    parser = TaggedText(syntax=LIST, tools=[Tool("f", {})])
    calls = joined(deltas(parser, cut(text, cuts))).tool_calls
    assert [json.loads(call.arguments) for call in calls] == [{"a": value}, {"a": 1}]


def test_lists_between_tags_may_hold_tuples() -> None:
    assert read(of_values({"a": "[(1, 'x'), 0x10,]"}), XML, {"a": {"type": "array"}}) == {"a": [[1, "x"], 16]}
