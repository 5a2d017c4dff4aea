"""propertyNames: which names an object may have."""

import json
import random
from typing import Annotated, Any

import pytest
from pydantic import StringConstraints, TypeAdapter

from model.sampling.grammar.errors import GrammarError
from model.sampling.grammar.json_schema import json_schema_grammar
from tests.model.sampling.grammar.schemas import Validator
from tests.support.walking import admits, walk


@pytest.mark.parametrize(
    ("names", "admitted", "refused"),
    [
        ({"maxLength": 2}, ["", "é", "ab", "\n😀"], ["abc"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "abc"], ["a", "abcd"]),
        ({"pattern": "^x-", "maxLength": 4}, ["x-", "x-ab"], ["x-abc", "y-", "ax-", 'x-"']),
        ({"allOf": [{"pattern": "a"}, {"pattern": "b$"}], "minLength": 3}, ["cab", "abb"], ["ab", "bba"]),
        ({"$ref": "#/$defs/short"}, ["ab"], ["abc"]),
        ({"anyOf": [{"enum": ["long name"]}, {"$ref": "#/$defs/short"}, {"pattern": "^x"}]}, ["ab", "xyz"], ["abc"]),
        ({"type": "integer"}, [], ["a"]),
        ({"minLength": 3, "maxLength": 2}, [], ["ab", "abc"]),
    ],
)
def test_names_are_those_that_are_described(names: Any, admitted: list[str], refused: list[str]) -> None:
    schema = {
        "type": "object",
        "propertyNames": names,
        "additionalProperties": {"const": 1},
        "$defs": {"short": {"maxLength": 2}},
    }
    grammar = json_schema_grammar(schema)
    assert admits(grammar, "{}")
    written = {name: json.dumps({name: 1}, ensure_ascii=False) for name in admitted + refused}
    assert [name for name in admitted if not admits(grammar, written[name])] == []
    assert [name for name in refused if admits(grammar, written[name])] == []


def test_several_rules_for_names_hold_together() -> None:
    rules = [{"propertyNames": {"pattern": "^[a-z]+$"}}, {"propertyNames": {"minLength": 2}}]
    grammar = json_schema_grammar({"type": "object", "allOf": rules, "additionalProperties": True})
    assert admits(grammar, '{"ab": 1, "abc": null}')
    assert not admits(grammar, '{"a": 1}')
    assert not admits(grammar, '{"AB": 1}')


def test_names_of_patterns_keep_to_the_rule_for_names() -> None:
    schema = {
        "type": "object",
        "propertyNames": {"maxLength": 3},
        "patternProperties": {"^x": {"const": 1}, "^longer": {"const": 2}},
        "additionalProperties": {"const": 3},
    }
    grammar = json_schema_grammar(schema)
    assert admits(grammar, '{"xyz": 1, "ab": 3}')
    for text in ['{"xyzz": 1}', '{"longer": 2}', '{"abcd": 3}', '{"xy": 3}']:
        assert not admits(grammar, text)


def test_a_property_whose_name_is_forbidden_does_not_appear() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"const": 1}, "abc": {"const": 2}},
        "propertyNames": {"maxLength": 2},
        "additionalProperties": {"const": 3},
    }
    grammar = json_schema_grammar(schema)
    assert admits(grammar, '{"a": 1, "b": 3}')
    for text in ['{"a": 3}', '{"abc": 2}', '{"abc": 3}']:
        assert not admits(grammar, text)
    with pytest.raises(GrammarError, match="no value"):
        json_schema_grammar({**schema, "required": ["abc"]})


@pytest.mark.parametrize(
    ("names", "path"),
    [
        ({"format": "uuid"}, ".format"),
        ({"not": {"enum": ["a"]}}, ".not"),
        ({"pattern": "(?=a)"}, ".pattern"),
        ({"minLength": 20_000}, ".minLength"),
        ({"allOf": [{"pattern": f"a{n}"} for n in range(5)]}, ""),
        ({"anyOf": [{"pattern": f"a{n}", "maxLength": n} for n in range(3)]}, ""),
    ],
)
def test_names_that_cannot_be_held_are_refused_by_their_place(names: Any, path: str) -> None:
    with pytest.raises(GrammarError) as raised:
        json_schema_grammar({"type": "object", "propertyNames": names})
    assert raised.value.path == ".propertyNames" + path


Short = Annotated[str, StringConstraints(max_length=3)]
Lower = Annotated[str, StringConstraints(pattern="^[a-z]+$", min_length=2)]


@pytest.mark.parametrize("kind", [dict[Short, int], dict[Lower, dict[Short, bool]]])
def test_pydantic_reads_what_is_written_for_its_dictionaries(kind: Any) -> None:
    adapter = TypeAdapter(kind)
    schema = adapter.json_schema()
    grammar = json_schema_grammar({**schema, "minProperties": 1})
    for seed in range(10):
        text = walk(grammar, random.Random(seed), 300)
        if text is not None:
            Validator(schema).validate(json.loads(text))
            assert adapter.validate_json(text)
