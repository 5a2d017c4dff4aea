"""Writes a JSON schema as alternatives without allOf, anyOf, oneOf and `$ref`, and says what their parts restrict."""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from model.sampling.grammar.errors import GrammarError
from model.sampling.grammar.numbers import Bounds
from model.sampling.grammar.places import HONOURED, TYPES, Place, check_keywords, draft_of, measure, resolve, shown

MAX_ALTERNATIVES = 500
"""How many alternatives the anyOf and oneOf that hold at one place may make together."""
MAX_BRANCHES = 50
"""How many branches a oneOf has: each is compared with each."""
MAX_STEPS = 200_000
"""How many parts of a schema are looked at, all alternatives together: some seconds at most."""

Conjunction = tuple[Place, ...]
"""Subschemas that must all hold, without doubles, in the order in which they were named."""

COMBINING = {"anyOf", "allOf", "oneOf", "$ref", "unevaluatedProperties", "unevaluatedItems"}


class _LeadsBackError(GrammarError):
    """The branches of a oneOf cannot be told apart without knowing whether they can."""


class Alternatives:
    """A schema, and the alternatives that a value at each of its places has."""

    def __init__(self, schema: object) -> None:
        measure(schema)
        self.root = Place("", schema).child()
        self.draft = draft_of(self.root.schema)
        self._steps = 0
        self._known: dict[Conjunction, list[Conjunction]] = {}
        self._branches: dict[Place, list[Conjunction]] = {}
        self._open: set[Place] = set()
        self._keys: dict[Place, frozenset[Any]] = {}

    def of(self, conjunction: Conjunction) -> list[Conjunction]:
        """List the alternatives: in each, all parts must hold, and none holds allOf, anyOf, oneOf or $ref any more."""
        if conjunction not in self._known:
            self._known[conjunction] = list(self._expand(conjunction))
        return self._known[conjunction]

    def _expand(self, conjunction: Conjunction) -> Iterator[Conjunction]:
        Item = tuple[Place, frozenset[str]]  # a part, and the parts that led to it without a step into the value
        stack: list[tuple[list[Item], Conjunction]] = [([(part, frozenset()) for part in conjunction], ())]
        made = 0
        while stack:
            pending, taken = stack.pop()
            self._count(conjunction)
            if not pending:
                made += 1
                if made > MAX_ALTERNATIVES:
                    path = conjunction[0].path if conjunction else ""
                    raise GrammarError(path, f"anyOf and oneOf make more than {MAX_ALTERNATIVES} alternatives together")
                yield taken
                continue
            (part, led), *rest = pending
            if part.path in led:
                raise GrammarError(part.path, "it refers to itself with no array or object in between")
            if part.schema is False:
                continue
            if part.schema is True or part in taken:
                stack.append((rest, taken))
                continue
            check_keywords(part, self.draft, part.path == "")
            led |= {part.path}
            only_referred = "$ref" in part.schema and self.draft <= 7  # these drafts ignore what stands beside it
            choices = [[resolve(self.root, part)]] if only_referred else self._choices(part)
            for chosen in reversed(choices):
                held = taken if only_referred else (*taken, part)
                stack.append(([(place, led) for place in chosen] + rest, held))

    def _choices(self, part: Place) -> list[list[Place]]:
        schema = part.schema
        parts: list[list[list[Place]]] = []
        for keyword in schema:  # in the schema's order, which is the order of the properties
            if keyword == "$ref":
                parts.append([[resolve(self.root, part)]])
            elif keyword == "allOf":
                parts.append([part.children("allOf")])
            elif keyword == "anyOf":
                parts.append([[place] for place in part.children("anyOf")])
            elif keyword == "oneOf":
                if part not in self._branches:
                    self._branches[part] = self._one_of(part)
                parts.append([list(choice) for choice in self._branches[part]])
        count = 1
        for choices in parts:
            count *= len(choices)
        if count > MAX_ALTERNATIVES:
            raise GrammarError(part.path, f"anyOf and oneOf make more than {MAX_ALTERNATIVES} alternatives together")
        return [[place for choice in chosen for place in choice] for chosen in itertools.product(*parts)]

    def _one_of(self, part: Place) -> list[Conjunction]:
        """List oneOf's branches, each with the properties required that tell it from the others."""
        if part in self._open:
            raise _LeadsBackError(part.at("oneOf"), "a branch refers back to it with no array or object in between")
        self._open.add(part)
        try:
            return self._branches_of(part)
        finally:
            self._open.remove(part)

    def _branches_of(self, part: Place) -> list[Conjunction]:
        branches: list[Conjunction] = [(place,) for place in part.children("oneOf")]
        kept = {name: value for name, value in part.schema.items() if name not in COMBINING}
        beside = Place(part.path, kept, "beside oneOf")
        if len(branches) > MAX_BRANCHES:
            raise GrammarError(part.at("oneOf"), f"it has at most {MAX_BRANCHES} branches; anyOf may have more")
        needed: dict[int, dict[str, Any]] = {number: {} for number in range(len(branches))}
        for (i, one), (j, other) in itertools.combinations(enumerate(branches), 2):
            needs = self._told_apart((*one, beside), (*other, beside), 3)
            if needs is None:
                raise GrammarError(
                    part.at("oneOf"),
                    f"branches {i} and {j} could both hold: give them types, or a property each, whose const or enum"
                    " differ, or use anyOf",
                )
            for number in (i, j):
                names = [*needed[number].get("required", []), *needs.get("required", [])]
                needed[number] |= {**needs, **({"required": names} if names else {})}
        return [
            (*branch, Place(branch[0].path, needed[number], "told apart")) if needed[number] else branch
            for number, branch in enumerate(branches)
        ]

    def _told_apart(self, one: Conjunction, other: Conjunction, depth: int) -> dict[str, Any] | None:
        """Find what both must be besides so that no value is both, as keywords; None where that is not known."""
        needs: dict[str, Any] = {}
        for first, second in itertools.product(self.of(one), self.of(other)):
            self._count(first)
            common = types_of(first) & types_of(second)
            if not common:
                continue
            values = [self._literals(first), self._literals(second)]
            if all(value is not None for value in values):
                if {key(value) for value in values[0] or []} & {key(value) for value in values[1] or []}:
                    return None
                continue
            if common == types_of(()) and spoken_of(first) == spoken_of(second) == {"object"}:
                needs["type"] = "object"  # which is what they mean
            elif common != {"object"}:
                return None
            name = self._telling_name(first, second, depth) if depth else None
            if name is None:
                return None
            needs["required"] = [*needs.get("required", []), name]
        return needs

    def _telling_name(self, first: Conjunction, second: Conjunction, depth: int) -> str | None:
        """Find a property whose values are never those that the other alternative lets it have."""
        for name in names_of(first):
            if name in names_of(second):
                try:
                    if self._told_apart(property_of(first, name), property_of(second, name), depth - 1) == {}:
                        return name
                except _LeadsBackError:
                    continue  # what is asked about already cannot help to answer
        return None

    def _literals(self, parts: Conjunction) -> list[Any] | None:
        listed = [
            [part.schema["const"]] if "const" in part.schema else part.schema["enum"]
            for part in parts
            if part.schema.keys() & {"const", "enum"}
        ]
        return listed[0] if listed else None

    def _listed(self, part: Place) -> frozenset[Any]:
        if part not in self._keys:
            listed = frozenset(map(key, part.schema.get("enum", [part.schema.get("const")])))
            self._keys[part] = listed & {key(part.schema["const"])} if "const" in part.schema else listed
        return self._keys[part]

    def literals(self, parts: Conjunction) -> list[Any] | None:
        """List the only values that an alternative admits; None where no const or enum names them."""
        listed = self._literals(parts)
        return (
            None if listed is None else [v for v in listed if all(self._part_admits(part, v, parts) for part in parts)]
        )

    def admits(self, conjunction: Conjunction, value: Any) -> bool:
        """Say whether a value of an enum or const satisfies what stands beside it."""
        self._count(conjunction)
        return any(all(self._part_admits(part, value, parts) for part in parts) for parts in self.of(conjunction))

    def _part_admits(self, part: Place, value: Any, parts: Conjunction) -> bool:
        schema = part.schema
        self._count(parts)
        if schema.keys() & {"const", "enum"} and key(value) not in self._listed(part):
            return False
        if "type" in schema and not _kind(value) & types_of((part,)):
            return False
        if isinstance(value, str):
            least, most = schema.get("minLength", 0), schema.get("maxLength", len(value))
            return least <= len(value) <= most and (
                "pattern" not in schema or found(part.at("pattern"), schema["pattern"], value)
            )
        if isinstance(value, int | float) and not isinstance(value, bool):
            return Bounds.of([schema]).admit(value)
        if isinstance(value, list):
            least, most = schema.get("minItems", 0), schema.get("maxItems", len(value))
            once = schema.get("uniqueItems") is not True or len({key(item) for item in value}) == len(value)
            inner = all(self.admits(item_of(parts, number), item) for number, item in enumerate(value))
            return least <= len(value) <= most and once and inner
        if isinstance(value, dict):
            least, most = schema.get("minProperties", 0), schema.get("maxProperties", len(value))
            if not (least <= len(value) <= most) or any(name not in value for name in schema.get("required", [])):
                return False
            if "propertyNames" in schema and not all(
                self.admits((part.child("propertyNames"),), name) for name in value
            ):
                return False
            return all(self.admits(property_of(parts, name), inner) for name, inner in value.items())
        return True

    def _count(self, parts: Conjunction) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise GrammarError(parts[0].path if parts else "", "the schema has too many alternatives in one another")


def types_of(parts: Conjunction) -> set[str]:
    """Intersect the types that the parts name, with numbers parted as in TYPES; all without any."""
    types = set().union(*TYPES.values())
    for part in parts:
        named = part.schema.get("type", list(TYPES))
        types &= set().union(*(TYPES[name] for name in ([named] if isinstance(named, str) else named)))
    return types


def spoken_of(parts: Conjunction) -> set[str]:
    """Name the types whose keywords the parts hold."""
    keys = {keyword for part in parts for keyword in part.schema}
    kinds = {kind for kind, keywords in HONOURED.items() if kind != "any" and keys & set(keywords)}
    return set().union(*(TYPES[kind] for kind in kinds))


def names_of(parts: Conjunction) -> list[str]:
    """List the properties that the parts name, in the order of the answer."""
    named = [name for part in parts for name in part.named("properties")]
    required = [name for part in parts for name in part.schema.get("required", [])]
    return list(dict.fromkeys(named + required))


def property_of(parts: Conjunction, name: str) -> Conjunction:
    """Gather what the parts say about one property."""
    found_: list[Place] = []
    for part in parts:
        about = [part.child("properties", name)] if name in part.named("properties") else []
        about += [
            place
            for pattern, place in part.named("patternProperties").items()
            if found(part.at("patternProperties"), pattern, name)
        ]
        found_ += about or rest_of(part)
    return unique(found_)


def rest_of(part: Place) -> list[Place]:
    """List what a part says about the properties that it does not name."""
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        if keyword in part.schema:
            if keyword == "unevaluatedProperties" and part.schema.keys() & {"anyOf", "allOf", "oneOf", "$ref", "if"}:
                raise GrammarError(
                    part.at(keyword),
                    "it is not supported beside $ref, allOf, anyOf or oneOf; name all properties in one object, with"
                    " additionalProperties",
                )
            return [part.child(keyword)]
    return []


def item_of(parts: Conjunction, number: int) -> Conjunction:
    """Gather what the parts say about the item at `number`; -1 for one behind all that have schemas of their own."""
    return unique(place for part in parts for place in _item_of(part, number))


def first_items(part: Place) -> list[Place]:
    """List the schemas of a part's first items, each of which has its own."""
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
                part.at("unevaluatedItems"), "it is not supported beside $ref, allOf, anyOf or oneOf; use items"
            )
        return [part.child("unevaluatedItems")]
    return []


def unique(places: Iterable[Place]) -> Conjunction:
    """Drop doubles, and what is true."""
    return tuple(dict.fromkeys(place for place in places if place.schema is not True))


def found(path: str, pattern: str, text: str) -> bool:
    """Search for a pattern in a name or value of the schema itself."""
    repeated = len(re.findall(r"[*+{]", re.sub(r"(?<!\))\{\d+\}", "", pattern)))
    chosen = len(re.findall(r"[|?]", pattern))
    # Python's search tries every way to repeat and to choose: here there are few
    if repeated > 1 or chosen > (0 if repeated else 8) or len(pattern) > 200 or len(text) > 1000:
        raise GrammarError(
            path,
            f"{shown(pattern)} is not supported here: beside named values, a pattern may repeat one part, or choose",
        )
    try:
        return re.search(pattern, text) is not None
    except re.error as error:
        raise GrammarError(path, f"{shown(pattern)} is no pattern: {error}") from None


def key(value: Any) -> Any:
    """Make of a value what is equal where JSON's values are: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, list):
        return ("array", *map(key, value))
    if isinstance(value, dict):
        return ("object", frozenset((name, key(inner)) for name, inner in value.items()))
    return (isinstance(value, bool), value)


def _kind(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, int | float):
        return {"integer"} if value == int(value) else {"fraction"}
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return {names[type(value)]}
