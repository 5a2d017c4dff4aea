"""llguidance's dialect of Lark: header, literals, and merging of grammars. This module does not load llguidance."""

import json
import re

HEADER = "%llguidance {}\n"
"""The first line of a grammar, which names the dialect."""

as_json = json.JSONEncoder(ensure_ascii=False).encode
"""Returns a value as JSON; json.dumps would create an encoder for each."""

_NAMES = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*"|/[^/\\]*(?:\\.[^/\\]*)*/|\b[rT][0-9]+\b)')
"""The texts and patterns of a rule, and its names of rules and lexemes."""


def quoted(text: str) -> str:
    """Return a text as a literal of Lark, which needs the DEL character escaped."""
    return as_json(text).replace("\x7f", "\\u007f")


class Merged:
    """The grammars that were added to the rules and lexemes of another one."""

    def __init__(self, rules: dict[str, str], lexemes: dict[str, str]) -> None:
        self._rules = rules
        self._lexemes = lexemes
        self._names: dict[str, str] = {}
        """The names of other grammars' rules and lexemes, by their bodies, and of their starts, by the grammars."""

    def start_of(self, grammar: str) -> str:
        """Add the rules and lexemes of a grammar and return the name of its start rule. Different schemas have many
        equal rules, above all for free objects.
        """
        if grammar in self._names:
            return self._names[grammar]
        names: dict[str, str] = {}
        start, *lines = grammar.removeprefix(HEADER).splitlines()
        for line in sorted(lines, key=lambda line: line[0] == "r"):  # lexemes first: they use no other names
            name, _, body = line.partition(": ")
            pieces, of, kind = [body], self._lexemes, "VALUE"
            if name[0] == "r":
                pieces, of, kind = _NAMES.split(body), self._rules, "value"
            for each in pieces[1::2]:
                if each[0] == "r":  # a rule that is used before its line gets a unique name
                    names.setdefault(each, f"value_{len(self._names)}_{each}")
            body = "".join([names.get(piece, piece) for piece in pieces])
            if name not in names:
                names[name] = self._names.setdefault(f"{kind}: {body}", f"{kind}_{len(self._names)}")
            of[names[name]] = body
        self._names[grammar] = names[start.removeprefix("start: ")]
        return self._names[grammar]
