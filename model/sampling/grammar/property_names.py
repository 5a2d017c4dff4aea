"""Terminals of property names: names that propertyNames admits, names that match a pattern, and all others."""

import re
from collections.abc import Sequence

from lightwell.model.sampling.grammar.checking import why_refused
from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.model.sampling.grammar.parts import Conjunction, types_of
from lightwell.model.sampling.grammar.places import shown
from lightwell.model.sampling.grammar.schema_alternatives import Alternatives
from lightwell.model.sampling.grammar.strings import (
    FORMATS,
    MAX_SHAPES,
    PLAIN,
    REFUSED_FORMATS,
    STRING,
    check_pattern,
    lengths,
    of_length,
    pieces_of,
    slashed,
)
from lightwell.model.tokenization.chat_formats.lark import HEADER, as_json, quoted

KEY = STRING
"""Any name, as an expression of Lark."""


def admitted_names(alternatives: Alternatives, rules: Conjunction) -> tuple[list[str], str | None]:
    """Return the names that the schemas of propertyNames list, and an expression of the other names that they admit:
    KEY for any name, None for no other.
    """
    listed: list[str] = []
    described: list[list[str]] = []
    for parts in alternatives.of(rules):
        values = alternatives.literals(parts)
        if values is not None:
            listed += [value for value in values if isinstance(value, str)]
        elif "string" in types_of(parts):
            described += _described(parts)
    if [KEY] in described:
        return listed, KEY
    if sum(map(len, described)) > MAX_SHAPES:
        raise GrammarError(rules[0].path, f"names may have at most {MAX_SHAPES} patterns and lengths")
    ways = [f"( {' & '.join(way)} )" for way in described]
    return listed, f"( {' | '.join(ways)} )" if ways else None


def _described(parts: Conjunction) -> list[list[str]]:
    bounds = lengths(parts)
    if bounds is None:
        return []
    patterns = []
    for part in parts:
        if part.schema.get("format") in FORMATS + REFUSED_FORMATS:
            raise GrammarError(part.at("format"), "it is not supported for names; describe them with pattern")
        if "pattern" in part.schema:
            patterns.append(key_pattern(part.at("pattern"), part.schema["pattern"]))
    length = of_length(*bounds)
    return [patterns + [length] * (length != KEY or not patterns)]


def key_pattern(path: str, pattern: str) -> str:
    """Return the names that contain a match of a pattern of patternProperties, as an expression of Lark.

    The names have no escapes, so that the JSON text of each is the name itself.
    """
    named = found_pattern(path, pattern, r'[^"\\]')
    expression = f'/"{slashed(named)}"/ & {PLAIN}'
    admits_a_name(path, expression)
    return expression


def found_pattern(path: str, pattern: str, character: str) -> str:
    """Return a pattern for whole texts, made of these characters, that contain a match of `pattern`."""
    check_pattern(path, pattern)
    pieces = pieces_of(pattern)
    starts = bool(pieces) and pieces[0] == ("anchor", "^")
    ends = len(pieces) > starts and pieces[-1] == ("anchor", "$")
    inner = pieces[int(starts) : len(pieces) - int(ends)]
    if any(kind == "anchor" for kind, _ in inner) or ((starts or ends) and ("group", "|") in _top_level(inner)):
        raise GrammarError(
            path, f"{shown(pattern)} is not supported: ^ and $ are accepted only at the ends, around (a|b)"
        )
    written = []
    for kind, piece in inner:
        if piece == "(?":
            raise GrammarError(path, f"{shown(pattern)} is not supported: groups are ( ) and (?: )")
        if kind == "class" and piece.startswith("[^") and re.search(r"\\[a-zA-Z]", piece):
            raise GrammarError(path, f"{shown(piece)} is not supported; list its characters")
        if kind == "class":
            piece = piece.replace(r"\d", "0-9").replace(r"\w", "A-Za-z0-9_")
        if kind == "escape" and piece in {r"\d", r"\w"}:
            piece = "[0-9]" if piece == r"\d" else "[A-Za-z0-9_]"
        elif re.search(r"\\[a-zA-Z0-9]", piece):
            raise GrammarError(path, f"{piece} is not supported in a pattern here; list its characters")
        written.append(piece)
    return f"{'' if starts else f'{character}*'}({''.join(written)}){'' if ends else f'{character}*'}"


def _top_level(pieces: list[tuple[str, str]]) -> list[tuple[str, str]]:
    depth, top = 0, []
    for kind, piece in pieces:
        depth += (kind == "group" and piece.startswith("(")) - (piece == ")" and kind == "group")
        if depth == 0:
            top.append((kind, piece))
    return top


def admits_a_name(path: str, expression: str) -> bool:
    """Return whether any name or text matches an expression. Raises GrammarError if llguidance refuses it."""
    error = why_refused(f"{HEADER}start: T\nT: {expression}\n")
    if error:
        raise GrammarError(path, error)
    return error is None


def other_key(taken: Sequence[str], patterns: Sequence[str], admitted: str = KEY) -> str:
    """Return the admitted names that are not taken and match no pattern, as an expression of Lark."""
    excluded = [quoted(as_json(name)) for name in taken]
    excluded += [f"( {pattern} )" for pattern in patterns]
    written = [PLAIN] if patterns else []
    if admitted != KEY or not patterns:
        written.append(admitted)
    if excluded:
        written.append(f"~( {' | '.join(excluded)} )")
    return " & ".join(written)
