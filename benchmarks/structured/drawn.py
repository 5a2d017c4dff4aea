"""Random schemas: of pydantic models, of any keywords, and of the official suite.

All answers have a bounded length, so that a model with random output ends.
"""

import datetime
import decimal
import ipaddress
import json
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from hypothesis import HealthCheck, Phase, given, seed, settings
from pydantic import BaseModel, Field, create_model

from benchmarks.structured.suite import DRAFTS
from tests.model.sampling.grammar.schemas import SCHEMAS

LONGEST = 8
"""Most characters of a text where the schema does not say."""
MOST = 3
"""Most items or properties where the schema does not say."""
SCALAR = {"type": ["integer", "boolean", "null"]}
"""The schema that replaces one of any value: a value that ends after a few tokens."""
_ONE = ("additionalProperties", "unevaluatedProperties", "items", "unevaluatedItems", "then", "else")
_LISTED = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")


def _of(kind: Any, *arguments: Any) -> Any:
    """Make a generic type of arguments that are known when it runs."""
    return kind[arguments if len(arguments) > 1 else arguments[0]]


_COLORS = Literal["red", "green", "blue"]
_TEXTS: list[Any] = [
    Annotated[str, Field(max_length=LONGEST)],
    Annotated[str, Field(min_length=2, max_length=12)],
    Annotated[str, Field(pattern="^[A-Z]{2}-[0-9]{1,4}$")],
]
_VALUES: list[Any] = [
    *(bool, int, float, *_TEXTS, _COLORS, Literal[1, 2, "other"]),
    Annotated[int, Field(ge=0, le=120)],
    Annotated[int, Field(multiple_of=5)],
    Annotated[float, Field(gt=0, le=1)],
    *(datetime.date, datetime.datetime, datetime.timedelta, uuid.UUID, ipaddress.IPv4Address),
]
_RARE: list[Any] = [
    Annotated[set[_COLORS], Field(max_length=MOST)],
    _of(Annotated, _of(dict, _TEXTS[0], int), Field(max_length=MOST)),
    Annotated[decimal.Decimal, Field(max_digits=6, decimal_places=2)],
]
"""Types of one field in a hundred. Our grammars reject the first, because its items must differ."""


def of_models(number: int, start: int) -> list[Any]:
    """Draw pydantic models as applications define them, and return their schemas."""
    chance = random.Random(start)
    return [_model(chance, 0).model_json_schema() for _ in range(number)]


def _model(chance: random.Random, depth: int) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for name in chance.sample(["name", "kind", "size", "items", "at", "note", "id"], chance.randint(1, 6 - 2 * depth)):
        fields[name] = (_annotation(chance, depth), None if chance.random() < 0.3 else ...)
    extra: Any = {"extra": "forbid"} if chance.random() < 0.5 else {}
    return create_model(f"Model{chance.randrange(10**9)}", __config__=extra, **fields)


def _annotation(chance: random.Random, depth: int) -> Any:
    roll = chance.random()
    if roll < 0.01:
        return chance.choice(_RARE)
    if depth == 2 or roll < 0.6:
        return chance.choice(_VALUES)
    inner = _annotation(chance, depth + 1)
    held: list[Any] = [
        _model(chance, depth + 1),
        inner | None,
        inner | _annotation(chance, depth + 1),
        _of(Annotated, _of(list, inner), Field(max_length=MOST)),
        _of(tuple, inner, bool),
        _of(dict, _COLORS, inner),
        _of(Annotated, _of(dict, _TEXTS[2], inner), Field(max_length=MOST)),
    ]
    return chance.choice(held)


def of_keywords(number: int, start: int) -> list[Any]:
    """Draw `number` different schemas of any keywords; the same for the same `start`."""
    found: dict[str, Any] = {}

    def keep(schema: Any) -> None:
        found.setdefault(json.dumps(schema), schema)

    draw = settings(
        max_examples=2 * number, database=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck]
    )
    settings(draw, deadline=None)(seed(start)(given(SCHEMAS)(keep)))()
    return [bounded(schema) for schema in list(found.values())[:number]]


def of_suite(folder: Path) -> Iterator[Any]:
    """Read the schemas of the official suite that need nothing from elsewhere and that some instance satisfies."""
    for draft, uri in DRAFTS.items():
        for file in sorted((folder / draft).glob("*.json")):
            for group in json.loads(file.read_text(encoding="utf-8")):
                text = json.dumps(group["schema"])
                is_satisfied = any(test["valid"] for test in group["tests"])
                if is_satisfied and isinstance(group["schema"], dict) and "://" not in text.replace(uri, ""):
                    yield {"$schema": uri, **bounded(group["schema"])}


def bounded(schema: Any) -> Any:
    """Give a schema the bounds that it lacks, at every depth."""
    if schema is True or schema == {}:
        return SCALAR
    if not isinstance(schema, dict) or "$ref" in schema:
        return schema
    made = dict(schema)
    for name in _ONE:
        if isinstance(made.get(name), dict | bool):
            made[name] = bounded(made[name])
    for name in _LISTED:
        if isinstance(made.get(name), list):
            made[name] = [bounded(each) for each in made[name]]
    for name in _NAMED:
        if isinstance(made.get(name), dict):
            made[name] = {key: bounded(each) if _is_schema(each) else each for key, each in made[name].items()}
    if made.keys() & {"const", "enum"}:
        return made
    for keyword, most in (("Length", LONGEST), ("Items", MOST), ("Properties", MOST)):
        least = made.get(f"min{keyword}", 0)
        made.setdefault(f"max{keyword}", max(most, int(least) if isinstance(least, int | float) else 0))
    return made


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)
