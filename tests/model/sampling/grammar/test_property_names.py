"""propertyNames: which names an object may have."""

import json
import random
from typing import Annotated, Any

import pytest
from pydantic import StringConstraints, TypeAdapter

from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.model.sampling.grammar.json_schema import json_schema_grammar
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


RULES = [{"propertyNames": {"pattern": "^[a-z]+$"}}, {"propertyNames": {"minLength": 2}}]
PATTERNS = {"^x": {"const": 1}, "^longer": {"const": 2}}
FORBIDDEN = {"properties": {"a": {"const": 1}, "abc": {"const": 2}}, "propertyNames": {"maxLength": 2}}


@pytest.mark.parametrize(
    ("schema", "admitted", "refused"),
    [
        ({"allOf": RULES, "additionalProperties": True}, ['{"ab": 1, "abc": null}'], ['{"a": 1}', '{"AB": 1}']),
        ({"propertyNames": {"maxLength": 3}, "patternProperties": PATTERNS, "additionalProperties": {"const": 3}},
         ['{"xyz": 1, "ab": 3}'], ['{"xyzz": 1}', '{"longer": 2}', '{"abcd": 3}', '{"xy": 3}']),
        ({**FORBIDDEN, "additionalProperties": {"const": 3}}, ['{"a": 1, "b": 3}'],
         ['{"a": 3}', '{"abc": 2}', '{"abc": 3}']),
    ],
)  # fmt: skip
def test_rules_for_names_hold_together(schema: Any, admitted: list[str], refused: list[str]) -> None:
    grammar = json_schema_grammar({"type": "object", **schema})
    assert [text for text in admitted if not admits(grammar, text)] == []
    assert [text for text in refused if admits(grammar, text)] == []


def test_a_required_property_whose_name_is_forbidden_is_refused() -> None:
    with pytest.raises(GrammarError, match="no value"):
        json_schema_grammar({"type": "object", **FORBIDDEN, "required": ["abc"]})


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
