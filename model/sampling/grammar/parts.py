"""Types, properties and items of a conjunction of subschemas."""

import re
from collections.abc import Iterable, Sequence, Set

from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.model.sampling.grammar.places import ALL_TYPES, HONOURED, TYPES, Place, shown

Conjunction = tuple[Place, ...]
"""Subschemas that must all hold, without duplicates, in the order of the schema."""


def types_of(parts: Conjunction) -> Set[str]:
    """Return the types that all parts admit, with the numbers of TYPES."""
    types = ALL_TYPES
    for part in parts:
        named = part.schema.get("type")
        if named is not None:
            types &= TYPES[named] if isinstance(named, str) else set().union(*map(TYPES.__getitem__, named))
    return types


def spoken_of(parts: Conjunction) -> set[str]:
    """Return the types that the keywords of the parts are about."""
    keys = {keyword for part in parts for keyword in part.schema}
    kinds = {kind for kind, keywords in HONOURED.items() if kind != "any" and keys & set(keywords)}
    return set().union(*(TYPES[kind] for kind in kinds))


def counts_of(parts: Sequence[Place], counted: str) -> tuple[int, int | None]:
    """Return the largest minimum and the smallest maximum of "Items", "Properties" or "Length"."""
    schemas = [part.schema for part in parts]
    least = max((int(schema.get(f"min{counted}", 0)) for schema in schemas), default=0)
    most = min((int(schema[f"max{counted}"]) for schema in schemas if f"max{counted}" in schema), default=None)
    return least, most


def path_of(parts: Conjunction, *keywords: str) -> str:
    """Return the path of the first part with one of the keywords, or of the first part."""
    return next((part.path for part in parts if part.schema.keys() & set(keywords)), parts[0].path)


def names_of(parts: Conjunction) -> list[str]:
    """List the properties that the parts name, in the order of the answer."""
    named = [name for part in parts for name in part.named("properties")]
    required = [name for part in parts for name in part.schema.get("required", [])]
    return list(dict.fromkeys(named + required))


def property_of(parts: Conjunction, name: str) -> Conjunction:
    """Return the schemas of one property."""
    found_: list[Place] = []
    for part in parts:
        named = part.named("properties")
        about = [named[name]] if name in named else []
        about += [
            place
            for pattern, place in part.named("patternProperties").items()
            if found(part.at("patternProperties"), pattern, name)
        ]
        found_ += about or rest_of(part)
    return unique(found_)


def rest_of(part: Place) -> list[Place]:
    """Return a part's schemas of the properties that it does not name."""
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if keyword in part.schema:
            if keyword == "unevaluatedProperties" and part.schema.keys() & {"anyOf", "allOf", "oneOf", "$ref", "if"}:
                raise GrammarError(
                    part.at(keyword),
                    "it is not supported with $ref, allOf, anyOf or oneOf; name all properties in one object, with"
                    " additionalProperties",
                )
            return [part.child(keyword)]
    return []


def item_of(parts: Conjunction, number: int) -> Conjunction:
    """Return the schemas of the item at `number`; -1 is any item after those with schemas of their own."""
    return unique(place for part in parts for place in _item_of(part, number))


def first_items(part: Place) -> list[Place]:
    """Return the schemas of a part's first items, which have one each."""
    keyword = "items" if isinstance(part.schema.get("items"), list) else "prefixItems"
    return part.children(keyword) if keyword in part.schema and part.schema[keyword] != [] else []


def _item_of(part: Place, number: int) -> list[Place]:
    first = first_items(part)
    if 0 <= number < len(first):
        return [first[number]]
    listed = isinstance(part.schema.get("items"), list)
    if listed and "additionalItems" in part.schema:
        return [part.child("additionalItems")]
    if "items" in part.schema and not listed:
        return [part.child("items")]
    if "unevaluatedItems" in part.schema:
        if part.schema.keys() & {"anyOf", "allOf", "oneOf", "$ref", "if"}:
            raise GrammarError(
                part.at("unevaluatedItems"), "it is not supported with $ref, allOf, anyOf or oneOf; use items"
            )
        return [part.child("unevaluatedItems")]
    return []


def unique(places: Iterable[Place]) -> Conjunction:
    """Return the places without duplicates and without `true`."""
    return tuple(dict.fromkeys(place for place in places if place.schema is not True))


def found(path: str, pattern: str, text: str) -> bool:
    """Return whether a pattern is found in a name or value of the schema. Raises GrammarError for a slow pattern."""
    repeated = len(re.findall(r"[*+{]", re.sub(r"(?<!\))\{\d+\}", "", pattern)))
    chosen = len(re.findall(r"[|?]", pattern))
    # Python's search tries every way to repeat and to choose: these patterns have few.
    if repeated > 1 or chosen > (0 if repeated else 8) or len(pattern) > 200 or len(text) > 1000:
        raise GrammarError(
            path,
            f"{shown(pattern)} is not supported here: with named values, a pattern may repeat one part, or choose",
        )
    try:
        return re.search(pattern, text) is not None
    except re.error as error:
        raise GrammarError(path, f"{shown(pattern)} is not a valid pattern: character {error.pos} is wrong") from None
