"""Readers of a call's arguments in a text that comes in pieces; they return JSON. Independent of messages."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import isfinite
from typing import ClassVar

from lightwell.model.tokenization.chat_formats.call_syntax import (
    ID,
    ID_CHARACTERS,
    KIND_OF,
    KINDS,
    CallSyntax,
    PairSyntax,
    Tool,
)


class ObjectReader:
    """Reader of arguments in JSON: finds the end of the object. `is_whole` is true after it."""

    _mark = re.compile(r'\\[\s\S]?|["{}\[\]]')

    def __init__(self) -> None:
        self.is_whole = self._in_string = False
        self._depth = 0

    def read(self, text: str, is_over: bool) -> tuple[str, int]:
        """Return the next part of the arguments, and the number of characters read from the text. The caller passes the
        other characters again, with more text; if the text `is_over`, no more follows.
        """
        for mark in self._mark.finditer(text):
            if mark[0] == "\\" and not is_over:  # it needs the character that it escapes
                return text[: mark.start()], mark.start()
            if mark[0] == '"':
                self._in_string = not self._in_string
            elif mark[0][0] != "\\" and not self._in_string:
                self._depth += 1 if mark[0] in "{[" else -1
                if self._depth == 0:
                    self.is_whole = True
                    return text[: mark.end()], mark.end()
        return text, len(text)


_TEXT = frozenset({"string"})


class PairReader:
    """Reader of arguments that are written one by one, each name and value between tags."""

    def __init__(self, syntax: PairSyntax, kinds_of: Callable[[str], frozenset[str]]) -> None:
        """`kinds_of` returns the possible JSON types of the argument with a name."""
        self.is_whole = False
        self._syntax = syntax
        ends = [re.escape(each).replace(re.escape(ID), ID_CHARACTERS + "+") for each in syntax.name_ends]
        self._name_end = re.compile("|".join(ends))
        self._kinds_of = kinds_of
        self._num_pairs = 0
        self._after_value = ""
        """The text after the current value; "" before the value."""
        self._kinds: frozenset[str] | None = None
        """The possible types of the current value; None before a name."""

    def read(self, text: str, is_over: bool) -> tuple[str, int]:
        if self._kinds is None:
            return self._read_name(text, is_over)
        if not self._after_value:
            return self._begin_value(text, is_over)
        value, tag, _ = text.partition(self._after_value)
        is_text, num_read = self._kinds == _TEXT, len(value) + len(tag)
        if is_text and not tag and not is_over:
            num_read -= num_begun(text, self._after_value)
        if not is_text and not tag:
            return (value, num_read) if is_over else ("", 0)
        written = _escaped(value[:num_read]) + '"' * bool(tag) if is_text else _as_json(value, self._kinds)
        if tag:
            self._kinds, self._after_value = None, ""
        return written, num_read

    def _read_name(self, text: str, is_over: bool) -> tuple[str, int]:
        before, begin = self._syntax.before_name.lstrip(), len(text) - len(text.lstrip())
        if text.startswith(before, begin):
            end = self._name_end.search(text, begin + len(before))
            if end is None:
                return "", 0
            name = text[begin + len(before) : end.start()]
            self._kinds = self._kinds_of(name)
            if self._syntax.after_name_of_json and "string" in self._kinds:  # the syntax marks the values that are text
                self._kinds = _TEXT if end[0] == self._syntax.after_name else KINDS
            self._num_pairs += 1
            opening = "{" if self._num_pairs == 1 else ", "
            return f"{opening}{json.dumps(name)}: ", end.end()
        if before.startswith(text[begin:]) and not is_over:
            return "", 0
        self.is_whole = True
        return "}" if self._num_pairs else "{}", 0

    def _begin_value(self, text: str, is_over: bool) -> tuple[str, int]:
        quote, end = self._syntax.quotes
        if quote.startswith(text) and quote and not is_over:
            return "", 0
        if not quote or not text.startswith(quote):
            quote, end = "", ""
        self._kinds = _TEXT if quote else self._kinds
        self._after_value = end + self._syntax.after_value
        return ('"', len(quote)) if self._kinds == _TEXT else self.read(text, is_over)


class BareReader:
    """Reader of arguments with bare names and literal texts."""

    _name_pattern = re.compile(r"[^:,{}\[\]]*")
    _name_end = ":"
    _named = "{"
    """The bracket after which names are bare."""
    _word = re.compile(r"[A-Z][a-z]*")
    """One of Python's constants, for example None."""

    def __init__(self, *quotes: str) -> None:
        self.is_whole = False
        self._quotes = quotes
        self._quote = quotes[0]
        """The quote of the current text."""
        self._open: list[str] = []
        """The open brackets."""
        self._in_text = False
        self._is_name_next = False
        self._comma = ""
        """A comma that is written before the next part, unless that is a closing bracket."""

    def read(self, text: str, is_over: bool) -> tuple[str, int]:
        written: list[str] = []
        position = 0
        while position < len(text) and not self.is_whole:
            was_in_text = self._in_text
            read = self._text if was_in_text else self._name if self._is_name_next else self._mark
            new, end = read(text, position, is_over)
            if end == position:
                break
            if not was_in_text and new.strip():
                written.append(self._comma if new not in ("]", "}") else "")
                self._comma, new = (", ", "") if new == "," else ("", new)
            written.append(new)
            position = end
        return "".join(written), position

    # Each of these reads a part at a position, and returns JSON and the position after the part. The same position
    # means that more text is needed.

    def _text(self, text: str, position: int, is_over: bool) -> tuple[str, int]:
        end = text.find(self._quote, position)
        if end >= 0:
            self._in_text = False
            return f'{_escaped(text[position:end])}"', end + len(self._quote)
        end = len(text) - (0 if is_over else num_begun(text[position:], self._quote))
        return _escaped(text[position:end]), end

    def _name(self, text: str, position: int, is_over: bool) -> tuple[str, int]:
        match = self._name_pattern.match(text, position)
        assert match is not None, "nothing is a name, too"
        end = match.end()
        if end == len(text) and not is_over:
            return "", position
        self._is_name_next = False
        if text.startswith(self._name_end, end):
            return f"{json.dumps(match[0].strip(), ensure_ascii=False)}: ", end + 1
        return self._mark(text, end, is_over) if end == position else (match[0], end)

    def _mark(self, text: str, position: int, is_over: bool) -> tuple[str, int]:
        quote = next((each for each in self._quotes if text.startswith(each, position)), None)
        if quote is not None:
            self._in_text, self._quote = True, quote
            return '"', position + len(quote)
        char = text[position]
        word = self._word.match(text, position)
        end = position if word is None else word.end()
        if not is_over and (end == len(text) or any(each.startswith(text[position:]) for each in self._quotes)):
            return "", position
        if word is not None:
            return self._constant(word[0]), end
        if char == "(" and self._open:
            char = "["  # a tuple is a list
        if char in "{[(":
            self._open.append(char)
        elif char in "}])":
            char = "]" if self._open.pop() == "[" and char == ")" else char
            self.is_whole = not self._open
        self._is_name_next = char in (self._named, ",") and self._open[-1:] == [self._named]
        return char.strip().translate(_BRACES), position + 1

    def _constant(self, word: str) -> str:
        return _OF_PYTHON.get(word, word)


_BRACES = str.maketrans("()", "{}")


_HEX = "[0-9a-fA-F]"
_BEGUN = rf"[0-3][0-7]?|x{_HEX}?|u{_HEX}{{0,3}}|u[dD][89abAB]{_HEX}{{2}}(\\(u{_HEX}{{0,3}})?)?|U{_HEX}{{0,7}}"
"""The beginning of an escape, without its backslash. A high surrogate may be the beginning of a pair."""
_ESCAPE = re.compile(
    rf"\\([0-3][0-7]{{2}}|x{_HEX}{{2}}|u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}|u(?![dD][89a-fA-F]){_HEX}{{4}}"
    rf"|U(?!0000[dD][89a-fA-F])00(?:10|0{_HEX}){_HEX}{{4}}|[\s\S])"
)
"""An escape of a text in Python. A lone surrogate is not an escape, since it is no character."""


class PythonReader(BareReader):
    """Reader of the arguments of a call in Python. A quote within a text needs an escape only before a comma, a colon
    or a closing bracket: some templates write no escapes.
    """

    _name_pattern = re.compile(r"[^=)]*")
    _name_end = "="
    _named = "("
    _word = re.compile(r"(?:[^\s,:()\[\]{}'\"]\s*)+")
    """One or several words. Several words without a comma are a text, not literals."""
    _inner: ClassVar = {
        quote: re.compile(rf"([^{quote}\\]|\\(?!({_BEGUN})?\Z)[\s\S]|{quote}(?![ \t\r\n]*([,:)\]}}]|\Z)))*+")
        for quote in ("'", '"')
    }
    """The content of a text, up to its end, or to a quote or an escape that needs more text."""

    def __init__(self, *, is_strict: bool = False) -> None:
        """is_strict: whether a word that is no literal is returned unchanged, which is no JSON, or else as a text."""
        super().__init__("'", '"')
        self._is_strict = is_strict

    def _text(self, text: str, position: int, is_over: bool) -> tuple[str, int]:
        match = self._inner[self._quote].match(text, position)
        assert match is not None, "a text may be empty"
        end = match.end()
        if text.startswith(self._quote, end) and (is_over or text[end + 1 :].strip(" \t\r\n")):
            self._in_text = False
            return f'{_of_python(text[position:end])}"', end + 1
        end = len(text) if is_over else end
        return _of_python(text[position:end]), end

    def _constant(self, word: str) -> str:
        word = _OF_PYTHON.get(word.rstrip(), word.rstrip())
        for read in (partial(int, base=0), float) if re.search("[.eE]", word) else (partial(int, base=0),):
            with suppress(ValueError, OverflowError):
                if word.isascii() and not _JSON_NUMBER.fullmatch(word) and isfinite(number := read(word)):
                    return json.dumps(number)
        return word if self._is_strict else _as_json(word, KINDS)


def _of_python(text: str) -> str:
    """Convert the content of a Python text to the content of a JSON text. Unknown escapes are kept as text."""
    pieces = _ESCAPE.split(text)  # every second piece is an escape, without its backslash
    return "".join([_escape(piece) if number % 2 else _escaped(piece) for number, piece in enumerate(pieces)])


def _escape(escape: str) -> str:
    if len(escape) > 1:
        if escape[0] == "u":
            return f"\\{escape}"
        return _escaped(chr(int(escape, 8) if escape.isdecimal() else int(escape[1:], 16)))
    return f"\\{escape}" if escape in 'nrtbf"\\' else _escaped(escape if escape == "'" else f"\\{escape}")


def num_begun(text: str, tag: str) -> int:
    """Return the number of characters at the end of a text that may be the beginning of a tag."""
    return next(n for n in range(len(tag) - 1, -1, -1) if text.endswith(tag[:n]))


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_OF_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""Python's constants, which some templates, and therefore their models, write in place of JSON's."""


def _as_json(value: str, kinds: frozenset[str]) -> str:
    """Return a value as JSON: unchanged if it is JSON of one of the types (of any type if none of them is text),
    otherwise as a text.
    """
    stripped = value.strip()
    written = stripped if kinds == KINDS else _OF_PYTHON.get(stripped, stripped)
    try:
        try:
            read = json.loads(written, parse_constant=int)  # int refuses NaN, which is no JSON
        except ValueError:
            if not stripped.startswith(("[", "{")):
                raise
            written, end = PythonReader(is_strict=True).read(stripped, True)  # a list or a dict as Python writes it
            read = json.loads(written + stripped[end:], parse_constant=int)
    except (ValueError, RecursionError):
        return json.dumps(value, ensure_ascii=False)
    is_json = kinds == KINDS or "string" not in kinds or KIND_OF[type(read)] in kinds - {"string"}
    return written if is_json else json.dumps(value, ensure_ascii=False)


ArgumentsReader = ObjectReader | PairReader | BareReader
"""A reader of the arguments of one call."""


def reader_of(form: CallSyntax, tool: Tool) -> ArgumentsReader:
    """Return a reader of the arguments of a call."""
    if form.pairs is not None:
        return PythonReader() if form.pairs.is_python else PairReader(form.pairs, tool.kinds)
    return ObjectReader() if form.bare is None else BareReader(form.bare.quote)
