"""Holds the rules of a grammar, drops those that could never end, and writes them as llguidance's Lark."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from model.sampling.grammar.errors import GrammarError

MAX_RULES = 20_000
"""How many rules a schema's grammar may have."""
MAX_SYMBOLS = 200_000
"""How many parts the rules of a grammar may have together."""

as_json = json.JSONEncoder(ensure_ascii=False).encode
"""Writes a value as JSON; json.dumps would make an encoder for each."""


class Symbol(NamedTuple):
    """One part of a rule: a terminal's text, or a rule's name, and how often it is repeated."""

    text: str
    is_rule: bool = False
    repeated: str = ""
    """Lark's {least,most}, or nothing for once; what begins with {0, may be left out."""


Sequence_ = tuple[Symbol, ...]


@dataclass
class Rules:
    """A grammar in the making."""

    rules: dict[str, list[Sequence_]] = field(default_factory=dict)
    terminals: dict[str, str] = field(default_factory=dict)
    """The name of each terminal, by what it matches."""
    _symbols: int = 0

    def new(self, path: str) -> str:
        """Make an empty rule, and return its name."""
        if len(self.rules) >= MAX_RULES:
            raise GrammarError(path, f"the schema needs more than {MAX_RULES} rules")
        name = f"r{len(self.rules)}"
        self.rules[name] = []
        return name

    def add(self, name: str, alternatives: Sequence[Sequence_]) -> Symbol:
        """Add alternatives to a rule."""
        self._symbols += sum(map(len, alternatives))
        if self._symbols > MAX_SYMBOLS:
            raise GrammarError("", f"the schema's rules have more than {MAX_SYMBOLS} parts")
        self.rules[name] += alternatives
        return Symbol(name, True)

    def one_of(self, path: str, alternatives: Sequence[Sequence_]) -> Symbol:
        """Make a rule of alternatives."""
        return self.add(self.new(path), alternatives)

    def terminal(self, expression: str) -> Symbol:
        """Name what matches a Lark expression."""
        return Symbol(self.terminals.setdefault(expression, f"T{len(self.terminals)}"))

    def written(self, start: str) -> str | None:
        """Write the grammar; None where no text satisfies it."""
        rules = self._that_end()
        if start not in rules:
            return None
        lines = ["%llguidance {}", f"start: {start}"]
        stack, used = [start], {start}
        while stack:
            name = stack.pop()
            alternatives = []
            for sequence in rules[name]:
                for text, is_rule, _ in sequence:
                    if text not in used:
                        used.add(text)
                        if is_rule:
                            stack.append(text)
                alternatives.append(" ".join([text + repeated for text, _, repeated in sequence]) or '""')
            lines.append(f"{name}: " + " | ".join(dict.fromkeys(alternatives)))
        lines += [f"{name}: {expression}" for expression, name in self.terminals.items() if name in used]
        return "\n".join(lines) + "\n"

    def _that_end(self) -> dict[str, list[Sequence_]]:
        """Find the rules that some finite text satisfies, without what never ends."""
        ending = self._ending()
        if len(ending) == len(self.rules):
            return self.rules

        def ends(symbol: Symbol) -> bool:
            return not symbol.is_rule or symbol.text in ending

        return {
            name: [
                tuple(filter(ends, sequence))
                for sequence in self.rules[name]
                if all(ends(symbol) or symbol.repeated.startswith("{0,") for symbol in sequence)
            ]
            for name in ending
        }

    def _ending(self) -> set[str]:
        users: dict[str, list[tuple[str, set[str]]]] = {}
        ready = []
        for name, alternatives in self.rules.items():
            for sequence in alternatives:
                needed = {text for text, is_rule, repeated in sequence if is_rule and not repeated.startswith("{0,")}
                for other in needed:
                    users.setdefault(other, []).append((name, needed))
                if not needed:
                    ready.append(name)
        ending: set[str] = set()
        while ready:
            name = ready.pop()
            if name in ending:
                continue
            ending.add(name)
            for user, needed in users.get(name, []):
                needed.remove(name)
                if not needed:
                    ready.append(user)
        return ending


def quoted(text: str) -> str:
    """Write a text as a literal of Lark."""
    return as_json(text)
