"""Grammar of a JSON schema: every text that the grammar admits is JSON that satisfies the schema.

The grammar does not admit every such text, so that answers end: properties have the schema's order, other properties
need additionalProperties, numbers have at most 15 digits, and texts have no unnecessary escapes.
docs/structured-outputs.md lists these restrictions.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from lightwell.model.sampling.grammar.checking import why_refused
from lightwell.model.sampling.grammar.errors import GrammarError, step
from lightwell.model.sampling.grammar.numbers import DIGITS, UNBOUNDED, Bounds, fractions, whole_numbers
from lightwell.model.sampling.grammar.objects import array, members
from lightwell.model.sampling.grammar.parts import (
    Conjunction,
    counts_of,
    first_items,
    item_of,
    names_of,
    path_of,
    property_of,
    rest_of,
    spoken_of,
    types_of,
    unique,
)
from lightwell.model.sampling.grammar.property_names import KEY, admits_a_name, admitted_names, key_pattern, other_key
from lightwell.model.sampling.grammar.rules import Rules, Sequence_, Symbol
from lightwell.model.sampling.grammar.schema_alternatives import Alternatives
from lightwell.model.sampling.grammar.strings import STRING, inner_schema, slashed, string_terminal
from lightwell.model.tokenization.chat_formats.lark import HEADER, as_json, quoted

ANY_DEPTH = 16
"""Nested objects and arrays of a value without a schema."""
MAX_MULTIPLE = 10_000
"""The largest multipleOf. The automaton of remainders has as many states; 100,000 take a second."""

SPACE_CHARACTERS = r"/[ \t\r\n]*/"
"""The texts that a whitespace pattern may match."""


def json_schema_grammar(schema: object, *, whitespace_pattern: str | None = None) -> str:
    """Return the grammar of the JSON texts that satisfy a schema. Raises GrammarError, with the place, for a schema
    that is wrong or not supported.

    Without a `whitespace_pattern`, the separators are ", " and ": " and there is no other space.
    """
    return Writer(Alternatives(schema), whitespace_pattern).grammar()


def json_object_grammar() -> str:
    return json_schema_grammar({"type": "object"})


class Writer:
    """Writer of a schema's grammar: one rule for each conjunction of subschemas that a value must satisfy. Subclasses
    write texts, names and constants in another syntax than JSON's.
    """

    def __init__(self, alternatives: Alternatives, whitespace_pattern: str | None = None) -> None:
        self.alternatives = alternatives
        self.place = alternatives.root
        """The subschema of the whole text."""
        self.rules = Rules()
        self._values: dict[Conjunction, str] = {}
        self._pending: list[Conjunction] = []
        self._any: list[str] = []
        self._multiples = 0
        self.comma: Sequence_ = (self.literal(", "),)
        self.colon: Sequence_ = (self.literal(": "),)
        self.space: Sequence_ = ()
        if whitespace_pattern is not None:
            if len(whitespace_pattern) > 1000:
                raise GrammarError("", "whitespace_pattern: it must have at most 1000 characters")
            expression = f"/({slashed(whitespace_pattern)})/ & {SPACE_CHARACTERS}"
            if wrong := why_refused(f"{HEADER}start: T\nT: {expression}\n"):
                raise GrammarError("", f"whitespace_pattern: {wrong}")
            self.space = (Symbol(self.rules.terminal(expression).text, repeated="{0,1}"),)
            self.comma = (*self.space, self.literal(","), *self.space)
            self.colon = (*self.space, self.literal(":"), *self.space)

    def grammar(self) -> str:
        """Return the grammar. Raises GrammarError if no value satisfies the schema."""
        grammar = self.grammar_or_none()
        if grammar is None:
            raise GrammarError("", "no value of finite size satisfies the schema")
        return grammar

    def grammar_or_none(self) -> str | None:
        """Return the grammar, or None if no value satisfies the schema."""
        first = self.value((self.place,) if self.place.schema is not True else ())
        while self._pending:
            conjunction = self._pending.pop()
            name = self._values[conjunction]
            for parts in self.alternatives.of(conjunction):
                self.rules.add(name, self._written(parts))
        return self.rules.written(first.text)

    def any_text(self) -> Sequence_:
        """Return any text."""
        return (self.rules.terminal(STRING),)

    def texts(self, parts: Conjunction) -> list[Sequence_]:
        """Return the texts that satisfy all parts."""
        return [(symbol,) for symbol in string_terminal(self.rules, parts)]

    def scalar(self, value: Any) -> Sequence_:
        """Return a value that is not an array or object."""
        return (self.literal(as_json(value)),)

    def scalars(self, values: Sequence[Any]) -> list[Sequence_]:
        """Return any of these values, none of them an array or object."""
        return [(self.rules.terminal(" | ".join([quoted(as_json(value)) for value in values])),)] if values else []

    def name(self, name: str) -> Symbol:
        """Return the name of a property."""
        return self.literal(as_json(name))

    def other_name(self, taken: Sequence[str], patterns: Sequence[str] = (), admitted: str = KEY) -> str:
        """Return the admitted names that are not taken and match no pattern, as an expression of Lark."""
        return other_key(taken, patterns, admitted)

    def ordered(self, names: Sequence[str]) -> Sequence[str]:
        """Return the names of an object's properties in the order of the answer."""
        return names

    def literal(self, text: str) -> Symbol:
        """Return a fixed text."""
        return Symbol(quoted(text))

    def value(self, conjunction: Conjunction) -> Symbol:
        """Return the rule of the values that satisfy all parts."""
        if not conjunction:
            return Symbol(self._any_value(ANY_DEPTH), True)
        if conjunction not in self._values:
            self._values[conjunction] = self.rules.new(conjunction[0].path)
            self._pending.append(conjunction)
        return Symbol(self._values[conjunction], True)

    def _any_value(self, depth: int) -> str:
        while len(self._any) <= depth:
            name = self.rules.new("")
            scalars = [self._literal_value(v) for v in (None, True, False)]
            scalars += [(self.rules.terminal(f"/{UNBOUNDED}/"),), self.any_text()]
            self.rules.add(name, scalars)
            if self._any:
                inner = Symbol(self._any[-1], True)
                self.rules.add(name, [self._array([], (inner,), 0, None)])
                entry = (self.rules.terminal(self.other_name([])), *self.colon, inner)
                self.rules.add(name, [self._braces([], [entry])])
            self._any.append(name)
        return self._any[depth]

    def _written(self, parts: Conjunction) -> list[Sequence_]:
        literals = self.alternatives.literals(parts)
        if literals is not None:
            others = [self._literal_value(value) for value in literals if isinstance(value, list | dict)]
            return self.scalars([value for value in literals if not isinstance(value, list | dict)]) + others
        types = types_of(parts)
        if types == types_of(()) and not spoken_of(parts):
            return [(self.value(()),)]
        written: list[Sequence_] = []
        if "null" in types:
            written.append(self._literal_value(None))
        if "boolean" in types:
            written += [self._literal_value(False), self._literal_value(True)]
        if "integer" in types:
            written += self._number(parts, "fraction" not in types)
        if "string" in types:
            written += self.texts(parts)
        if "array" in types:
            written += self._items(parts)
        if "object" in types:
            written += self._properties(parts)
        return written

    def _literal_value(self, value: Any) -> Sequence_:
        if isinstance(value, list) and value:
            return self._array([self._literal_value(item) for item in value], None, len(value), len(value))
        if isinstance(value, dict) and value:
            named = [
                ((self.name(name), *self.colon, *self._literal_value(value[name])), True)
                for name in self.ordered(list(value))
            ]
            return self._braces(named, [])
        if isinstance(value, list | dict):
            brackets = as_json(value)
            return (self.literal(brackets[0]), *self.space, self.literal(brackets[1]))
        return self.scalar(value)

    def _number(self, parts: Conjunction, whole: bool) -> list[Sequence_]:
        bounds = Bounds.of(part.schema for part in parts)
        path = path_of(parts, "minimum", "maximum", "multipleOf")
        grain = bounds.step(whole)
        far = any(bound is not None and abs(bound) >= 10**DIGITS for bound in (bounds.low, bounds.high))
        if grain is None and far:
            grain = bounds.step(True)  # such a large double is a whole number
        if grain is None and bounds.low is None and bounds.high is None:
            return [(self.rules.terminal(f"/{UNBOUNDED}/"),)]
        if grain is not None and grain.denominator == 1:
            counted = bounds.on_grid(grain)
            if counted is None:
                return []
            first, last = (count * int(grain) for count in counted)
            if grain == 1:
                return [(self.rules.terminal(f"/{whole_numbers(first, last)}/"),)]
            if grain > MAX_MULTIPLE or max(abs(first), abs(last)) >= 2**63:
                raise GrammarError(
                    path, f"multipleOf must be at most {MAX_MULTIPLE}, and bounds next to it below 2**63"
                )
            self._multiples += int(grain)
            if self._multiples > MAX_MULTIPLE:
                raise GrammarError(path, f"the sum of all multipleOf of a schema must be at most {MAX_MULTIPLE}")
            return [(inner_schema({"type": "integer", "minimum": first, "maximum": last, "multipleOf": int(grain)}),)]
        if far:
            raise GrammarError(
                path, f"with a multipleOf that is not a whole number, the bounds may have at most {DIGITS} digits"
            )
        places = None if grain is None else len(str(grain.denominator)) - 1
        if grain is not None and (grain.numerator != 1 or grain.denominator != 10 ** (places or 0)):
            raise GrammarError(path, f"multipleOf must be a whole number, or 0.1, 0.01 and so on (got {float(grain)})")
        largest = max((len(str(int(abs(b)))) for b in (bounds.low, bounds.high) if b is not None), default=1)
        if largest + (places or 0) > DIGITS:
            raise GrammarError(path, f"bounds and multipleOf need numbers of more than {DIGITS} digits")
        grid = bounds.on_grid(grain or Fraction(1, 10 ** (DIGITS - largest)))
        if grid is None:
            if bounds.on_grid(Fraction(1, 10**30)) is None:
                return []
            raise GrammarError(path, f"the bounds contain no number of at most {DIGITS} digits")
        return [(self.rules.terminal(fractions(bounds, places)),)]

    def _braces(
        self,
        named: Sequence[tuple[Sequence_, bool]],
        others: Sequence[Sequence_],
        least: int = 0,
        most: int | None = None,
        path: str = "",
    ) -> Sequence_:
        inside = members(self.rules, path, self.comma, named, others, least, most)
        return (self.literal("{"), *self.space, *inside, *self.space, self.literal("}"))

    def _items(self, parts: Conjunction) -> list[Sequence_]:
        own = max((len(first_items(part)) for part in parts), default=0)
        least, most = counts_of(parts, "Items")
        path = path_of(parts, "minItems", "items")
        rest = item_of(parts, -1)
        more = None if any(place.schema is False for place in rest) else (self.value(rest),)
        longest_possible = own if more is None else most
        once = next((part for part in parts if part.schema.get("uniqueItems") is True), None)
        if once is not None and (longest_possible is None or longest_possible > 1):
            values = None if own else self.alternatives.listed(rest)
            if values is None:
                raise GrammarError(
                    once.at("uniqueItems"),
                    "it is supported for items that are listed with enum, const, boolean or null, or for at most one"
                    " item; drop it, or set maxItems to 1",
                )
            return self._once_each(values, least, most, once.at("uniqueItems"))
        self.alternatives.count(parts, own * len(parts) // 4)
        first = [(self.value(item_of(parts, number)),) for number in range(own)]
        written = array(self.rules, path, self.comma, self.space, first, more, least, most)
        return [] if written is None else [written]

    def _once_each(self, values: list[Any], least: int, most: int | None, path: str) -> list[Sequence_]:
        """Return an array of some of the values, each at most once and in this order."""
        if least > len(values):
            return []
        items = [(self._literal_value(value), least == len(values)) for value in values]
        inside = members(self.rules, path, self.comma, items, [], least, most)
        return [(self.literal("["), *self.space, *inside, *self.space, self.literal("]"))]

    def _properties(self, parts: Conjunction) -> list[Sequence_]:
        least, most = counts_of(parts, "Properties")
        path = path_of(parts, "minProperties", "properties")
        required = {name for part in parts for name in part.schema.get("required", [])}
        rules = unique(part.child("propertyNames") for part in parts if "propertyNames" in part.schema)
        listed, admitted = admitted_names(self.alternatives, rules)
        names = [name for name in names_of(parts) if not rules or self.alternatives.admits(rules, name)]
        if required - set(names):
            return []
        names = list(dict.fromkeys([*self.ordered(names), *listed]))
        patterns = sum(len(part.named("patternProperties")) for part in parts)
        self.alternatives.count(parts, len(names) * (len(parts) // 4 + patterns) + 4 * patterns * patterns)
        named = []
        for name in names:
            value = property_of(parts, name)
            if any(place.schema is False for place in value) and name not in required:
                continue
            named.append(((self.name(name), *self.colon, self.value(value)), name in required))
        others = self._others(parts, names, admitted) if admitted else []
        return [self._braces(named, others, least, most, path)]

    def _others(self, parts: Conjunction, names: list[str], admitted: str) -> list[Sequence_]:
        """Return the members that the schema does not name, with names that propertyNames admits.

        A schema that names properties without additionalProperties gets only these: otherwise the model could always
        add properties of its own, and the answer would not end.
        """
        patterns: dict[str, str] = {}
        for part in parts:
            for pattern in part.named("patternProperties"):
                patterns.setdefault(pattern, key_pattern(part.at("patternProperties") + step(pattern), pattern))
        taken = list(dict.fromkeys(names_of(parts) + names))
        written: list[Sequence_] = []
        for pattern, expression in patterns.items():
            others = [other for name, other in patterns.items() if name != pattern]
            value = unique(
                place
                for part in parts
                for place in (
                    [part.named("patternProperties")[pattern]]
                    if pattern in part.named("patternProperties")
                    else rest_of(part)
                )
            )
            if not any(place.schema is False for place in value):
                named = f"{expression} & {other_key(taken, others, admitted)}"
                if admits_a_name(parts[0].path, named):
                    written.append((self.rules.terminal(named), *self.colon, self.value(value)))
        rests = [rest_of(part) for part in parts]
        said = any(rests)
        value = unique(place for rest in rests for place in rest)
        if any(place.schema is False for place in value) or (not said and (taken or patterns)):
            return written
        other = self.other_name(taken, list(patterns.values()), admitted)
        if (patterns or admitted != KEY) and not admits_a_name(parts[0].path, other):
            return written
        key = self.rules.terminal(other)
        return [*written, (key, *self.colon, self.value(value))]

    def _array(self, first: list[Sequence_], more: Sequence_ | None, least: int, most: int | None) -> Sequence_:
        written = array(self.rules, "", self.comma, self.space, first, more, least, most)
        assert written is not None  # lengths of our own
        return written
