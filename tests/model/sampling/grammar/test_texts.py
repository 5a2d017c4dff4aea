"""Patterns, choices, GBNF, Lark and structural tags as grammars, tested with texts that match and texts that do not."""

import json
import random
import re
from typing import Any

import pytest

from lightwell.model.sampling.grammar.checking import MAX_OPTIONAL, check
from lightwell.model.sampling.grammar.constraint import Kind, grammar_text
from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.model.sampling.grammar.gbnf import gbnf_grammar
from lightwell.model.sampling.grammar.structural_tags import structural_tag_grammar
from lightwell.model.sampling.grammar.texts import choice_grammar, lark_or_ebnf_grammar, regex_grammar
from tests.support.walking import admits, walk

# Each grammar of a feature of GBNF, with a regular expression of the same texts.
GBNF = [
    ('root ::= "yes" | "no"', "yes|no"),
    ('root ::= [a-c]+ [^a-z\\n] "\\x41\\u00e9\\n" # a comment with "quotes"\n', "[a-c]+[^a-z\\n]A\u00e9\\n"),
    (
        'root ::= item{2,3} ("," item)* end?\nitem ::= [0-9]{1,2}\nend ::=\n  "."\n  | "!"',
        r"(\d{1,2}){2,3}(,\d{1,2})*[.!]?",
    ),
    ('root ::= "\\"" [-+*/\\]\\\\] "\\"" .', r'"[-+*/\]\\]"(.|\n)'),
    ('root ::= "abc" | [a-z] [a-f]', "abc|[a-z][a-f]"),
    ('root ::= list\nlist ::= "- " [a-z]{1,3} "\\n" list | "- " [a-z]{1,3} "\\n"', r"(- [a-z]{1,3}\n)+"),
    ('root ::= x*\nx ::= "ab" | [a-c] [d-e] | "(" x? x? ")" x-y\nx-y ::= ""', None),
]


@pytest.mark.parametrize(("grammar", "pattern"), GBNF)
def test_gbnf_admits_the_texts_of_the_same_pattern(grammar: str, pattern: str | None) -> None:
    written = gbnf_grammar(grammar)
    check(written)
    for seed in range(10):
        text = walk(written, random.Random(seed), 200)
        if pattern and text is not None:
            assert re.fullmatch(pattern, text)
        if pattern:
            other = walk(regex_grammar(pattern.replace(r"\d", "[0-9]")), random.Random(seed), 200)
            assert other is None or admits(written, other)


def test_gbnf_with_recursion_admits_what_a_grammar_of_characters_does() -> None:
    written = gbnf_grammar('root ::= expr\nexpr ::= term ([-+*/] term)*\nterm ::= [0-9]+ | "10" "x" | "(" expr ")"')
    assert [text for text in ["1", "10", "10x", "(1+22)*(3)", "((7))"] if not admits(written, text)] == []
    assert [text for text in ["", "10y", "(1", "1+", "()", "1x"] if admits(written, text)] == []


@pytest.mark.parametrize(
    ("grammar", "told"),
    [
        ('start ::= "a"', "root"),
        ('root ::= "a"\nother ::= none', "line 2: .*no rule none"),
        ('root ::= ("a"', "line 1: .*not closed"),
        ('root ::= "a"\nroot ::= "b"', "line 2: .*twice"),
        ("root ::= *", "line 1: .*nothing to repeat"),
        ('root ::= "a"{1,100000}', "line 1: .*10000"),
        ("root ::= [z-a]", "line 1: .*range"),
        ('root ::= "\\q"', "line 1: .*not an escape"),
        ("root ::= <think>", "line 1: .*not valid GBNF"),
        ("root ::= " + "(" * 60, "line 1: .*at most 50"),
    ],
)
def test_what_is_wrong_in_gbnf_is_told_with_its_line(grammar: str, told: str) -> None:
    with pytest.raises(GrammarError, match=told) as raised:
        gbnf_grammar(grammar)
    assert raised.value.path == ""


def test_ebnf_and_lark_are_told_apart() -> None:
    for grammar in ('root ::= "a" "b"', 'start: "a" B\nB: "b"'):
        written = lark_or_ebnf_grammar(grammar)
        check(written)
        assert admits(written, "ab")
        assert not admits(written, "a")
    with pytest.raises(GrammarError, match="line 2: temperature"):
        lark_or_ebnf_grammar("start: a\na[temperature=0.5]: /b/")
    with pytest.raises(GrammarError, match="must have a rule root"):
        lark_or_ebnf_grammar("no grammar")
    with pytest.raises(GrammarError):
        check(lark_or_ebnf_grammar("start: b"))


@pytest.mark.parametrize("pattern", ["^a$", "a|b/", r"\d{2}(x|y)*", "^a|b$", "(a+)+$", "", "[^a]\n"])
def test_a_pattern_is_matched_from_end_to_end(pattern: str) -> None:
    written = regex_grammar(pattern)
    check(written)
    for text in ["a", "b/", "12xy", "b", "aaa", "", "c\n", "aa!", "x12"]:
        assert admits(written, text) == bool(re.fullmatch(pattern, text, re.ASCII)), text


@pytest.mark.parametrize("pattern", ["(a", "(?=a)", r"(a)\1", "(a{1000}){1000}", "x" * 10_001, "a\ud800"])
def test_patterns_that_are_wrong_or_too_large_are_refused(pattern: str) -> None:
    with pytest.raises(GrammarError):
        regex_grammar(pattern)


def test_choices_are_exactly_these_texts() -> None:
    written = choice_grammar(["a", "ab", 'q"\\\n', "é"])
    assert [text for text in ["a", "ab", 'q"\\\n', "é"] if not admits(written, text)] == []
    assert [text for text in ["", "b", "abc", "aa"] if admits(written, text)] == []
    with pytest.raises(GrammarError) as raised:
        choice_grammar(["a", ""])
    assert raised.value.path == "[1]"


CALLS = {
    "structures": [
        {
            "begin": "<f=a>",
            "schema": {"type": "object", "properties": {"x y": {"enum": ["a r0 T0", 1]}}, "required": ["x y"]},
            "end": "</f>",
        },
        {"begin": "<f=b>", "schema": {"type": "integer"}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}


def test_a_trigger_begins_a_part_that_follows_its_schema() -> None:
    written = structural_tag_grammar(CALLS)
    check(written)
    admitted = ["", "a < b <f", 'so <f=a>{"x y": "a r0 T0"}</f>, then <f=b>12</f>\n', '<f=a>{"x y": 1}</f><f=b>-1</f>']
    assert [text for text in admitted if not admits(written, text)] == []
    assert [text for text in ["<f=c>", "so <f=b>x</f>", "<f=b>1</g>", "<f=b>1"] if admits(written, text)] == []


def test_the_newer_form_of_structural_tags_is_read() -> None:
    think = {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"}
    answer = {"type": "json_schema", "json_schema": {"type": "boolean"}}
    written = structural_tag_grammar(
        {"type": "structural_tag", "format": {"type": "sequence", "elements": [think, answer]}}
    )
    assert admits(written, "<think>hm\n</think>true")
    assert not admits(written, "<think>hm</think>maybe")
    tag = {"begin": "<f>", "content": answer, "end": "</f>"}
    once = {
        "type": "triggered_tags",
        "triggers": ["<f>"],
        "tags": [tag],
        "at_least_one": True,
        "stop_after_first": True,
    }
    written = structural_tag_grammar({"type": "structural_tag", "format": once})
    assert admits(written, "well <f>true</f>")
    assert not admits(written, "well")
    assert not admits(written, "<f>true</f> more")


@pytest.mark.parametrize(
    ("tag", "path"),
    [
        ({**CALLS, "triggers": ["<g="]}, ".structures[0].begin"),
        (
            {"structures": [{"begin": "<", "schema": {"not": {}}, "end": ""}], "triggers": ["<"]},
            ".structures[0].schema.not",
        ),
        ({"type": "structural_tag", "format": {"type": "qwen_xml_parameter"}}, ".format"),
        (
            {
                "type": "structural_tag",
                "format": {"type": "or", "elements": [{"type": "json_schema", "json_schema": {"if": {}, "else": {}}}]},
            },
            ".format.elements[0].json_schema.if",
        ),
        ({"structures": CALLS["structures"]}, ".triggers"),
        ({}, ".type"),
    ],
)
def test_what_is_not_supported_in_a_structural_tag_is_refused_by_its_place(tag: Any, path: str) -> None:
    with pytest.raises(GrammarError) as raised:
        structural_tag_grammar(tag)
    assert raised.value.path == path


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("regex", "{}", ".*"),
        ("regex", "{}", "(a+)?"),
        ("regex", "{}", "(a|)"),
        ("regex", "(x|{})", "x{{0,3}}"),
        ("grammar", "start: R\nR: /{}/", r"\w*"),
        ("grammar", "start: {}", "/a?/ "),
        ("grammar", 'A: "x"?\nT: {}\nstart: T', "A "),
        ("grammar", "start: T\n  T: {}", '"a"? '),
        ("grammar", "start: T\nT: {}", '["a"] '),
        ("grammar", "start: T\nT: {}", '"a"~0..1 '),
        ("grammar", "start: T\nT: {}", '"a".."c"? '),
        ("grammar", "start: T\nT: /{}/x", "a? "),
        ("regex", "{}", r"\x41?"),
        ("regex", "{}", "[[:digit:]]?"),
        ("regex", "{}", "(?i:a?)"),
        ("gbnf", "root ::= {}", '"a"? '),
        ("gbnf", "root ::= x {}\nx ::= [a-z]*", "x "),
    ],
)
def test_parts_in_a_row_that_may_all_be_left_out_are_counted(kind: Kind, one: str, other: str) -> None:
    """llguidance looks at all later entries for each entry: tens of thousands would take gigabytes."""
    part = other.format()
    assert grammar_text(kind, one.format(part * 40))
    with pytest.raises(GrammarError, match="more than 500 consecutive parts are optional"):
        grammar_text(kind, one.format(part * (MAX_OPTIONAL + 1)))


def test_parts_between_others_are_not_in_a_row() -> None:
    assert grammar_text("regex", "a?b" * 1000)
    assert grammar_text("regex", "|".join(f"word{i}s?" for i in range(900)))
    assert grammar_text("gbnf", "root ::= " + '"a"? "b" ' * 1000)
    assert grammar_text("regex", r"\d{3}\x{41}" * 501)
    assert grammar_text("grammar", 'start: "a"{2} ' * 1 + '"b"{2} ' * 600)
    assert grammar_text("grammar", "start: " + "r " * 600 + '\nr: "a"?\n')
    schema = {"type": "integer", "$defs": {f"a{i}": {} for i in range(510)}}
    assert grammar_text("grammar", f"start: %json {json.dumps(schema)}")


@pytest.mark.parametrize(
    "text", ['"' + '\\"' * 90_000, "/" + r"\/" * 90_000, '"a" ' + "<" * 190_000, '"a"{' + "0" * 190_000]
)
def test_unclosed_parts_of_a_grammar_are_read_once(text: str) -> None:
    """Reading them once for each place would take minutes."""
    with pytest.raises(GrammarError):
        grammar_text("grammar", f"start: {text}")


def test_what_is_too_large_in_its_first_steps_is_not_called_wrong() -> None:
    with pytest.raises(GrammarError, match="it is too large"):
        grammar_text("regex", r"\w*" * 400)


def test_terminals_that_double_each_other_are_counted() -> None:
    doubled = "".join(f"T{i + 1}: T{i} T{i}\n" for i in range(13))
    with pytest.raises(GrammarError, match="consecutive parts"):
        grammar_text("grammar", f'T0: "x"?\n{doubled}start: T13')
    assert grammar_text("grammar", f'T0: "x"\n{doubled}start: T13')
