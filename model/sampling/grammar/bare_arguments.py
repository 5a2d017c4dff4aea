"""Grammars of a call's arguments that are not JSON, from their JSON schema: arguments with bare names and literal
texts, or single values in JSON or in Python's syntax.

The arguments, converted to JSON, satisfy the schema as in `json_schema`. A text is written without escapes, so formats,
which llguidance writes between the quotes of JSON, are refused. So are patterns of names.
"""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from lightwell.model.sampling.grammar.errors import GrammarError, step
from lightwell.model.sampling.grammar.json_schema import Writer
from lightwell.model.sampling.grammar.parts import Conjunction
from lightwell.model.sampling.grammar.places import HONOURED, Place, shown
from lightwell.model.sampling.grammar.property_names import KEY, admits_a_name, found_pattern
from lightwell.model.sampling.grammar.rules import Sequence_, Symbol
from lightwell.model.sampling.grammar.schema_alternatives import Alternatives
from lightwell.model.sampling.grammar.strings import FORMATS, MAX_SHAPES, REFUSED_FORMATS, STRING, lengths, slashed
from lightwell.model.tokenization.chat_formats.call_syntax import BareSyntax, PairSyntax
from lightwell.model.tokenization.chat_formats.lark import as_json, quoted

_CHARACTER = r"[^\x00-\x07\x0B\x0E-\x1F\x7F]"
"""A character of a text: no control character, except those that JSON escapes with a letter."""
_NAME = re.compile(r"[^ \t\r\n:,{}\[\]]+( +[^ \t\r\n:,{}\[\]]+)*")
_OTHER_NAME = r"""/[^\s:,{}\[\]<>"'\x00-\x1F\x7F]+/"""
"""A name that is not in the schema. It has no quotes, which a model might write out of habit."""
_OF_VALUES = {keyword for kind in ("number", "string", "array", "object") for keyword in HONOURED[kind]}
_HELD = {"type", "properties", "required", "additionalProperties", "unevaluatedProperties"}
_OF_ALL_ARGUMENTS = {*HONOURED["any"], *HONOURED["object"]} - _HELD
"""Keywords about all arguments together. They are not enforced for arguments that are written one by one."""
_PYTHON_SPACE, _PYTHON_CHARACTER = r"[ \t\r\n]*", r"[^'\\\x00-\x08\x0B\x0C\x0E-\x1F\x7F]|\\[^\x00-\x1F]"
_PYTHON_TEXT = (
    rf"/'({_PYTHON_CHARACTER}|('{_PYTHON_SPACE})+([^'\\ ,:)\]}}\x00-\x1F\x7F]|\\[^\x00-\x1F]))*('{_PYTHON_SPACE})*'/"
)
"""A text between single quotes, as `PythonReader` reads it."""
_MOST_LEFT_OUT = 50
"""Number of keywords that are left out of a schema, one after another, before all of it is."""
_MAX_STEPS = 100_000
"""Largest number of steps of these attempts (see `Alternatives.count`), some seconds, before all of it is left out."""


def bare_arguments_grammar(
    schema: object, syntax: BareSyntax, quote_id: int | None, *, is_lenient: bool = False
) -> str:
    """Return the grammar of the arguments that satisfy a schema. Raises GrammarError, with the place, for a keyword
    that cannot be enforced, unless it `is_lenient`: then the keyword is left out.

    `quote_id` is the id of the quote, if that is a special token.
    """
    return _held(lambda alternatives: _Writer(alternatives, syntax, quote_id).grammar(), schema, is_lenient)


def value_grammars(
    schema: Any, syntax: PairSyntax, texts: Collection[str] = (), *, is_lenient: bool = False
) -> dict[str, str | None]:
    """Return the grammars of a schema's properties, by name. Values are JSON or Python literals. A grammar is None if
    no value satisfies the property's schema, or if the calls cannot contain the name.

    `texts` are the names of properties that may be texts without quotes: they have no grammar, and of their keywords
    only choices are enforced. Raises GrammarError, with the place, for a keyword that cannot be enforced, unless it
    `is_lenient`: then the keyword is left out.
    """

    def write(alternatives: Alternatives) -> dict[str, str | None]:
        places = alternatives.root.named("properties")
        if not is_lenient:
            for name in places:
                _check_name(alternatives.root.at("properties") + step(name), name, syntax.holds(name))
            _refuse([alternatives.root], _OF_ALL_ARGUMENTS)
            for name in texts:
                _refuse([each for parts in alternatives.of((places[name],)) for each in parts], _OF_VALUES)
        own = {name: _ValueWriter(alternatives, place, syntax) for name, place in places.items() if name not in texts}
        written = {name: writer.grammar_or_none() for name, writer in own.items()}
        return written | dict.fromkeys(name for name in places if not syntax.holds(name))

    return _held(write, schema, is_lenient)


def _refuse(places: list[Place], keywords: Collection[str]) -> None:
    for place in places:
        for keyword in place.schema:
            if keyword in keywords:
                raise GrammarError(place.at(keyword), "the call format of this model cannot enforce it")


_Written = TypeVar("_Written")


def _held(write: Callable[[Alternatives], _Written], schema: Any, is_lenient: bool) -> _Written:
    """Write a schema; if it `is_lenient`, leave out the keywords that cannot be enforced."""
    num_steps = 0
    for _ in range(_MOST_LEFT_OUT):
        alternatives = None
        try:
            alternatives = Alternatives(schema)
            return write(alternatives)
        except GrammarError as error:
            if not is_lenient:
                raise
            num_steps += 0 if alternatives is None else alternatives.num_steps
            if not error.path or num_steps > _MAX_STEPS:
                break
            schema = _without(schema, error.path)
    return write(Alternatives({"type": "object"}))


def _without(value: Any, path: str, here: str = "", is_schema: bool = True) -> Any:
    """Return a schema without the keyword at a path. A subschema at the path is replaced by true."""
    if not isinstance(value, dict | list) or not path.startswith(here):
        return value
    kept = {}
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        are_named = is_schema and key in ("properties", "patternProperties", "$defs", "definitions")
        if here + step(key) != path:
            kept[key] = _without(inner, path, here + step(key), not are_named)
        elif isinstance(value, list) or (not is_schema and inner is not True):
            kept[key] = True
    return kept if isinstance(value, dict) else list(kept.values())


def _check_name(path: str, name: str, is_held: object) -> None:
    if not is_held:
        raise GrammarError(path, f"the call format of this model cannot represent the name {shown(name)}")


class _Writer(Writer):
    """Writer of arguments with unquoted names and with texts in quotes that may be special tokens."""

    def __init__(self, alternatives: Alternatives, syntax: BareSyntax, quote_id: int | None) -> None:
        super().__init__(alternatives)
        self._syntax = syntax
        self._quote_id = quote_id
        self.comma = (self.literal(syntax.comma),)
        self.colon = (self.literal(syntax.colon),)

    def any_text(self) -> Sequence_:
        return self._text(f"/{_CHARACTER}*/")

    def texts(self, parts: Conjunction) -> list[Sequence_]:
        bounds = lengths(parts)
        if bounds is None:
            return []
        least, most = bounds
        shapes = [f"/{_CHARACTER}{{{least},{'' if most is None else most}}}/"]
        for part in parts:
            if part.schema.get("format") in FORMATS + REFUSED_FORMATS:
                raise GrammarError(
                    part.at("format"), "the call format of this model cannot enforce it; describe the text with pattern"
                )
            if "pattern" in part.schema:
                if len(shapes) > MAX_SHAPES:
                    raise GrammarError(part.at("pattern"), f"at most {MAX_SHAPES} patterns may apply at once")
                pattern = found_pattern(part.at("pattern"), part.schema["pattern"], _CHARACTER)
                shapes.append(f"/{slashed(pattern)}/")
                if not admits_a_name(part.at("pattern"), " & ".join(shapes)):
                    return []
        return [self._text(" & ".join(shapes))]

    def scalar(self, value: Any) -> Sequence_:
        if value is None:  # some templates write Python's None
            return (self.rules.terminal('"null" | "None"'),)
        return self.scalars([value])[0] if isinstance(value, str) else super().scalar(value)

    def scalars(self, values: Sequence[Any]) -> list[Sequence_]:
        texts = [value for value in values if isinstance(value, str)]
        wrong = next((text for text in texts if self._syntax.quote in text), None)
        if wrong is not None:
            raise GrammarError("", f"the call format of this model cannot represent the text {shown(wrong)}")
        written = super().scalars([value for value in values if not isinstance(value, str)])
        return [*written, self._text(" | ".join(map(quoted, texts)))] if texts else written

    def name(self, name: str) -> Symbol:
        _check_name("", name, _NAME.fullmatch(name))
        return self.literal(name)

    def other_name(self, taken: Sequence[str], patterns: Sequence[str] = (), admitted: str = KEY) -> str:
        return " & ".join([_OTHER_NAME, *([f"~( {' | '.join(map(quoted, taken))} )"] if taken else [])])

    def ordered(self, names: Sequence[str]) -> Sequence[str]:
        return self._syntax.ordered(names)

    def _properties(self, parts: Conjunction) -> list[Sequence_]:
        for part in parts:
            for keyword in ("patternProperties", "propertyNames"):
                if keyword in part.schema:
                    raise GrammarError(
                        part.at(keyword), "the call format of this model cannot enforce it; name the properties"
                    )
            for name in part.named("properties"):
                _check_name(part.at("properties") + step(name), name, _NAME.fullmatch(name))
            for name in part.schema.get("required", []):
                _check_name(part.at("required"), name, _NAME.fullmatch(name))
        return super()._properties(parts)

    def _text(self, expression: str) -> Sequence_:
        """Write a text between quotes; the texts are an expression of Lark."""
        any_, quote = f"/{_CHARACTER}*/", quoted(self._syntax.quote)
        if self._quote_id is not None:  # the same text spelled with other tokens would be read as the quote
            token = Symbol(f"<[{self._quote_id}]>")
            return (token, self.rules.terminal(f"( {expression} ) & ~( {any_} {quote} {any_} )"), token)
        inner = f"( ( {expression} ) {quote} ) & ~( {any_} {quote} /{_CHARACTER}+/ )"
        return (self.rules.terminal(f"{quote} ( {inner} )"),)


class _ValueWriter(Writer):
    """Writer of the values of an argument, as JSON or as Python literals."""

    def __init__(self, alternatives: Alternatives, place: Place, syntax: PairSyntax) -> None:
        super().__init__(alternatives, r"[ \n]{0,40}")
        self.place = place
        end = quoted(syntax.after_value)
        self._without_end = f" & ~( /(.|\\n)*/ {end} /(.|\\n)*/ )" if syntax.after_value else ""

    def any_text(self) -> Sequence_:
        return (self.rules.terminal(f"( {STRING} | {_PYTHON_TEXT} ){self._without_end}"),)

    def texts(self, parts: Conjunction) -> list[Sequence_]:
        is_free = not any(part.schema.keys() & {*HONOURED["string"]} for part in parts)
        return [self.any_text()] if is_free else super().texts(parts)

    def scalar(self, value: Any) -> Sequence_:
        return self.scalars([value])[0]

    def scalars(self, values: Sequence[Any]) -> list[Sequence_]:
        spellings = dict.fromkeys(text for value in values for text in (as_json(value), repr(value)))
        return [(self.rules.terminal(" | ".join(map(quoted, spellings))),)] if values else []

    def name(self, name: str) -> Symbol:
        return self.scalar(name)[0]

    def other_name(self, taken: Sequence[str], patterns: Sequence[str] = (), admitted: str = KEY) -> str:
        own = super().other_name(taken, patterns, admitted)
        both = own if taken or patterns or admitted != KEY else f"{own} | {_PYTHON_TEXT}"
        return f"( {both} ){self._without_end}"
