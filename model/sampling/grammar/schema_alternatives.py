"""Alternatives of a JSON schema: resolves allOf, anyOf, oneOf and `$ref`, and checks values against the result."""

import itertools
from collections.abc import Iterator
from typing import Any

from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.model.sampling.grammar.numbers import Bounds
from lightwell.model.sampling.grammar.parts import (
    Conjunction,
    found,
    item_of,
    names_of,
    property_of,
    spoken_of,
    types_of,
)
from lightwell.model.sampling.grammar.places import Place, check_keywords, draft_of, measure, resolve

MAX_ALTERNATIVES = 500
"""Largest number of alternatives that the anyOf and oneOf of one place make together."""
MAX_BRANCHES = 50
"""Largest number of branches of a oneOf: each is compared with all others."""
MAX_STEPS = 200_000
"""Largest number of steps for the parts of a schema and their comparisons, over all alternatives: some seconds."""

COMBINING = {"anyOf", "allOf", "oneOf", "$ref", "unevaluatedProperties", "unevaluatedItems"}


class _LeadsBackError(GrammarError):
    """The comparison of a oneOf's branches depends on its own result."""


class Alternatives:
    """The alternatives of a value at each place of a schema."""

    def __init__(self, schema: object) -> None:
        measure(schema)
        self.root = Place("", schema).child()
        self.draft = draft_of(self.root.schema)
        self.num_steps = 0
        self._known: dict[Conjunction, list[Conjunction]] = {}
        self._branches: dict[Place, list[Conjunction]] = {}
        self._open: set[Place] = set()
        self._keys: dict[Place, frozenset[Any]] = {}

    def of(self, conjunction: Conjunction) -> list[Conjunction]:
        """List the alternatives. All parts of an alternative must hold, after allOf, anyOf, oneOf and $ref."""
        if conjunction not in self._known:
            self._known[conjunction] = list(self._expand(conjunction))
        return self._known[conjunction]

    def _expand(self, conjunction: Conjunction) -> Iterator[Conjunction]:
        # Pending parts, each with the paths that led to it without a step into the value; and the parts taken.
        stack: list[tuple[list[tuple[Place, frozenset[str]]], Conjunction]]
        stack = [([(part, frozenset()) for part in conjunction], ())]
        made = 0
        while stack:
            pending, taken = stack.pop()
            self.count(conjunction, 1 + len(pending) // 16 + len(taken) // 16)
            if not pending:
                made += 1
                if made > MAX_ALTERNATIVES:
                    path = conjunction[0].path if conjunction else ""
                    raise GrammarError(path, f"anyOf and oneOf make more than {MAX_ALTERNATIVES} alternatives together")
                yield taken
                continue
            (part, led), *rest = pending
            if part.path in led:
                raise GrammarError(part.path, "it refers to itself without an array or object between them")
            if part.schema is False:
                continue
            if part.schema is True or part in taken:
                stack.append((rest, taken))
                continue
            check_keywords(part, self.draft, part.path == "")
            led |= {part.path}
            only_referred = "$ref" in part.schema and self.draft <= 7  # these drafts ignore the other keywords
            choices = [[resolve(self.root, part)]] if only_referred else self._choices(part)
            for chosen in reversed(choices):
                held = taken if only_referred else (*taken, part)
                stack.append(([(place, led) for place in chosen] + rest, held))

    def _choices(self, part: Place) -> list[list[Place]]:
        schema = part.schema
        if schema.keys().isdisjoint(COMBINING):
            return [[]]
        parts: list[list[list[Place]]] = []
        for keyword in schema:  # the schema's order decides the order of the properties
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
        """List oneOf's branches, each with the required properties that distinguish it from the others."""
        if part in self._open:
            raise _LeadsBackError(
                part.at("oneOf"), "a branch refers back to it without an array or object between them"
            )
        self._open.add(part)
        try:
            return self._branches_of(part)
        finally:
            self._open.remove(part)

    def _branches_of(self, part: Place) -> list[Conjunction]:
        branches: list[Conjunction] = [(place,) for place in part.children("oneOf")]
        kept = {name: value for name, value in part.schema.items() if name not in COMBINING}
        shared = Place(part.path, kept, "next to oneOf")
        if len(branches) > MAX_BRANCHES:
            raise GrammarError(part.at("oneOf"), f"it may have at most {MAX_BRANCHES} branches; anyOf may have more")
        needed: dict[int, dict[str, Any]] = {number: {} for number in range(len(branches))}
        for (i, one), (j, other) in itertools.combinations(enumerate(branches), 2):
            needs = self._distinction((*one, shared), (*other, shared), 3)
            if needs is None:
                raise GrammarError(
                    part.at("oneOf"),
                    f"branches {i} and {j} could both match: give them types, or a property with different const or "
                    "enum values, or use anyOf",
                )
            for number in (i, j):
                names = [*needed[number].get("required", []), *needs.get("required", [])]
                needed[number] |= {**needs, **({"required": names} if names else {})}
        return [
            (*branch, Place(branch[0].path, needed[number], "distinct")) if needed[number] else branch
            for number, branch in enumerate(branches)
        ]

    def _distinction(self, one: Conjunction, other: Conjunction, depth: int) -> dict[str, Any] | None:
        """Find keywords that, added to both, leave no value that satisfies both; None if none are found."""
        needs: dict[str, Any] = {}
        for first, second in itertools.product(self.of(one), self.of(other)):
            self.count(first)
            common = types_of(first) & types_of(second)
            if not common:
                continue
            values = [self._literals(first), self._literals(second)]
            if all(value is not None for value in values):
                if {key(value) for value in values[0] or []} & {key(value) for value in values[1] or []}:
                    return None
                continue
            if common == types_of(()) and spoken_of(first) == spoken_of(second) == {"object"}:
                needs["type"] = "object"  # both describe objects, although neither says so
            elif common != {"object"}:
                return None
            name = self._distinct_name(first, second, depth) if depth else None
            if name is None:
                return None
            needs["required"] = [*needs.get("required", []), name]
        return needs

    def _distinct_name(self, first: Conjunction, second: Conjunction, depth: int) -> str | None:
        """Find a property that has no value in common between two alternatives."""
        shared = set(names_of(second))
        for name in names_of(first):
            if name in shared:
                try:
                    if self._distinction(property_of(first, name), property_of(second, name), depth - 1) == {}:
                        return name
                except _LeadsBackError:
                    continue
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

    def listed(self, conjunction: Conjunction) -> list[Any] | None:
        """List the only values that satisfy all parts, each once; None where they are not listed."""
        values: dict[Any, Any] = {}
        for parts in self.of(conjunction):
            found_ = self.literals(parts)
            if found_ is None:
                types = types_of(parts)
                if not types <= {"null", "boolean"}:
                    return None
                found_ = [None] * ("null" in types) + [False, True] * ("boolean" in types)
            for value in found_:
                values.setdefault(key(value), value)
        return list(values.values())

    def admits(self, conjunction: Conjunction, value: Any) -> bool:
        """Return whether a value of an enum or const satisfies all parts."""
        self.count(conjunction)
        return any(all(self._part_admits(part, value, parts) for part in parts) for parts in self.of(conjunction))

    def _part_admits(self, part: Place, value: Any, parts: Conjunction) -> bool:
        schema = part.schema
        self.count(parts)
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

    def count(self, parts: Conjunction, steps: int = 1) -> None:
        """Count the steps for a conjunction. Raises GrammarError if the whole schema has taken too many."""
        self.num_steps += steps
        if self.num_steps > MAX_STEPS:
            path = parts[0].path if parts else ""
            problem = f"it takes more than {MAX_STEPS} steps to read; send fewer parts that apply together (allOf, "
            problem += "patternProperties, required), or fewer nested alternatives"
            raise GrammarError(path, problem)


def key(value: Any) -> Any:
    """Return a hashable key of a JSON value, equal for equal values: 1 and 1.0 are equal, 1 and true are not."""
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
