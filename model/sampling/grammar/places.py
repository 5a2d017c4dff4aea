"""Subschemas of a JSON schema with their paths, the targets of `$ref`, and checks of keywords and sizes."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from lightwell.model.sampling.grammar.errors import GrammarError, step

MAX_BYTES = 1_000_000
"""Largest size of a schema as JSON, in bytes."""
MAX_DEPTH = 64
"""Largest number of nested objects and arrays in a schema's JSON."""
MAX_VALUES = 50_000
"""Largest number of values in a schema's JSON."""
TOO_LARGE = 10**100
"""Every number of a schema is closer to 0."""

DRAFTS = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
}

HONOURED = {
    "any": ["type", "const", "enum", "anyOf", "allOf", "oneOf", "$ref"],
    "number": ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"],
    "string": ["minLength", "maxLength", "pattern", "format"],
    "array": ["items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"],
    "object": [
        *["properties", "required", "additionalProperties", "patternProperties", "propertyNames"],
        *["minProperties", "maxProperties", "unevaluatedProperties"],
    ],
}
"""The keywords that restrict an answer, by the type that each is about; some are supported in part."""

REFUSED = {
    "not": "negation is not supported; describe the accepted values with type, enum or anyOf",
    "if": "conditions are not supported; write each case as a branch of anyOf",
    "contains": "it is not supported; describe every item with items",
    "dependentRequired": "it is not supported; write each case as a branch of anyOf with its own required",
    "dependentSchemas": "it is not supported; write each case as a branch of anyOf",
    "dependencies": "it is not supported; write each case as a branch of anyOf with its own required",
    "$dynamicRef": "it is not supported; use $ref with a JSON pointer such as #/$defs/name",
    "$recursiveRef": "it is not supported; use $ref with a JSON pointer such as #/$defs/name",
    "disallow": "it belongs to draft 3, which is not supported; describe the accepted values with type",
    "extends": "it belongs to draft 3, which is not supported; use allOf",
    "divisibleBy": "it belongs to draft 3, which is not supported; use multipleOf",
}
"""Refused keywords that restrict an answer, each with the reason and an alternative."""

TYPES = {
    "null": {"null"},
    "boolean": {"boolean"},
    "integer": {"integer"},
    "number": {"integer", "fraction"},
    "string": {"string"},
    "array": {"array"},
    "object": {"object"},
}
"""JSON schema's types, with numbers divided into whole numbers and fractions."""
ALL_TYPES = frozenset().union(*TYPES.values())

COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}
BOUNDS = set(HONOURED["number"])


@dataclass(frozen=True, slots=True)
class Place:
    """One subschema and its path from the root. Two with the same path are equal."""

    path: str
    schema: Any = field(compare=False)
    kind: str = ""
    """The kind of a schema that was derived from the subschema at the path; "" for the subschema itself."""
    _named: dict[str, dict[str, "Place"]] = field(default_factory=dict, compare=False, repr=False)
    _listed: dict[str, list["Place"]] = field(default_factory=dict, compare=False, repr=False)

    def __hash__(self) -> int:
        return hash(self.path)

    def child(self, *steps: str | int) -> "Place":
        """Return the subschema at `steps`."""
        path, schema = self.path, self.schema
        for name in steps:
            path, schema = path + step(name), schema[name]
        if not isinstance(schema, dict | bool):
            raise GrammarError(path, f"a schema must be an object, true or false (got {shown(schema)})")
        return Place(path, schema)

    def children(self, keyword: str) -> list["Place"]:
        """List the subschemas in the array under `keyword`."""
        listed = self.schema[keyword]
        if not isinstance(listed, list) or not listed:
            raise GrammarError(self.path + step(keyword), f"it must be a list of schemas (got {shown(listed)})")
        if keyword not in self._listed:
            self._listed[keyword] = [self.child(keyword, number) for number in range(len(listed))]
        return self._listed[keyword]

    def named(self, keyword: str) -> dict[str, "Place"]:
        """Return the subschemas under `keyword` by name; {} without it."""
        if keyword not in self._named:
            inner = self.schema.get(keyword, {})
            if not isinstance(inner, dict):
                raise GrammarError(self.path + step(keyword), f"it must be an object of schemas (got {shown(inner)})")
            self._named[keyword] = {name: self.child(keyword, name) for name in inner}
        return self._named[keyword]

    def at(self, keyword: str) -> str:
        """Return the path of a keyword."""
        return self.path + step(keyword)


def shown(value: object) -> str:
    """Return a value as a text for a message, shortened."""
    text = json.dumps(value[:61] if isinstance(value, str) else value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def measure(schema: object) -> None:
    """Raise GrammarError for a schema that is not JSON, or is larger than the limits."""
    values = size = 0
    stack: list[tuple[tuple[str | int, ...], object]] = [((), schema)]
    while stack:
        steps, value = stack.pop()
        values += 1
        if values > MAX_VALUES:
            raise GrammarError("", f"a schema may have at most {MAX_VALUES} values")
        size += len(value) if isinstance(value, str) else 0
        if size > MAX_BYTES:  # json.dumps would take long
            break
        wrong = None if len(steps) <= MAX_DEPTH else f"objects and arrays may be nested at most {MAX_DEPTH} levels deep"
        if isinstance(value, dict):
            for name, inner in value.items():
                if not isinstance(name, str) or not is_text(name):
                    wrong = f"{shown(name)} is not a valid name in JSON"
                size += len(str(name))
                stack.append(((*steps, name), inner))
        elif isinstance(value, list):
            stack.extend(((*steps, number), inner) for number, inner in enumerate(value))
        else:
            wrong = wrong or _wrong_scalar(value)
        if wrong:
            raise GrammarError("".join(map(step, steps)), wrong)
    if size > MAX_BYTES or len(json.dumps(schema)) > MAX_BYTES:
        raise GrammarError("", f"a schema may have at most {MAX_BYTES} bytes")


def _wrong_scalar(value: object) -> str | None:
    if isinstance(value, str):
        return None if is_text(value) else "the text contains half of a surrogate pair"
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{value} is not a valid number in JSON"
    if isinstance(value, int):
        return None if abs(value) < TOO_LARGE else "a number may have at most 100 digits"
    return None if value is None else f"{type(value).__name__} is not a type of JSON"


def is_text(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8: it has no lone surrogate."""
    return text.isascii() or not re.search("[\ud800-\udfff]", text)


def draft_of(schema: Mapping[str, Any] | bool) -> int:
    """Return the draft that `$schema` names; 2020-12 without it."""
    uri = "https://json-schema.org/draft/2020-12/schema" if isinstance(schema, bool) else schema.get("$schema", None)
    if uri is None:
        return 2020
    draft = DRAFTS.get(uri.rstrip("#")) if isinstance(uri, str) else None
    if draft is None:
        raise GrammarError(".$schema", f"{shown(uri)} is not supported; drafts 4, 6, 7, 2019-09 and 2020-12 are")
    return draft


def resolve(root: Place, place: Place) -> Place:
    """Return the target of the `$ref` of `place`, in the same schema."""
    reference, path = place.schema["$ref"], place.at("$ref")
    if not isinstance(reference, str):
        raise GrammarError(path, f"it must be a text such as #/$defs/name (got {shown(reference)})")
    if reference in {"#", "#/"}:
        return root
    if not reference.startswith("#/"):
        raise GrammarError(
            path,
            f"{shown(reference)} is not supported: other documents are never fetched; use a JSON"
            " pointer such as #/$defs/name",
        )
    found: Any = root.schema
    steps: list[str | int] = []
    for part in unquote(reference[2:]).split("/"):
        name: str | int = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and str(name).isascii() and str(name).isdigit():
            name = int(name)
        missing = not isinstance(found, dict | list) or (
            name not in found if isinstance(found, dict) else not (isinstance(name, int) and name < len(found))
        )
        if missing:
            raise GrammarError(path, f"{shown(reference)} does not exist in this schema")
        found = found[name]
        steps.append(name)
        if isinstance(found, dict) and isinstance(found.get("$id"), str):
            raise GrammarError(path, f"{shown(reference)} uses a separate $id, which is not supported")
    return root.child(*steps)


def check_keywords(place: Place, draft: int, is_root: bool) -> None:
    """Raise GrammarError for keywords that are not supported or have a wrong value for this draft."""
    schema = place.schema
    if not isinstance(schema, dict):
        return
    for keyword in schema:
        reason = REFUSED.get(keyword) or _wrong_value(keyword, schema[keyword], draft)
        if keyword == "not" and schema["not"] is False:
            continue
        if keyword == "if" and not schema.keys() & {"then", "else"}:
            continue  # without them it restricts nothing
        if reason:
            raise GrammarError(place.at(keyword), reason)
    inner_id = isinstance(schema.get("id" if draft == 4 else "$id"), str)
    if inner_id and not is_root:
        raise GrammarError(
            place.at("id" if draft == 4 else "$id"), "only the whole schema may have it; use references such as #/..."
        )
    if not is_root and "$schema" in schema and draft_of(schema) != draft:
        raise GrammarError(place.at("$schema"), "it must be the draft of the whole schema")


def _wrong_value(keyword: str, value: Any, draft: int) -> str | None:
    if keyword in COUNTS or keyword in BOUNDS:
        return _wrong_number(keyword, value, draft)
    if keyword == "type":
        if not (isinstance(value, str) or (isinstance(value, list) and value)):
            return f"it must be the name of a type or an array of them (got {shown(value)})"
        for name in value if isinstance(value, list) else [value]:
            if not isinstance(name, str) or name not in TYPES:
                return f"{shown(name)} is not a type; the types are {', '.join(TYPES)}"
    elif keyword == "required" and not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        return f"it must be an array of names (got {shown(value)})"
    elif keyword == "enum" and not (isinstance(value, list) and value):
        return f"it must be an array of the permitted values (got {shown(value)})"
    elif keyword in {"pattern", "format"} and not isinstance(value, str):
        return f"it must be a text (got {shown(value)})"
    elif keyword == "prefixItems" and draft < 2020:
        return "it belongs to draft 2020-12; in the draft that $schema names items takes an array"
    elif keyword == "items" and isinstance(value, list) and draft == 2020:
        return "it is one schema; the first items, each with its own, are prefixItems"
    return None


def _wrong_number(keyword: str, value: Any, draft: int) -> str | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if keyword in COUNTS:
        whole = is_number and value >= 0 and value == int(value)
        return None if whole else f"it must be a whole number from 0 (got {shown(value)})"
    if is_number and abs(value) >= TOO_LARGE:
        return f"a bound may have at most 100 digits (got {shown(value)})"
    if keyword == "multipleOf":
        return None if is_number and value > 0 else f"it must be a number above 0 (got {shown(value)})"
    if keyword in {"minimum", "maximum"}:
        return None if is_number else f"it must be a number (got {shown(value)})"
    if draft == 4:
        return None if isinstance(value, bool) else f"in draft 4 it must be true or false (got {shown(value)})"
    return None if is_number else f"it must be a number (got {shown(value)}); only draft 4 accepts true and false"
