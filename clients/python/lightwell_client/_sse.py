"""Reads server-sent events from bytes, as they come. It parses the event-stream format, independent of the events'
meaning.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event: its name ("message" unless the stream says otherwise) and its data lines joined."""

    event: str
    data: str


class SseDecoder:
    """Takes bytes in pieces of any size, and returns whole events. Format: WHATWG HTML, "Server-sent events", 9.2.6.

    Lines are cut on bytes, before decoding, so that a piece may end in the middle of a character.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._name = ""
        self._data: list[str] = []
        self._at_start = True
        self._after_cr = False

    def feed(self, piece: bytes) -> list[ServerSentEvent]:
        """Return the events that `piece` completes.

        Raises:
            UnicodeDecodeError: a line is not UTF-8.
        """
        if self._after_cr and piece:
            # The last piece ended in CR, which ended a line at once: an LF after it belongs to the same line end.
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        if not piece:
            return []
        self._after_cr = piece.endswith(b"\r")
        *lines, self._buffer = (self._buffer + piece).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        events = (self._take_line(line.decode()) for line in lines)
        return [event for event in events if event is not None]

    def _take_line(self, line: str) -> ServerSentEvent | None:
        if self._at_start:
            line = line.removeprefix("\ufeff")
            self._at_start = False
        if line == "":
            name, data = self._name, self._data
            self._name, self._data = "", []
            return ServerSentEvent(name or "message", "\n".join(data)) if data else None
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        return None  # comments (an empty field name), id, retry and unknown fields say nothing here
