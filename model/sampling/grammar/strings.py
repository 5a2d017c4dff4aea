"""Terminals of JSON texts with a length, pattern or format."""

import re
from collections.abc import Sequence

from lightwell.model.sampling.grammar.checking import CLASS, COUNT, why_refused
from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.model.sampling.grammar.parts import counts_of
from lightwell.model.sampling.grammar.places import Place, shown
from lightwell.model.sampling.grammar.rules import Rules, Symbol
from lightwell.model.tokenization.chat_formats.lark import HEADER, as_json

CHARACTER = r'([^"\\\x00-\x1F\x7F]|\\["\\bfnrt])'
"""A character of a JSON text. The escape \\u is excluded: with it a name has two spellings, and lone surrogates are
possible. Only some control characters need it."""
STRING = f'/"{CHARACTER}*"/'
PLAIN = r'/"[^"\\\x00-\x1F\x7F]*"/'
"""A JSON text without escapes: its value is the text between the quotes."""
MAX_SHAPES = 4
"""Largest number of patterns and formats of one text: the sizes of their automata are multiplied."""
MAX_LENGTH = 10_000
"""Largest counted length of a text. A larger maxLength is lowered to it, a larger minLength is refused."""

FORMATS = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
"""The formats that are enforced."""
REFUSED_FORMATS = [
    *["idn-email", "idn-hostname", "iri", "iri-reference", "json-pointer", "regex"],
    *["relative-json-pointer", "uri-reference", "uri-template"],
]
"""The standard's formats that are not supported. All other names are annotations, as in the standard."""

_LEAP_YEARS = "([0-9][0-9](0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DAYS = f"([0-9]{{4}}-(0[13-9]|1[0-2])-[0-9]{{2}}|[0-9]{{4}}-02-[01][0-9]|[0-9]{{4}}-02-2[0-8]|{_LEAP_YEARS}-02-29)"
_CLOCK = "[0-9]{2}:[0-9]{2}:[0-5][0-9]([.][0-9]{1,9})?[^0-9.]"
_COUNTS = "^P([0-9]{1,9}[A-Z]|T)+$"
CLOSER = {"date": f"^{_DAYS}$", "time": f"^{_CLOCK}", "date-time": f"^{_DAYS}.{_CLOCK}", "duration": _COUNTS}
"""Patterns that narrow llguidance's formats, which admit 29 February in every year, a leap second in every minute, and
any number of digits, which some models never end.
"""

X_GUIDANCE = {"whitespace_flexible": False, "json_allowed_escapes": "nrbtf"}
"""llguidance's options for a text under a pattern. The escapes of " and of the backslash are excluded, since llguidance
1.9.1 admits them for every class that contains control characters: [^"] would admit \\".
"""


def lengths(parts: Sequence[Place]) -> tuple[int, int | None] | None:
    """Return the smallest and the largest length that all parts admit; None if there is none."""
    least, most = counts_of(parts, "Length")
    if most is not None and least > most:
        return None
    if least > MAX_LENGTH:
        path = next(part.at("minLength") for part in parts if part.schema.get("minLength", 0) > MAX_LENGTH)
        raise GrammarError(path, f"a text that must have more than {MAX_LENGTH} characters is not supported")
    return least, None if most is None else min(most, MAX_LENGTH)


def of_length(least: int, most: int | None) -> str:
    """Return the texts of some length as an expression of Lark."""
    count = "*" if least == 0 and most is None else f"{{{least},{'' if most is None else most}}}"
    return f'/"{CHARACTER}{count}"/'


def string_terminal(rules: Rules, parts: Sequence[Place]) -> list[Symbol]:
    """Return the texts that satisfy all parts; [] if there are none."""
    bounds = lengths(parts)
    if bounds is None:
        return []
    least, most = bounds
    shapes: list[tuple[str, dict[str, object]]] = []
    for part in parts:
        if "pattern" in part.schema:
            check_pattern(part.at("pattern"), part.schema["pattern"])
            shapes.append((part.at("pattern"), {"pattern": _read_alike(part.schema["pattern"])}))
        if part.schema.get("format") in REFUSED_FORMATS:
            raise GrammarError(
                part.at("format"), f"{shown(part.schema['format'])} is not supported; {', '.join(FORMATS)} are"
            )
        if part.schema.get("format") in FORMATS:
            name = part.schema["format"]
            shapes.append(
                (part.at("format"), {"format": name, **({"pattern": CLOSER[name]} if name in CLOSER else {})})
            )
    if len(shapes) > MAX_SHAPES:
        raise GrammarError(shapes[MAX_SHAPES][0], f"at most {MAX_SHAPES} patterns and formats may apply to one text")
    if not shapes:
        return [rules.terminal(of_length(least, most))]
    schema: dict[str, object] = {
        "type": "string",
        "allOf": [shape for _, shape in shapes],
        "minLength": least,
    }
    if most is not None:
        schema["maxLength"] = most
    inner = inner_schema(schema)
    error = why_refused(f"{HEADER}start: {inner.text}\n")
    if error == "":
        return []
    if error:
        raise GrammarError(shapes[0][0], error)
    return [inner]


def inner_schema(schema: dict[str, object]) -> Symbol:
    """Return a schema of one text or number as a part that llguidance compiles."""
    return Symbol("%json " + as_json({**schema, "x-guidance": X_GUIDANCE}))


def check_pattern(path: str, pattern: str) -> None:
    """Raise GrammarError for a pattern with another meaning in llguidance than in ECMA-262 and in Python's `re`."""
    if len(pattern) > MAX_LENGTH:
        raise GrammarError(path, f"a pattern may have at most {MAX_LENGTH} characters")
    for kind, piece in pieces_of(pattern):
        if kind == "class" and re.search(r"(?<!\\)\[|&&|--|~~", piece[1:-1]):
            raise GrammarError(path, f"in {shown(piece)} write \\[, \\&, \\- and \\~ for these characters")
        if kind == "class" and re.match(r"\[\^?\]", piece):
            raise GrammarError(path, f"in {shown(piece)} write \\] for this character")
        mixed = re.findall(r"\\([SDW])", piece) if kind == "class" else []
        if mixed and not (mixed[0].lower() in re.findall(r"\\([sdw])", piece) and not piece.startswith("[^")):
            raise GrammarError(path, f"in {shown(piece)} name the characters instead of \\{mixed[0]}")
        if kind == "possessive":
            raise GrammarError(path, "possessive repetition is not supported")
        if kind == "escape" and piece[1] in "AZzG<>":
            raise GrammarError(path, f"{piece} is not supported; write ^ or $ for an end of the text")


def _read_alike(pattern: str) -> str:
    """Replace \\S, \\D and \\W by the classes that they denote both in ECMA-262 and in Python."""
    alike = {r"\S": r"[^\s\x{FEFF}]", r"\D": r"[^\p{Nd}]", r"\W": r"[^\p{L}\p{M}\p{N}\p{Pc}]"}
    return "".join(alike.get(piece, piece) for _, piece in pieces_of(pattern))


def pieces_of(pattern: str) -> list[tuple[str, str]]:
    """Split a pattern into classes, escapes, repetitions and single characters, each with its kind."""
    token = re.compile(
        rf"(?P<escape>\\.)|(?P<class>{CLASS})|(?P<possessive>(?:[*+?]|{COUNT})\+)"
        rf"|(?P<repeat>[*+?]|{COUNT})|(?P<group>\(\?:?|[()|])|(?P<anchor>[\^$])|(?P<one>.)",
        re.DOTALL,
    )
    return [(str(match.lastgroup), match.group()) for match in token.finditer(pattern)]


def slashed(pattern: str) -> str:
    """Escape a pattern for a place between two slashes of Lark."""
    return "".join(
        {"/": r"\/", "\n": r"\n", "\r": r"\r"}.get(piece, piece) for piece in re.findall(r"\\.|.", pattern, re.DOTALL)
    )
