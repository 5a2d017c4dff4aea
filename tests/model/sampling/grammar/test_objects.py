"""uniqueItems: arrays with listed items have them in the order of the list, each item at most once."""

import enum
import itertools
import json
import random
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.model.sampling.grammar.json_schema import json_schema_grammar
from tests.model.sampling.grammar.schemas import Validator
from tests.support.walking import admits, walk


@pytest.mark.parametrize("counts", [{}, {"minItems": 1, "maxItems": 2}])
@pytest.mark.parametrize(
    ("items", "values"),
    [
        ({"enum": ["b", "a", 1, True, None]}, ["b", "a", 1, True, None]),
        ({"enum": [1, 1.0, True, [1], [1.0], {"a": 1}, {"a": True}]}, [1, True, [1], {"a": 1}, {"a": True}]),
        ({"enum": ["a", 1, 2], "type": "integer"}, [1, 2]),
        ({"type": ["boolean", "null"]}, [None, False, True]),
        ({"anyOf": [{"enum": ["a", "b"]}, {"const": "c"}, {"const": "a"}]}, ["a", "b", "c"]),
    ],
)
def test_items_come_once_and_in_order(items: Any, values: list[Any], counts: dict[str, int]) -> None:
    schema = {"type": "array", "items": items, "uniqueItems": True, **counts}
    grammar = json_schema_grammar(schema)
    for length in range(4):
        for chosen in itertools.product(range(len(values)), repeat=length):
            value = [values[number] for number in chosen]
            in_order = list(chosen) == sorted(set(chosen))
            assert admits(grammar, json.dumps(value)) == (in_order and Validator(schema).is_valid(value)), value


def test_more_items_than_are_listed_cannot_be() -> None:
    items = {"type": "array", "items": {"enum": ["a", "b", "a"]}, "uniqueItems": True}
    assert admits(json_schema_grammar({**items, "minItems": 2}), '["a", "b"]')
    with pytest.raises(GrammarError, match="no value"):
        json_schema_grammar({**items, "minItems": 3})


class Colour(enum.Enum):
    red = "red"
    green = "green"
    blue = "blue"


class Choice(BaseModel):
    colours: set[Colour]
    letters: set[Literal["a", "b"]]
    flags: frozenset[bool]


def test_pydantic_reads_what_is_written_for_its_sets() -> None:
    grammar = json_schema_grammar(Choice.model_json_schema())
    seen = set()
    for seed in range(30):
        text = walk(grammar, random.Random(seed))
        assert text is not None
        Validator(Choice.model_json_schema()).validate(json.loads(text))
        seen.add(len(Choice.model_validate_json(text).colours))
    assert len(seen) > 1


def test_spaces_stand_between_items_that_come_once() -> None:
    schema = {"type": "array", "items": {"type": "boolean"}, "uniqueItems": True}
    grammar = json_schema_grammar(schema, whitespace_pattern="[ ]?")
    assert admits(grammar, "[ false ,true ]")
    assert admits(grammar, "[]")
