"""JSON schemas as grammars: every allowed text satisfies the schema, and a refusal names the unsupported place."""

import json
import random
from datetime import date
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from lightwell.model.sampling.grammar.checking import check
from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.model.sampling.grammar.json_schema import json_object_grammar, json_schema_grammar
from tests.model.sampling.grammar.schemas import SCHEMAS, Validator
from tests.support.examples import examples
from tests.support.walking import admits, walk

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 130}},
    "required": ["name"],
}


@settings(max_examples=examples(1000), deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.integers(0, 2**32))
def test_every_text_that_may_be_written_satisfies_the_schema(schema: Any, seed: int) -> None:
    try:
        grammar = json_schema_grammar(schema)
    except GrammarError:
        return
    check(grammar)
    text = walk(grammar, random.Random(seed), 400)
    if text is not None:
        Validator(schema).validate(json.loads(text))


CLOSED = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": -50, "maximum": 5000},
        "tags": {"type": "array", "items": {"enum": ["a", "b", None, 1.5]}, "maxItems": 3},
        "text": {"anyOf": [{"type": "string", "maxLength": 4, "pattern": "^[a-z]*$"}, {"type": "boolean"}]},
    },
    "required": ["id", "tags", "text"],
    "additionalProperties": False,
}


ANSWERS = st.fixed_dictionaries(
    {
        "id": st.integers(-50, 5000),
        "tags": st.lists(st.sampled_from(["a", "b", None, 1.5]), max_size=3),
        "text": st.booleans() | st.text("abcz", max_size=4),
    }
)


@settings(max_examples=25)
@given(ANSWERS)
def test_every_answer_that_satisfies_the_schema_may_be_written(value: dict[str, Any]) -> None:
    Validator(CLOSED).validate(value)
    assert admits(json_schema_grammar(CLOSED), json.dumps({name: value[name] for name in ("id", "tags", "text")}))


@pytest.mark.parametrize(
    ("schema", "admitted", "refused"),
    [
        (PERSON, ['{"name": "Ada"}', '{"name": "Ada", "age": 36}'],
         ['{"age": 36}', '{"name":"Ada"}', '{"name": "Ada", "x": 1}']),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, ["{}", '{"a": 1, "b": 2}'],
         ['{"a": true}', "[]"]),
        (
            # the same name in another spelling must not replace the first value by a value of another type
            {**PERSON, "additionalProperties": {"type": "integer"}},
            ['{"name": "Ada", "nam": 1}'],
            ['{"name": "Ada", "\\u006eame": 1}', '{"name": "Ada", "name": 1}'],
        ),
        ({"enum": ["a", "ab", 1, 12, None, [1, {"b": 2, "a": 3}]]}, ['"ab"', "12", '[1, {"b": 2, "a": 3}]'],
         ["2", '"abc"']),
        ({"const": 5, "type": "number"}, ["5"], ["5.0", "6"]),
        ({"enum": [1, "x", 2.5], "type": "integer"}, ["1"], ['"x"', "2.5"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ['"éé"', '"a\\n😀"'], ['"a"', '"abcd"', '"a\\u0062"']),
        ({"type": "integer", "exclusiveMinimum": -3, "maximum": 11}, ["-2", "0", "11"],
         ["-3", "-0", "12", "01", "1.0"]),
        ({"type": "number", "minimum": -0.25, "exclusiveMaximum": 1}, ["-0.25", "0.999", "0"],
         ["-0.26", "1", "1.0", "1e-3"]),
        ({"type": "number", "multipleOf": 0.01, "minimum": 0}, ["0.07", "3"], ["0.071", "-1"]),
        ({"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": False}, ["[]", "[1]", "[1, 2]"],
         ["[2]", "[1, 2, 3]"]),
        ({"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 3}, ["[1, 1]", "[1, 1, 1]"],
         ["[1]", "[1, 1, 1, 1]"]),
        ({"type": "object", "properties": {"a": True, "b": True, "c": True}, "minProperties": 2, "maxProperties": 2},
         ['{"a": 1, "b": 2}', '{"b": 1, "c": null}'], ['{"a": 1}', '{"a": 1, "b": 2, "c": 3}']),
        (
            {
                "type": "object",
                "patternProperties": {"^x-": {"type": "null"}},
                "additionalProperties": {"type": "boolean"},
            },
            ['{"x-a": null, "y": true}'],
            ['{"x-a": true}', '{"y": null}'],
        ),
        (
            {
                "allOf": [
                    {"properties": {"a": {"minimum": 3}}},
                    {"properties": {"a": {"maximum": 5, "type": "integer"}}, "required": ["a"]},
                ]
            },
            ['{"a": 4}'],
            ['{"a": 2}', '{"a": 6}', "{}"],
        ),
        ({"oneOf": [{"properties": {"kind": {"const": k}, k: {"type": "null"}}} for k in ("cat", "dog")]},
         ['{"kind": "cat", "cat": null}', '{"kind": "dog"}'], ['{"kind": "cat", "dog": null}', "{}"]),
        (
            {
                "$defs": {
                    "list": {
                        "properties": {"next": {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]}},
                        "required": ["next"],
                        "type": "object",
                    }
                },
                "$ref": "#/$defs/list",
            },
            ['{"next": null}', '{"next": {"next": null}}'],
            ["{}", "null"],
        ),
        ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"24-01-01"']),
        ({"type": "string", "format": "password"}, ['"any"'], ["1"]),
        # Only llguidance admits the escaped quote.
        ({"type": "string", "pattern": '^[^"]{3}$'}, ['"a]é"'], ['"\\"]]"', '"]]\\""']),
        ({"type": "string", "pattern": r"^[^\\]$"}, ['"a"', '"\\n"'], ['"\\\\"']),
        ({"type": "string", "pattern": "^a|b$"}, ['"ax"', '"xb"'], ['"xax"']),
        ({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"const": 1}},
         ['{"a": 1, "b": 1}'], ['{"c": 1}']),
        (
            {
                "$schema": "http://json-schema.org/draft-04/schema#",
                "type": "integer",
                "minimum": 3,
                "exclusiveMinimum": True,
            },
            ["4"],
            ["3"],
        ),
        (True, ["null", "[1.5e3, {}]", '{"a": ["b"]}'], ["", "{"]),
        # Numbers come to an end, also in times.
        ({"type": ["integer", "number"]}, ["1" * 15], ["1" * 16, "0." + "0" * 16]),
        ({"type": "number", "minimum": 0}, ["1.0"], ["1." + "0" * 15]),
        ({"type": "string", "format": "duration"}, ['"P1Y2M3DT4H5M6S"', '"P3W"', '"PT604800S"', '"P1D"'],
         ['"P1234567890D"']),
        ({"type": "string", "format": "time"}, ['"12:54:16Z"', '"12:54:16.235+01:00"'], ['"12:54:16.1234567890Z"']),
        ({"type": "string", "format": "date-time"}, ['"2022-01-21T12:11:52Z"', '"2022-01-21T12:11:52.235-12:11"'],
         ['"2022-01-21T12:11:52.1234567890Z"']),
    ],
)  # fmt: skip
def test_texts_are_admitted_as_the_schema_says(schema: Any, admitted: list[str], refused: list[str]) -> None:
    grammar = json_schema_grammar(schema)
    assert [text for text in admitted if not admits(grammar, text)] == []
    assert [text for text in refused if admits(grammar, text)] == []


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"address": {"anyOf": [{"type": "null"}, {"not": {}}]}}}, ".properties.address.anyOf[1].not"),
        ({"properties": {"a b": {"type": "array", "uniqueItems": True}}}, '.properties["a b"].uniqueItems'),
        ({"$defs": {"x": {"if": {}, "then": False}}, "items": {"$ref": "#/$defs/x"}}, ".$defs.x.if"),
        ({"type": "text"}, ".type"),
        ({"$ref": "https://example.com/schema"}, ".$ref"),
        ({"$ref": "#/$defs/none"}, ".$ref"),
        ({"type": "string", "format": "regex"}, ".format"),
        ({"type": "string", "pattern": "(?=a)"}, ".pattern"),
        ({"minimum": 3, "exclusiveMinimum": True}, ".exclusiveMinimum"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ".oneOf"),
        ({"items": [{"type": "integer"}]}, ".items"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, ".$schema"),
        ({"type": "object", "properties": {"a": 5}}, ".properties.a"),
        ({"required": "a"}, ".required"),
        ({"dependentRequired": {"a": ["b"]}}, ".dependentRequired"),
        ({"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False, "type": "object"},
         ".unevaluatedProperties"),
        ({"const": float("nan")}, ".const"),
        ({"$ref": "#"}, ""),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, ""),
        (False, ""),
        ({"multipleOf": 123456789, "type": "integer"}, ""),
        ({"anyOf": [{"anyOf": [{"minimum": n} for n in range(30)]}] * 30, "allOf": [{"anyOf": [{}] * 30}] * 3}, ""),
        ({"type": "string", "minLength": 10**7}, ".minLength"),
        ({"enum": ["x" * 1_000_001]}, ""),
        ({"type": "object", "propertyNames": {"format": "uuid"}}, ".propertyNames.format"),
        ({"type": "object", "propertyNames": {"not": {"enum": ["a"]}}}, ".propertyNames.not"),
        ({"type": "object", "propertyNames": {"pattern": "(?=a)"}}, ".propertyNames.pattern"),
        ({"type": "object", "propertyNames": {"minLength": 20_000}}, ".propertyNames.minLength"),
        ({"type": "object", "propertyNames": {"allOf": [{"pattern": f"a{n}"} for n in range(5)]}}, ".propertyNames"),
        ({"type": "object", "propertyNames": {"anyOf": [{"pattern": f"a{n}", "maxLength": n} for n in range(3)]}},
         ".propertyNames"),
        ({"type": "array", "uniqueItems": True, "items": {"type": "string"}}, ".uniqueItems"),
        ({"type": "array", "uniqueItems": True, "items": {"type": ["boolean", "integer"]}}, ".uniqueItems"),
        ({"type": "array", "uniqueItems": True, "items": {"enum": [1]}, "prefixItems": [{"const": 1}]}, ".uniqueItems"),
        ({"type": "array", "uniqueItems": True, "items": {"enum": [*range(1000)]}}, ".uniqueItems"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_its_place(schema: Any, path: str) -> None:
    with pytest.raises(GrammarError) as raised:
        json_schema_grammar(schema)
    assert raised.value.path == path
    assert "\n" not in raised.value.message


def test_schemas_nested_too_deep_are_refused() -> None:
    schema: Any = {}
    for _ in range(10_000):
        schema = {"items": schema}
    with pytest.raises(GrammarError, match="nested at most 64 levels"):
        json_schema_grammar(schema)


def test_spaces_are_those_of_the_whitespace_pattern_and_of_json() -> None:
    grammar = json_schema_grammar(CLOSED, whitespace_pattern="[ x]{0,2}")
    assert admits(grammar, '{"id":  1 , "tags": ["a" ,"b"],"text": true}')
    assert not admits(grammar, '{"id":   1, "tags": [], "text": true}')
    assert not admits(grammar, '{"id":x1, "tags": [], "text": true}')
    with pytest.raises(GrammarError, match="whitespace_pattern"):
        json_schema_grammar(CLOSED, whitespace_pattern="(")


class Pet(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: Annotated[int, Field(ge=0, le=9)] = 9


class Toy(BaseModel):
    kind: Literal["toy"] = "toy"


class Owner(BaseModel):
    name: Annotated[str, Field(min_length=1, max_length=8)]
    born: date | None = None
    has: Annotated[Pet | Toy, Field(discriminator="kind")]
    friends: Annotated[list["Owner"], Field(max_length=2)] = []
    counts: dict[Literal["a", "b"], int] = {}
    price: Annotated[float, Field(ge=0, multiple_of=0.01)]
    pair: tuple[int, bool]


def test_pydantic_reads_what_is_written_for_its_models() -> None:
    grammar = json_schema_grammar(Owner.model_json_schema())
    for seed in range(10):
        text = walk(grammar, random.Random(seed))
        assert text is None or Owner.model_validate_json(text)


def test_any_object_is_an_object() -> None:
    grammar = json_object_grammar()
    assert admits(grammar, '{"a": [1, {"b": null}], "c": "d"}')
    assert not admits(grammar, "[]")
