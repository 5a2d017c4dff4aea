"""Holds the rules of a grammar, drops those that could never end, and writes them as llguidance's Lark."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from model.sampling.grammar.errors import GrammarError

MAX_RULES = 20_000
"""How many rules a schema's grammar may have."""
MAX_SYMBOLS = 200_000
"""How many parts the rules of a grammar may have together."""


@dataclass(frozen=True)
class Symbol:
    """One part of a rule: a terminal's text, or a rule's name, and how often it is repeated."""

    text: str
    is_rule: bool = False
    repeated: str = ""
    """Lark's {least,most}, or nothing for once."""

    @property
    def may_lack(self) -> bool:
        """Whether it may be left out, so that a rule can end without it."""
        return self.repeated.startswith("{0,")


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
        ending = self._ending()
        if start not in ending:
            return None
        lines = ["%llguidance {}", f"start: {start}"]
        seen, stack, used = {start}, [start], set()
        while stack:
            name = stack.pop()
            alternatives = []
            for sequence in self.rules[name]:
                if not all(_ends(symbol, ending) for symbol in sequence):
                    continue
                kept = [symbol for symbol in sequence if not symbol.is_rule or symbol.text in ending]
                for symbol in kept:
                    if symbol.is_rule and symbol.text not in seen:
                        seen.add(symbol.text)
                        stack.append(symbol.text)
                    used.add(symbol.text)
                alternatives.append(" ".join(symbol.text + symbol.repeated for symbol in kept) or '""')
            lines.append(f"{name}: " + " | ".join(dict.fromkeys(alternatives)))
        lines += [f"{name}: {expression}" for expression, name in self.terminals.items() if name in used]
        return "\n".join(lines) + "\n"

    def _ending(self) -> set[str]:
        """Find the rules that some finite text satisfies."""
        users: dict[str, list[tuple[str, int]]] = {}
        missing: dict[tuple[str, int], int] = {}
        ready = []
        for name, alternatives in self.rules.items():
            for number, sequence in enumerate(alternatives):
                needed = {symbol.text for symbol in sequence if symbol.is_rule and not symbol.may_lack}
                missing[name, number] = len(needed)
                for other in needed:
                    users.setdefault(other, []).append((name, number))
                if not needed:
                    ready.append(name)
        ending: set[str] = set()
        while ready:
            name = ready.pop()
            if name in ending:
                continue
            ending.add(name)
            for user in users.get(name, []):
                missing[user] -= 1
                if missing[user] == 0:
                    ready.append(user[0])
        return ending


def _ends(symbol: Symbol, ending: set[str]) -> bool:
    return not symbol.is_rule or symbol.may_lack or symbol.text in ending


def quoted(text: str) -> str:
    """Write a text as a literal of Lark."""
    return json.dumps(text, ensure_ascii=False)
