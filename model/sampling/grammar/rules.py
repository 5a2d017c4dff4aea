"""Rules of a grammar under construction: removes those that no finite text satisfies, and writes llguidance's Lark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lightwell.model.sampling.grammar.deep_stack import check_nesting
from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.model.tokenization.chat_formats.lark import HEADER

MAX_RULES = 20_000
"""Largest number of rules of a schema's grammar."""
MAX_SYMBOLS = 200_000
"""Largest number of parts of all rules together."""


class Symbol(NamedTuple):
    """One part of a rule: a terminal's text or a rule's name, and its repetition."""

    text: str
    is_rule: bool = False
    repeated: str = ""
    """Lark's {least,most}, or "" for once. A part with {0,...} is optional."""


Sequence_ = tuple[Symbol, ...]


@dataclass
class Rules:
    """A grammar under construction."""

    rules: dict[str, list[Sequence_]] = field(default_factory=dict)
    terminals: dict[str, str] = field(default_factory=dict)
    """The name of each terminal, by its expression."""
    _symbols: int = 0

    def new(self, path: str) -> str:
        """Create an empty rule and return its name."""
        if len(self.rules) >= MAX_RULES:
            raise GrammarError(path, f"the schema needs more than {MAX_RULES} rules")
        name = f"r{len(self.rules)}"
        self.rules[name] = []
        return name

    def add(self, name: str, alternatives: Sequence[Sequence_]) -> Symbol:
        self._symbols += sum(map(len, alternatives))
        if self._symbols > MAX_SYMBOLS:
            raise GrammarError("", f"the schema's rules have more than {MAX_SYMBOLS} parts")
        self.rules[name] += alternatives
        return Symbol(name, True)

    def one_of(self, path: str, alternatives: Sequence[Sequence_]) -> Symbol:
        """Create a rule of alternatives."""
        return self.add(self.new(path), alternatives)

    def terminal(self, expression: str) -> Symbol:
        """Return the terminal of a Lark expression."""
        return Symbol(self.terminals.setdefault(expression, f"T{len(self.terminals)}"))

    def written(self, start: str) -> str | None:
        """Return the grammar; None if no text satisfies it."""
        ending = self._that_end()
        if start not in ending:
            return None
        rules, start = _shortened(ending, start)
        check_nesting(len(rules))
        lines, used = [f"{HEADER}start: {start}"], set[str]()
        for name, sequences in rules.items():
            used.update([text for sequence in sequences for text, is_rule, _ in sequence if not is_rule])
            alternatives = [
                " ".join([text + repeated for text, _, repeated in sequence]) or '""' for sequence in sequences
            ]
            lines.append(f"{name}: " + " | ".join(alternatives))
        lines += [f"{name}: {expression}" for expression, name in self.terminals.items() if name in used]
        return "\n".join(lines) + "\n"

    def _that_end(self) -> dict[str, list[Sequence_]]:
        """Return the rules and the alternatives that some finite text satisfies."""
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


def _shortened(rules: Mapping[str, Sequence[Sequence_]], start: str) -> tuple[dict[str, list[Sequence_]], str]:
    """Return the rules that `start` reaches, and the name of the first. Equal rules become one, and a rule that is only
    another rule or a terminal is replaced by it. Such a grammar is compiled in half the time.
    """
    short: dict[str, list[Sequence_]] = {}
    instead: dict[str, Sequence_] = {}
    """The replacement of each rule, by name: no part or one."""
    names: dict[tuple[Sequence_, ...], str] = {}
    named = {start}
    """Rules that keep their names: a recursive rule is named before it is shortened."""
    for name in _from_the_inside(rules, start):
        alternatives = list(dict.fromkeys([_replaced(sequence, instead, named) for sequence in rules[name]]))
        if name not in named and len(alternatives) == 1 and _is_short(alternatives[0]):
            instead[name] = alternatives[0]
            continue
        kept = name if name in named else names.setdefault(tuple(alternatives), name)
        instead[name] = (Symbol(kept, True),)
        short[kept] = alternatives
    return short, instead[start][0].text


def _replaced(sequence: Sequence_, instead: Mapping[str, Sequence_], named: set[str]) -> Sequence_:
    """Return a sequence with its rules replaced, and add the rules without a replacement to `named`."""
    parts: list[Symbol] = []
    for symbol in sequence:
        text, is_rule, repeated = symbol
        found = instead.get(text) if is_rule else None
        if found is None:
            parts.append(symbol)
            if is_rule:
                named.add(text)
        elif not repeated:
            parts += found
        elif found:
            parts.append(Symbol(found[0].text, found[0].is_rule, repeated))
    return tuple(parts)


def _from_the_inside(rules: Mapping[str, Sequence[Sequence_]], start: str) -> list[str]:
    """Return the names of the rules that `start` reaches, each after the rules that it uses."""
    order: list[str] = []
    entered: set[str] = set()
    stack = [start]
    while stack:
        name = stack.pop()
        if not name:  # the rule before the mark "" has all rules that it uses in front of it
            order.append(stack.pop())
        elif name not in entered:
            entered.add(name)
            stack += [name, ""]
            stack += [text for sequence in rules[name] for text, is_rule, _ in sequence if is_rule]
    return order


def _is_short(sequence: Sequence_) -> bool:
    """Return whether a sequence is short enough to repeat: no part, or one that is not a grammar of its own."""
    return not sequence or (len(sequence) == 1 and not sequence[0].repeated and not sequence[0].text.startswith("%"))
