"""Writes JSON texts as terminals: of some length, and of a pattern or format."""

import re
from collections.abc import Sequence

from model.sampling.grammar.checking import CLASS, COUNT, why_refused
from model.sampling.grammar.errors import GrammarError
from model.sampling.grammar.places import Place, shown
from model.sampling.grammar.rules import Rules, Symbol, as_json

CHARACTER = r'([^"\\\x00-\x1F\x7F]|\\["\\bfnrt])'
"""A character of a JSON text. The escape \\u is left out: it would let a name be written in two ways, and half of a
surrogate pair be written at all; what it alone can write are control characters."""
STRING = f'/"{CHARACTER}*"/'
PLAIN = r'/"[^"\\\x00-\x1F\x7F]*"/'
"""A JSON text without escapes, which stands as it is read."""
MAX_SHAPES = 4
"""How many patterns and formats may hold for one text: their automata are multiplied."""
MAX_LENGTH = 10_000
"""The longest text that is counted; a longer maxLength admits texts of this length, a longer minLength is refused."""

FORMATS = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
"""The formats that are held to."""
REFUSED_FORMATS = [
    *["idn-email", "idn-hostname", "iri", "iri-reference", "json-pointer", "regex"],
    *["relative-json-pointer", "uri-reference", "uri-template"],
]
"""The formats that the standard defines and that are not held to; all others are annotations, as it says."""

_LEAP_YEARS = "([0-9][0-9](0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DAYS = f"([0-9]{{4}}-(0[13-9]|1[0-2])-[0-9]{{2}}|[0-9]{{4}}-02-[01][0-9]|[0-9]{{4}}-02-2[0-8]|{_LEAP_YEARS}-02-29)"
_CLOCK = "[0-9]{2}:[0-9]{2}:[0-5][0-9]([.][0-9]{1,9})?[^0-9.]"
_COUNTS = "^P([0-9]{1,9}[A-Z]|T)+$"
CLOSER = {"date": f"^{_DAYS}$", "time": f"^{_CLOCK}", "date-time": f"^{_DAYS}.{_CLOCK}", "duration": _COUNTS}
"""What llguidance's formats admit too much: 29 February in every year, a leap second in every minute, and digits that
never end, which is how some models write them.
"""

X_GUIDANCE = {"whitespace_flexible": False, "json_allowed_escapes": "nrbtf"}
"""How llguidance writes a text under a pattern. Where a class holds control characters, llguidance 1.9.1 admits the
escapes of " and of the backslash too, whether the class holds them or not: [^"] would admit \\". So there are none.
"""


def lengths(parts: Sequence[Place]) -> tuple[int, int | None] | None:
    """Read the least and the most characters that all parts admit; None where they exclude each other."""
    least = max([0, *(int(part.schema.get("minLength", 0)) for part in parts)])
    longest = [int(part.schema["maxLength"]) for part in parts if "maxLength" in part.schema]
    most = min(longest) if longest else None
    if most is not None and least > most:
        return None
    if least > MAX_LENGTH:
        path = next(part.at("minLength") for part in parts if part.schema.get("minLength", 0) > MAX_LENGTH)
        raise GrammarError(path, f"a text that must have more than {MAX_LENGTH} characters is not supported")
    return least, None if most is None else min(most, MAX_LENGTH)


def of_length(least: int, most: int | None) -> str:
    """Write the texts of some length as an expression of Lark."""
    count = "*" if least == 0 and most is None else f"{{{least},{'' if most is None else most}}}"
    return f'/"{CHARACTER}{count}"/'


def string_terminal(rules: Rules, parts: Sequence[Place]) -> list[Symbol]:
    """Write the texts that satisfy all parts; none where lengths exclude each other."""
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
        raise GrammarError(shapes[MAX_SHAPES][0], f"at most {MAX_SHAPES} patterns and formats may hold for one text")
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
    error = why_refused(f"%llguidance {{}}\nstart: {inner.text}\n")
    if error == "":
        return []
    if error:
        raise GrammarError(shapes[0][0], error)
    return [inner]


def inner_schema(schema: dict[str, object]) -> Symbol:
    """Write a schema of one text or number for llguidance's own reading."""
    return Symbol("%json " + as_json({**schema, "x-guidance": X_GUIDANCE}))


def check_pattern(path: str, pattern: str) -> None:
    """Refuse what llguidance would read otherwise than JSON schema's ECMA-262 and Python's `re` do."""
    if len(pattern) > MAX_LENGTH:
        raise GrammarError(path, f"a pattern has at most {MAX_LENGTH} characters")
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
    """Write \\S, \\D and \\W as what they mean in ECMA-262 and in Python both."""
    alike = {r"\S": r"[^\s\x{FEFF}]", r"\D": r"[^\p{Nd}]", r"\W": r"[^\p{L}\p{M}\p{N}\p{Pc}]"}
    return "".join(alike.get(piece, piece) for _, piece in pieces_of(pattern))


def pieces_of(pattern: str) -> list[tuple[str, str]]:
    """Part a pattern into classes, escapes, repetitions and single characters."""
    token = re.compile(
        rf"(?P<escape>\\.)|(?P<class>{CLASS})|(?P<possessive>(?:[*+?]|{COUNT})\+)"
        rf"|(?P<repeat>[*+?]|{COUNT})|(?P<group>\(\?:?|[()|])|(?P<anchor>[\^$])|(?P<one>.)",
        re.DOTALL,
    )
    return [(str(match.lastgroup), match.group()) for match in token.finditer(pattern)]


def slashed(pattern: str) -> str:
    """Write a pattern so that it may stand between two slashes of Lark."""
    return "".join(
        {"/": r"\/", "\n": r"\n", "\r": r"\r"}.get(piece, piece) for piece in re.findall(r"\\.|.", pattern, re.DOTALL)
    )
