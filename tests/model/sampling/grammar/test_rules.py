"""Rules that use each other and themselves, and their merged form: both admit the same texts."""

import json
import random
from typing import Any

import pytest

from lightwell.model.sampling.grammar.json_schema import json_schema_grammar
from tests.model.sampling.grammar.schemas import Validator
from tests.support.walking import admits


def defined(chance: random.Random, number: int) -> Any:
    """Draw one of `number` schemas that refer to each other: null, pairs of others, or short lists of one."""

    def ref() -> Any:
        return {"$ref": f"#/$defs/{chance.randrange(number)}"}

    branches: list[Any] = [{"type": "null"}]
    if chance.random() < 0.7:
        fields = {name: ref() for name in sorted(chance.sample("ab", chance.randint(0, 2)))}
        needed = [name for name in fields if chance.random() < 0.4]
        branches.append({"type": "object", "properties": fields, "required": needed, "additionalProperties": False})
    if chance.random() < 0.7:
        branches.append({"type": "array", "items": ref(), "maxItems": chance.randint(0, 2)})
    return chance.choice(branches[1:] or branches) if chance.random() < 0.2 else {"anyOf": branches}


def value(chance: random.Random, depth: int) -> Any:
    kind = chance.randrange(3) if depth else 0
    if kind == 0:
        return None
    if kind == 1:
        return [value(chance, depth - 1) for _ in range(chance.randint(0, 3))]
    return {name: value(chance, depth - 1) for name in "ab" if chance.random() < 0.5}


@pytest.mark.parametrize("_turn", range(10))
def test_schemas_that_use_each_other_admit_what_they_say(_turn: int) -> None:
    chance = random.Random()
    number = chance.randint(1, 6)
    definitions = {str(each): defined(chance, number) for each in range(number)}
    if definitions["0"].get("required"):  # otherwise its texts might have no end
        definitions["0"]["required"] = []
    schema = {"$ref": "#/$defs/0", "$defs": definitions}
    grammar = json_schema_grammar(schema)
    for _ in range(60):
        given = value(chance, 4)
        assert admits(grammar, json.dumps(given)) == Validator(schema).is_valid(given), (schema, given)
