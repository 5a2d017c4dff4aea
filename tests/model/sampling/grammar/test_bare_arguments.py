"""Arguments with bare names and literal texts: every allowed text is read as JSON that the schema admits."""

import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightwell.model.sampling.grammar.bare_arguments import bare_arguments_grammar
from lightwell.model.sampling.grammar.checking import check
from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.model.sampling.grammar.schema_alternatives import Alternatives
from lightwell.model.tokenization.chat_formats.arguments import BareReader
from lightwell.model.tokenization.chat_formats.call_syntax import BareSyntax
from tests.model.sampling.grammar.schemas import SCHEMAS, Validator
from tests.support.examples import examples
from tests.support.walking import admits, walk

SHORT = BareSyntax('"', is_sorted=True)
"""Random texts find their end."""
LONG = BareSyntax("<escape>", ", ", ": ")


def grammar_of(schema: object, syntax: BareSyntax = SHORT, *, is_lenient: bool = False) -> str:
    return bare_arguments_grammar(schema, syntax, None, is_lenient=is_lenient)


def read(text: str, syntax: BareSyntax = SHORT) -> Any:
    reader = BareReader(syntax.quote)
    written, num_read = reader.read(text, is_over=True)
    assert reader.is_whole
    assert num_read == len(text)
    return json.loads(written)


@settings(max_examples=examples(500), deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, SCHEMAS, st.integers(0, 2**32))
def test_all_arguments_that_may_be_written_satisfy_the_schema(one: Any, other: Any, seed: int) -> None:
    defined = {"$defs": other["$defs"]} if isinstance(other, dict) else {"$defs": {"d": {}}}
    schema = {"type": "object", "properties": {"b": one, "a": other}, "required": ["b"], **defined}
    try:
        grammar = grammar_of(schema)
    except GrammarError:
        return
    check(grammar)
    text = walk(grammar, random.Random(seed), 400)
    if text is not None:
        Validator(schema).validate(read(text))


@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.integers(0, 2**32))
def test_what_is_not_enforced_still_gives_json(schema: Any, seed: int) -> None:
    grammar = grammar_of({"type": "object", "properties": {"b": schema}}, is_lenient=True)
    check(grammar)
    text = walk(grammar, random.Random(seed), 400)
    assert text is None or isinstance(read(text), dict)


TYPED = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["C", "", 3, None]},
        "count": {"type": "integer", "minimum": 2, "maximum": 12},
        "Code": {"type": "string", "pattern": "^[A-Z]{2}", "maxLength": 4},
        "where": {
            "type": "object",
            "properties": {"y": {"type": "array", "items": {"type": "boolean"}}, "x": {"type": "string"}},
            "required": ["x"],
        },
    },
    "required": ["unit"],
}


@pytest.mark.parametrize(
    ("text", "takes"),
    [
        ("{unit:<escape>C<escape>}", True),
        ("{unit:<escape><escape>}", True),
        ("{unit:null}", True),
        ("{unit:<escape>null<escape>}", False),
        ("{unit:C}", False),
        ("{count:3}", False),
        ("{count:3,unit:3}", True),
        ("{unit:3,count:3}", False),
        ("{count:13,unit:3}", False),
        ('{Code:<escape>AB"\n<escape>,unit:3}', True),
        ("{Code:<escape>aB<escape>,unit:3}", False),
        ("{Code:<escape>ABCDE<escape>,unit:3}", False),
        ('{unit:3,where:{x:<escape>"\\<esc<escape>,y:[true,false]}}', True),
        ("{unit:3,where:{y:[true]}}", False),
        ('{"unit":3}', False),
    ],
)
def test_arguments_are_held_to_their_schemas(text: str, takes: bool) -> None:
    grammar = grammar_of(TYPED, BareSyntax("<escape>", is_sorted=True))
    assert admits(grammar, text) == takes
    if takes:
        Validator(TYPED).validate(read(text, BareSyntax("<escape>")))


def test_properties_come_in_the_schemas_order_where_the_template_sorts_none() -> None:
    schema = {"properties": {"b": {"type": "integer"}, "a": {"type": "integer"}}, "type": "object"}
    assert admits(grammar_of(schema, LONG), "{b: 1, a: 2}")
    assert not admits(grammar_of(schema, LONG), "{a: 2, b: 1}")


def test_maps_take_names_of_the_models_own() -> None:
    grammar = grammar_of({"type": "object", "additionalProperties": {"type": "integer"}})
    assert admits(grammar, "{some-name:1,é:2}")
    for wrong in ("{a:true}", '{"a":1}', "{a,b:1}", "{:1}"):
        assert not admits(grammar, wrong)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"at": {"type": "string", "format": "date"}}}, ".properties.at.format"),
        ({"properties": {"a": {"items": {"not": {}}}}}, ".properties.a.items.not"),
        ({"properties": {"a": {"pattern": r"\bx"}}}, ".properties.a.pattern"),
        ({"patternProperties": {"^x": True}}, ".patternProperties"),
        ({"properties": {"a": True}, "propertyNames": {"maxLength": 3}}, ".propertyNames"),
        ({"properties": {"a:b": True, "c": True}, "required": ["c"]}, '.properties["a:b"]'),
        ({"properties": {"a": {"enum": ['say "x"']}}}, ""),
    ],
)
def test_what_cannot_be_held_is_refused_by_its_place_or_left_out(schema: dict[str, Any], path: str) -> None:
    schema = {"type": "object", **schema}
    with pytest.raises(GrammarError) as caught:
        grammar_of(schema)
    assert caught.value.path == path
    grammar = grammar_of(schema, is_lenient=True)
    name = next(iter(schema.get("required", schema.get("properties", ["a"]))))
    assert admits(grammar, f'{{{name}:"2025-01-01"}}') or admits(grammar, f"{{{name}:[1]}}")


def test_a_large_schema_is_written_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """There would be 50 attempts, each of over a second with the bound on their steps."""
    text = {"type": "string"}
    large = {f"n{i}": {"type": "array", "prefixItems": [text] * 180, "minItems": 180} for i in range(20)}
    unsupported = {f"z{i}": {"type": "string", "not": {"const": i}} for i in range(50)}
    attempts: list[object] = []

    class Counted(Alternatives):
        def __init__(self, schema: object) -> None:
            attempts.append(schema)
            super().__init__(schema)

    monkeypatch.setattr("lightwell.model.sampling.grammar.bare_arguments.Alternatives", Counted)
    monkeypatch.setattr("lightwell.model.sampling.grammar.bare_arguments._MAX_STEPS", 20_000)
    grammar = grammar_of({"type": "object", "properties": {**unsupported, **large}}, LONG, is_lenient=True)
    assert len(attempts) < 6
    assert attempts[-1] == {"type": "object"}
    assert grammar == grammar_of({"type": "object"}, LONG)
