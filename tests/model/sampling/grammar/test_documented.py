"""docs/structured-outputs.md lists the keywords that the code honours and refuses."""

import re

import pytest

from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.model.sampling.grammar.json_schema import json_schema_grammar
from lightwell.model.sampling.grammar.places import HONOURED, REFUSED
from tests.model.sampling.grammar.documented import PAGE, written


def test_the_page_has_the_tables_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page


@pytest.mark.parametrize("keyword", REFUSED)
def test_a_keyword_that_is_said_to_be_refused_is_refused(keyword: str) -> None:
    with pytest.raises(GrammarError) as raised:
        json_schema_grammar({"properties": {"a": {keyword: {"type": "string"}, "else": False}}})
    assert raised.value.path == f".properties.a{'.' + keyword if re.match('[a-z$]', keyword) else ''}"


RESTRICTS = {
    "type": "null", "const": 1, "enum": [1], "anyOf": [{"type": "null"}], "allOf": [{"type": "null"}],
    "oneOf": [{"type": "null"}], "$ref": "#/$defs/none", "minimum": 5, "maximum": 5, "exclusiveMinimum": 5,
    "exclusiveMaximum": 5, "multipleOf": 5, "minLength": 5, "maxLength": 5, "pattern": "^a$", "format": "date",
    "items": {"type": "null"}, "prefixItems": [{"type": "null"}], "additionalItems": False, "minItems": 2,
    "maxItems": 2, "uniqueItems": True, "unevaluatedItems": False, "properties": {"a": {"type": "null"}},
    "required": ["a"], "additionalProperties": False, "patternProperties": {"a": {"type": "null"}},
    "propertyNames": {"enum": ["a"]},
    "minProperties": 1, "maxProperties": 2, "unevaluatedProperties": False,
}  # fmt: skip
BESIDE = {"additionalItems": {"items": [{}], "$schema": "http://json-schema.org/draft-07/schema#"}}


@pytest.mark.parametrize("keyword", [keyword for keywords in HONOURED.values() for keyword in keywords])
def test_a_keyword_that_is_said_to_be_honoured_changes_what_may_be_written(keyword: str) -> None:
    kind = next((kind for kind, keywords in HONOURED.items() if keyword in keywords and kind != "any"), None)
    without = {"$defs": {"none": {"type": "null"}}, **({"type": kind} if kind else {}), **BESIDE.get(keyword, {})}
    with_it = {**without, keyword: RESTRICTS[keyword], **({"maxItems": 1} if keyword == "uniqueItems" else {})}
    assert json_schema_grammar(with_it) != json_schema_grammar(without)
