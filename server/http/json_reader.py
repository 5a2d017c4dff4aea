"""JSON reader that parses a body in pieces. Python's parser, like every faster one, holds the interpreter's lock for
the whole body, up to a second, also in a thread. This reader releases the lock every few milliseconds; its results
equal json's.

While reading, it refuses very many lists, objects and texts, and texts that fill memory: no request needs them.
"""

import codecs
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from lightwell.server.http.errors import BadRequest, PayloadTooLarge

MAX_CONTAINERS = 1 << 14
"""Most lists and objects in a body: each is handled individually."""
MAX_TEXTS = 1 << 16
"""Most texts in a body, including names of fields: some for each object."""
MAX_SCALARS = 1 << 16
"""Most numbers and words in a body, token ids not counted: each is checked, and written again, individually."""
MAX_WIDE_TEXT = 1 << 23
"""Most characters of one text that is not all ASCII: a single such character may make all of them take four bytes."""
_RUNS = 512
"""Most runs without an escape, and escapes, in one piece of a text."""
_MANY = 64
"""Least numbers in a list for which the least and the greatest are recorded."""
_PIECE = 1 << 16
"""Bytes of numbers and words that are parsed at once, and about as many of a text."""


def check_json_text(text: str, field: str) -> None:
    """Raise BadRequest for JSON in a text that may hold more values than a body."""
    if text.count(",") > MAX_SCALARS:
        raise BadRequest(
            f"{field}: the JSON has {text.count(',')} commas; at most {MAX_SCALARS} are accepted.",
            param=field,
            code="invalid_value",
        )


class Integers(list[int]):
    """A list of integers with a known minimum and maximum, so that a million numbers need not be checked again."""

    def __init__(self, values: list[int], least: int, greatest: int) -> None:
        super().__init__(values)
        self.least, self.greatest = least, greatest


class JsonReader:
    """Reads one body in UTF-8. `piece` is about how many bytes are read at once; no number may be longer."""

    def __init__(
        self, body: bytes, piece: int = _PIECE, may_be_ids: Callable[[Sequence[str]], bool] = lambda names: True
    ) -> None:
        """Make the reader. may_be_ids: returns whether integers may be token ids, by the names of their fields."""
        self._body = body
        self._may_be_ids = may_be_ids
        self._names: list[str] = []
        """Names of the fields around the current value."""
        self._num_scalars = 0
        self._at = len(codecs.BOM_UTF8) if body.startswith(codecs.BOM_UTF8) else 0  # as json does
        self._num_containers = 0
        self._num_texts = 0
        self._spaces = re.compile(rb"[ \t\n\r]{0,%d}" % piece)
        self._scalars = re.compile(rb'[^\[\]{}"]{0,%d}' % piece)
        # A pair of escaped surrogates is one character, so it must not be split.
        self._texts = re.compile(
            rb'(?s:[^"\\]{1,%d}|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u....|\\.){0,%d}'
            % (max(1, piece // _RUNS), min(piece, _RUNS))
        )

    @property
    def position(self) -> int:
        """Return the byte position at which the piece being read begins."""
        return self._at

    def read(self) -> Any:
        """Read the one value that the body contains; a long list of whole numbers is returned as `Integers`.

        Raises:
            json.JSONDecodeError: no JSON; `pos` is the byte.
            UnicodeDecodeError: a text is not UTF-8.
            RecursionError: nested too deeply.
            ValueError: a number of more digits than Python reads.
            PayloadTooLarge: see above.
        """
        value = self._value()
        if self._next():
            self._fail("Extra data")
        return value

    def _value(self) -> Any:
        match self._next():
            case b'"':
                return self._text()
            case b"[":
                return self._list()
            case b"{":
                return self._object()
        (value,) = self._parsed(self._run().partition(b",")[0])
        self._count_scalars(1)
        return value

    def _list(self) -> list[Any]:
        self._open()
        values: list[Any] = []
        if self._takes(b"]"):
            return values
        bounds: list[int] | None = []
        may_be_ids = self._may_be_ids(self._names)
        while True:
            scalars, comma, _ = self._run().rpartition(b",")
            if scalars:  # each of them is complete, since a comma follows
                piece = self._parsed(scalars)
                self._at += len(comma)
            else:
                piece = [self._value()]
            values += piece
            bounds = _bounds(bounds, piece)
            if scalars:
                self._count_scalars(0 if may_be_ids and bounds is not None else len(piece))
                continue
            if self._takes(b"]"):
                return values if bounds is None or len(values) < _MANY else Integers(values, *bounds)
            self._take(b",", "Expecting ',' delimiter")

    def _object(self) -> dict[str, Any]:
        self._open()
        values: dict[str, Any] = {}
        if self._takes(b"}"):
            return values
        while True:
            if self._next() != b'"':
                self._fail("Expecting property name enclosed in double quotes")
            name = self._text()
            self._take(b":", "Expecting ':' delimiter")
            self._names.append(name)
            values[name] = self._value()
            self._names.pop()
            if self._takes(b"}"):
                return values
            self._take(b",", "Expecting ',' delimiter")

    def _text(self) -> str:
        self._num_texts += 1
        if self._num_texts > MAX_TEXTS:
            raise _too_much(f"more than {MAX_TEXTS} texts and field names; at most {MAX_TEXTS} are accepted")
        begin, self._at = self._at, self._at + 1
        pieces: list[str] = []
        while not self._body.startswith(b'"', self._at):
            end = self._end(self._texts)
            while self._at < end < len(self._body) and 0x80 <= self._body[end] < 0xC0:  # inside a character
                end -= 1
            if end == self._at:
                self._at = begin
                self._fail("Unterminated string starting at")
            pieces.append(self._unescaped(self._body[self._at : end].decode()))
            self._at = end
        self._at += 1
        length = sum(map(len, pieces))
        if length > MAX_WIDE_TEXT and not all(map(str.isascii, pieces)):
            raise _too_much(f"a text of {length} characters; at most {MAX_WIDE_TEXT} are accepted unless all are ASCII")
        return "".join(pieces)

    def _unescaped(self, piece: str) -> str:
        try:
            text: str = json.loads(f'"{piece}"')
        except json.JSONDecodeError as error:
            self._at += len(piece[: error.pos - 1].encode())
            self._fail(error.msg)
        return text

    def _parsed(self, scalars: bytes) -> list[Any]:
        """Parse the next numbers and words, separated by commas."""
        try:
            values: list[Any] = json.loads(f"[{scalars.decode('latin-1')}]")
        except json.JSONDecodeError as error:
            self._at += error.pos - 1
            self._fail(error.msg)
        if not values:
            self._fail("Expecting value")
        self._at += len(scalars)
        return values

    def _run(self) -> bytes:
        """Return the next bytes up to a text, list or object, or a piece of them."""
        return self._body[self._at : self._end(self._scalars)]

    def _count_scalars(self, number: int) -> None:
        self._num_scalars += number
        if self._num_scalars > MAX_SCALARS:
            raise _too_much(
                f"more than {MAX_SCALARS} numbers and words, token ids not counted; at most {MAX_SCALARS} are "
                "accepted. Send arrays as base64"
            )

    def _open(self) -> None:
        self._at += 1
        self._num_containers += 1
        if self._num_containers > MAX_CONTAINERS:
            raise _too_much(
                f"more than {MAX_CONTAINERS} lists and objects; at most {MAX_CONTAINERS} are accepted. Send fewer "
                "messages, parts or inputs at once"
            )

    def _next(self) -> bytes:
        """Return the next byte that is not a space, without consuming it; empty at the end."""
        while True:
            self._at = self._end(self._spaces)
            byte = self._body[self._at : self._at + 1]
            if byte not in (b" ", b"\t", b"\n", b"\r"):
                return byte

    def _take(self, byte: bytes, problem: str) -> None:
        if not self._takes(byte):
            self._fail(problem)

    def _takes(self, byte: bytes) -> bool:
        is_next = self._next() == byte
        self._at += is_next
        return is_next

    def _end(self, pattern: re.Pattern[bytes]) -> int:
        found = pattern.match(self._body, self._at)
        assert found is not None, "every pattern may be empty"
        return found.end()

    def _fail(self, problem: str) -> NoReturn:
        error = json.JSONDecodeError(problem, "", 0)  # with the body, it would count the lines
        error.pos = self._at
        raise error


def _bounds(known: list[int] | None, piece: list[Any]) -> list[int] | None:
    """Return the minimum and maximum of all numbers of a list so far, or None if not all are integers."""
    if known is None or set(map(type, piece)) != {int}:
        return None
    numbers = [*known, min(piece), max(piece)]
    return [min(numbers), max(numbers)]


def _too_much(what: str) -> PayloadTooLarge:
    return PayloadTooLarge(f"The body holds {what}.", code="body_too_large")
