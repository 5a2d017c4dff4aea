"""Reads the arguments of a call out of a text that comes in pieces, and gives them as JSON. It knows no message."""

import json
from collections.abc import Callable
from typing import Protocol

from model.tokenization.chat_formats.call_syntax import PairSyntax


class ArgumentsReader(Protocol):
    """Reads the arguments of one call."""

    is_whole: bool
    """Whether all of the arguments were read."""

    def read(self, text: str, is_over: bool) -> tuple[str, int]:
        """Return what is new of the arguments, and how many characters of the text that tells. What is not read is
        passed again, with more; if the text `is_over`, nothing follows.
        """
        ...


class ObjectReader:
    """Reads arguments that are JSON: it finds where the object ends."""

    def __init__(self) -> None:
        self.is_whole = False
        self._depth = 0
        self._in_string = self._is_escaped = False

    def read(self, text: str, is_over: bool) -> tuple[str, int]:
        for position, char in enumerate(text):
            if self._in_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif char == "\\":
                    self._is_escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.is_whole = True
                    return text[: position + 1], position + 1
        return text, len(text)


class PairReader:
    """Reads arguments that are written one by one, each name and value between tags, and writes them as JSON."""

    def __init__(self, syntax: PairSyntax, is_text: Callable[[str], bool]) -> None:
        """`is_text` tells of a name whether its value is text, which is written without quotes."""
        self.is_whole = False
        self._syntax = syntax
        self._is_text_of = is_text
        self._num_pairs = 0
        self._is_text: bool | None = None
        """Whether the value that is being read is text; None before a name."""

    def read(self, text: str, is_over: bool) -> tuple[str, int]:
        if self._is_text is None:
            return self._read_name(text, is_over)
        return self._read_text(text, is_over) if self._is_text else self._read_value(text, is_over)

    def _read_name(self, text: str, is_over: bool) -> tuple[str, int]:
        before, after = self._syntax.before_name, self._syntax.after_name
        if text.startswith(before):
            end = text.find(after, len(before))
            if end < 0:
                return "", 0
            name = text[len(before) : end]
            self._is_text = self._is_text_of(name)
            self._num_pairs += 1
            opening = "{" if self._num_pairs == 1 else ", "
            quote = '"' if self._is_text else ""
            return f"{opening}{json.dumps(name)}: {quote}", end + len(after)
        if before.startswith(text) and not is_over:
            return "", 0
        self.is_whole = True
        return "}" if self._num_pairs else "{}", 0

    def _read_text(self, text: str, is_over: bool) -> tuple[str, int]:
        after = self._syntax.after_value
        value, tag, _ = text.partition(after)
        if tag:
            self._is_text = None
            return f'{_escaped(value)}"', len(value) + len(after)
        keep = 0 if is_over else next(n for n in range(len(after) - 1, -1, -1) if text.endswith(after[:n]))
        return _escaped(text[: len(text) - keep]), len(text) - keep

    def _read_value(self, text: str, is_over: bool) -> tuple[str, int]:
        value, tag, _ = text.partition(self._syntax.after_value)
        if not tag:
            return (value, len(text)) if is_over else ("", 0)
        self._is_text = None
        return _as_json(value), len(value) + len(tag)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _as_json(value: str) -> str:
    """Return a value, which is JSON, or else text."""
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return json.dumps(value, ensure_ascii=False)
    return value.strip()
