"""Conversion of llama.cpp's GBNF, which is also the EBNF of other servers, to llguidance's Lark.

llguidance splits a text into the longest terminals before it applies rules; GBNF has only characters. So a grammar
without recursion becomes one terminal, and one with recursion gets terminals of one character each. Both admit the same
texts as the GBNF grammar.
"""

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from lightwell.model.sampling.grammar.deep_stack import check_nesting
from lightwell.model.sampling.grammar.errors import GrammarError
from lightwell.model.tokenization.chat_formats.lark import HEADER, quoted

MAX_BYTES = 200_000
"""Largest size of a grammar, in bytes."""
MAX_DEPTH = 50
"""Largest number of nested brackets."""
MAX_REPEATED = 10_000
"""Largest count of a repetition."""

_TOKEN = re.compile(
    r'(?P<space>(?:\s|#[^\n]*)+)|(?P<defines>::=)|(?P<name>[A-Za-z0-9_-]+)|(?P<literal>"(?:\\.|[^"\\\n])*")'
    r"|(?P<class>\[(?:\\.|[^\]\\\n])*\])|(?P<count>\{\s*\d+\s*(?:,\s*\d*\s*)?\})|(?P<mark>[()|*+?.])",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})|\\(.)", re.DOTALL)
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass
class _Reader:
    """A parser of a grammar's tokens."""

    tokens: list[tuple[str, str, int]]
    """Kind, text and line of each token."""
    rules: dict[str, str]
    """The name in Lark of each rule."""
    one_terminal: bool
    at: int = 0
    used: dict[str, set[str]] = field(default_factory=dict)
    """The rules that each rule names."""
    rule: str = ""

    def peek(self, ahead: int = 0) -> tuple[str, str, int]:
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ("end", "", self.tokens[-1][2])

    def wrong(self, message: str) -> GrammarError:
        return GrammarError("", f"line {self.peek()[2]}: {message}")

    def alternatives(self, depth: int) -> str:
        if depth > MAX_DEPTH:
            raise self.wrong(f"brackets may be nested at most {MAX_DEPTH} levels deep")
        written = [self.sequence(depth)]
        while self.peek()[1] == "|" and self.peek()[0] == "mark":
            self.at += 1
            written.append(self.sequence(depth))
        return " | ".join(written)

    def sequence(self, depth: int) -> str:
        parts: list[str] = []
        while True:
            kind, text, _ = self.peek()
            if kind in {"end", "defines"} or (kind == "mark" and text in "|)") or self.peek(1)[0] == "defines":
                return " ".join(parts) or '""'
            self.at += 1
            if kind == "mark" and text == "(":
                inner = self.alternatives(depth + 1)
                if self.peek()[:2] != ("mark", ")"):
                    raise self.wrong("a bracket ( is not closed")
                self.at += 1
                part = f"( {inner} )"
            elif kind == "name":
                if text not in self.rules:
                    self.at -= 1
                    raise self.wrong(f"there is no rule {text}")
                self.used.setdefault(self.rule, set()).add(text)
                part = self.rules[text]
            elif kind == "literal":
                part = self.literal(text)
            elif kind == "class":
                part = self.character_class(text)
            elif text == ".":
                part = "/(?s:.)/"
            else:
                self.at -= 1
                raise self.wrong(f"{text} has nothing to repeat")
            parts.append(part + self.repetition())

    def repetition(self) -> str:
        kind, text, _ = self.peek()
        if kind == "mark" and text in "*+?":
            self.at += 1
            if self.peek()[0] == "count" or (self.peek()[0] == "mark" and self.peek()[1] in "*+?"):
                raise self.wrong("a part may have only one repetition; put it in ( )")
            return text
        if kind == "count":
            numbers = [int(number.lstrip("0")[:9] or 0) for number in re.findall(r"\d+", text)]
            if max(numbers) > MAX_REPEATED:
                raise self.wrong(f"a part may be repeated at most {MAX_REPEATED} times")
            if len(numbers) == 2 and numbers[0] > numbers[1]:
                raise self.wrong(f"{text}: the first number is larger than the second")
            self.at += 1
            return re.sub(r"\s", "", text)
        return ""

    def literal(self, text: str) -> str:
        characters = [character for character, _ in self.characters(text[1:-1])]
        if self.one_terminal or len(characters) <= 1:
            return quoted("".join(characters))
        return "( " + " ".join(quoted(character) for character in characters) + " )"

    def characters(self, text: str) -> list[tuple[str, bool]]:
        """List the characters of a literal or class, each with True if it was escaped."""
        found = []
        for match in re.finditer(_ESCAPE.pattern + r"|(?P<plain>.)", text, re.DOTALL):
            code = match[1] or match[2] or match[3]
            if match["plain"]:
                found.append((match["plain"], False))
                continue
            if code and (int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) <= 0xDFFF):
                raise self.wrong(f"{match[0]} is not a character")
            if not code and match[4] not in {*_NAMED, *'\\"[]-^'}:
                raise self.wrong(
                    f'{match[0]} is not an escape; use \\n \\r \\t \\\\ \\" \\[ \\] \\xNN \\uNNNN or \\UNNNNNNNN'
                )
            found.append((chr(int(code, 16)) if code else _NAMED.get(match[4], match[4]), True))
        return found

    def character_class(self, text: str) -> str:
        inner = text[1:-1]
        negated = inner.startswith("^")
        characters = self.characters(inner[1:] if negated else inner)
        if not characters:
            raise self.wrong(f"{text} contains no character")
        ranges, number = [], 0
        while number < len(characters):
            first = last = ord(characters[number][0])
            if number + 2 < len(characters) and characters[number + 1] == ("-", False):
                last = ord(characters[number + 2][0])
                number += 2
            if last < first:
                raise self.wrong(f"{text} contains a range from a later character to an earlier one")
            ranges.append(f"\\x{{{first:x}}}-\\x{{{last:x}}}")
            number += 1
        return f"/[{'^' if negated else ''}{''.join(ranges)}]/"


def gbnf_grammar(text: str) -> str:
    """Return llguidance's grammar of a GBNF grammar with the first rule `root`."""
    if len(text.encode(errors="replace")) > MAX_BYTES:
        raise GrammarError("", f"a grammar must have at most {MAX_BYTES} bytes")
    tokens = _tokens(text)
    names = [token[1] for token, after in itertools.pairwise(tokens) if token[0] == "name" and after[0] == "defines"]
    if "root" not in names:
        raise GrammarError("", "a grammar must have a rule root ::= ...")
    check_nesting(sum(part in ("::=", "(") for _, part, _ in tokens))
    terminals = {name: f"R{number}" for number, name in enumerate(dict.fromkeys(names))}
    written, used = _rules(tokens, terminals, True)
    reached = _reached("root", used)
    try:
        TopologicalSorter({name: used.get(name, ()) for name in reached}).prepare()
    except CycleError:  # the grammar is recursive
        rules = {name: f"r{number}" for number, name in enumerate(dict.fromkeys(names))}
        written, _ = _rules(tokens, rules, False)
        return f"{HEADER}start: {rules['root']}\n" + "\n".join(written) + "\n"
    kept = {terminals[name] for name in reached}
    lines = [line for line in written if line.partition(":")[0] in kept]
    return f"{HEADER}start: {terminals['root']}\n" + "\n".join(lines) + "\n"


def _tokens(text: str) -> list[tuple[str, str, int]]:
    tokens, at, line = [], 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise GrammarError("", f"line {line}: {text[at : at + 20].splitlines()[0]!r} is not valid GBNF")
        if match.lastgroup != "space":
            tokens.append((str(match.lastgroup), match.group(), line))
        line += match.group().count("\n")
        at = match.end()
    return tokens


def _rules(
    tokens: list[tuple[str, str, int]], called: dict[str, str], one_terminal: bool
) -> tuple[list[str], dict[str, set[str]]]:
    reader = _Reader(tokens, called, one_terminal)
    written: dict[str, str] = {}
    while reader.at < len(tokens):
        kind, name, _ = reader.peek()
        if kind != "name" or reader.peek(1)[0] != "defines":
            raise reader.wrong(f"a rule must begin with name ::= (got {name})")
        if name in written:
            raise reader.wrong(f"rule {name} is defined twice")
        reader.rule = name
        reader.at += 2
        written[name] = f"{called[name]}: {reader.alternatives(0)}"
    return list(written.values()), reader.used


def _reached(first: str, used: Mapping[str, Iterable[str]]) -> set[str]:
    """Return a rule and the rules that it uses, directly or not."""
    reached, stack = {first}, [first]
    while stack:
        for name in used.get(stack.pop(), ()):
            if name not in reached:
                reached.add(name)
                stack.append(name)
    return reached
