"""Values that are too long are refused before any work, and those at the limits take time linear in their length."""

import json
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lightwell.model.sampling.grammar.checking import kept, remembered
from lightwell.model.sampling.grammar.constraint import Kind, grammar_text
from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.model.sampling.grammar.gbnf import MAX_BYTES
from lightwell.model.sampling.grammar.texts import MAX_PATTERN
from tests.support.walking import admits

LONG = "z" * 2_000_000


@pytest.mark.parametrize(
    ("kind", "value", "whitespace"),
    [
        ("json", {}, LONG),
        ("json", {"type": "string", "pattern": LONG}, None),
        ("json", {"properties": {LONG: {}}}, None),
        ("json", {"enum": [LONG]}, None),
        ("regex", LONG, None),
        ("choice", [LONG, LONG], None),
        ("grammar", "start: " + LONG, None),
        ("gbnf", "root ::= " + LONG, None),
        ("structural_tag", {"structures": [{"begin": LONG, "schema": {}}], "triggers": ["a"]}, None),
    ],
)
def test_lengths_are_checked_before_any_work(kind: Kind, value: Any, whitespace: str | None) -> None:
    """The most memory is a copy of the value, in which its bytes are counted."""
    tracemalloc.start()
    try:
        with pytest.raises(GrammarError, match="at most"):
            grammar_text(kind, value, whitespace)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * len(LONG)


class TooManyCallsError(Exception):
    """The work called more functions than allowed."""


@contextmanager
def within(most_calls: int) -> Iterator[None]:
    """Raise TooManyCallsError if the work calls more functions, of Python and of C. The limit is about twice the number
    that is needed, which is the same on every machine.
    """
    num_calls = 0

    def count(frame: object, event: str, _: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")
        if num_calls > most_calls:
            raise TooManyCallsError

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_calls_are_counted_to_the_limit() -> None:
    with within(100):
        list(map(len, ["a"] * 10))
    with pytest.raises(TooManyCallsError), within(100):
        [len("a") for _ in range(200)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("grammar", "\n" * MAX_BYTES),
        ("grammar", "[" * MAX_BYTES),
        ("grammar", "start: " + "[" * (MAX_BYTES - 8)),
        ("regex", "[" * MAX_PATTERN),
        ("regex", "[\\" * (MAX_PATTERN // 2)),
        ("json", {"type": "string", "pattern": "[" * MAX_PATTERN}),
    ],
)
def test_brackets_and_lines_are_read_once(kind: Kind, value: Any) -> None:
    """The search of a regular expression is one call; a call for each place of a grammar would take minutes here."""
    with pytest.raises(GrammarError), within(5 * MAX_PATTERN):
        grammar_text(kind, value)


@pytest.mark.parametrize(
    ("kind", "value"), [("regex", "a{" + "1" * 5000 + "}"), ("gbnf", 'root ::= "a"{' + "1" * 5000 + "}")]
)
def test_a_count_of_thousands_of_digits_is_too_large(kind: Kind, value: str) -> None:
    with pytest.raises(GrammarError, match=r"repeated at most|repetitions of at most"):
        grammar_text(kind, value)


def test_counts_with_zeros_before_them_are_counts() -> None:
    assert grammar_text("regex", "a{" + "0" * 30 + "2}")
    assert grammar_text("gbnf", 'root ::= "a"{' + "0" * 30 + "2}")


def test_parts_of_a_schema_are_read_once() -> None:
    text = {"type": "string"}
    with within(700_000):
        grammar = grammar_text(
            "json", {"type": "array", "prefixItems": [text] * 1900 + [{"const": 7}], "minItems": 1000}
        )
    assert '"7"' in grammar
    with within(70_000):
        grammar = grammar_text("json", {"required": [f"n{i}" for i in range(300)], "additionalProperties": text})
    assert admits(grammar, json.dumps({f"n{i}": "a" for i in range(300)}))
    assert not admits(grammar, json.dumps({f"n{i}": "a" for i in range(299)}))


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"type": "string"}] * 10_000},
        {"allOf": [{"properties": {f"a{i}": {"type": "string"}}} for i in range(2000)]},
        {"patternProperties": {f"^a{i}": {"type": "string"} for i in range(400)}},
    ],
)
def test_parts_that_hold_together_are_bounded(schema: Any) -> None:
    with pytest.raises(GrammarError, match="parts that apply together"), within(3_000_000):
        grammar_text("json", {"type": "object", **schema})


def test_long_names_that_begin_alike_are_told_apart_by_short_paths() -> None:
    for name in ("x y" * 50, "x" * 150):
        named = {f"{name}1": {"type": "boolean"}, f"{name}2": {"type": "null"}}
        grammar = grammar_text("json", {"type": "object", "properties": named, "required": list(named)})
        assert admits(grammar, json.dumps({f"{name}1": True, f"{name}2": None}))
        assert not admits(grammar, json.dumps({f"{name}1": True, f"{name}2": True}))
    with pytest.raises(GrammarError) as raised:
        grammar_text("json", {"properties": {"x" * 100_000: {"properties": {"y" * 100_000: 1}}}})
    assert len(raised.value.path) < 400


def test_the_schemas_of_all_tags_together_are_bounded() -> None:
    """Each schema is within its limits: 67 together are refused before their grammar is tried, 20 are accepted."""
    schema = {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(100)}}
    tags = [{"begin": f"<{i}>", "schema": schema, "end": "</>"} for i in range(200)]
    with pytest.raises(
        GrammarError, match=r"the grammar of all tags has 5[0-9]* characters; at most 500000 are"
    ) as caught:
        grammar_text("structural_tag", {"structures": tags, "triggers": ["<"]})
    assert caught.value.path == ".structures[66].schema"
    assert grammar_text("structural_tag", {"structures": tags[:20], "triggers": ["<"]})


def test_the_results_used_last_are_kept_up_to_a_number_of_characters() -> None:
    asked: list[int] = []

    @remembered
    def repeated(number: int, text: str = "x") -> str:
        asked.append(number)
        return text * 375_000

    for number in [*range(8), 7, 0, 8, 0, 1]:  # eleven of them fit
        repeated(number)
    assert asked == [*range(9)]
    assert kept(repeated, 1) is kept(repeated, 1) is not None
    for number in (*range(10, 19), 1, 2):
        repeated(number)
    assert asked == [*range(9), *range(10, 19), 2]
    asked.clear()
    longest = "x" * 12
    assert [repeated(20, longest), repeated(20, longest)] == [longest * 375_000] * 2
    assert (asked, kept(repeated, 20, longest)) == ([20, 20], None)
    assert repeated(10**30) is repeated(10**30)
