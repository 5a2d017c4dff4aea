"""Log of every process: each event is one line on stderr, as text or as a JSON object. Logging never blocks.

A separate thread writes, so a stalled reader blocks only that thread. Lines that do not fit in its memory meanwhile are
dropped, counted and reported. Outside input cannot begin a line: control characters are escaped, and the lines of a
traceback are indented.
"""

import json
import logging
import os
import select
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import TextIO

from lightwell.server.observability.access_log import current_record

_MAX_WAITING_CHARACTERS = 4 << 20
"""Most characters of lines that stderr has not taken yet."""
_MAX_CHAIN = 9
"""Most exceptions of a chain that are looked at."""
_LAST_WRITES = 1.0
"""Seconds that stderr has at the end to take the waiting lines."""
_STDERR = 2
_CLEAR_LINE = "\r\x1b[K"
_COLOURS = {"debug": 2, "info": 36, "warning": 33, "error": 31, "critical": 31}
"""Colours of levels, by their numbers in the control sequences of terminals."""


class _Formatter(logging.Formatter):
    """Common part of both formats.

    `extra={"fields": {...}}` adds fields to a JSON object; the message already contains them in words.
    `extra={"attached": {...}}` adds fields to a JSON object, and JSON to the end of a line of text.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def event(self, record: logging.LogRecord) -> dict[str, object]:
        """Return everything but the exception."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        request = current_record.get()
        event: dict[str, object] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "pid": record.process,
            "message": _message(record),
        }
        if request is not None:
            event["request_id"] = request.request_id
        return event | getattr(record, "fields", {})

    def exception(self, record: logging.LogRecord) -> str:
        """Return the traceback, or an empty string, without the values of the request that pydantic's errors quote."""
        text = self.formatException(record.exc_info) if record.exc_info else ""
        error = record.exc_info[1] if record.exc_info else None
        for _ in range(_MAX_CHAIN):
            title, errors = getattr(error, "title", None), getattr(error, "errors", None)
            if title and errors:
                text = text.replace(str(error), f"{title}: {', '.join([each['type'] for each in errors()])}")
            error = error and (error.__cause__ or error.__context__)
        return text


def as_json(level: str, message: str) -> str:
    """Return the line of an event that does not go through logging."""
    record = logging.LogRecord("lightwell", logging.getLevelNamesMapping()[level.upper()], "", 0, message, None, None)
    return JsonFormatter("api").format(record)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage().rstrip()
    except Exception as error:  # wrong arguments must not lose the line, or write past this handler
        return f"{record.msg!r} with arguments that do not fit: {error!r}"


class JsonFormatter(_Formatter):
    """Formats an event as one JSON object in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        event = self.event(record) | getattr(record, "attached", {})
        if text := self.exception(record):
            event["exception"] = text
        return json.dumps(event, default=str)


class TextFormatter(_Formatter):
    """Formats an event as `time LEVEL process logger: message`, with the request's id if the message lacks it.

    On a terminal the level is coloured, and a line first clears the progress bar.
    """

    def __init__(self, process: str) -> None:
        super().__init__(process)
        self._is_on_terminal = is_terminal(sys.stderr)

    def format(self, record: logging.LogRecord) -> str:
        event = self.event(record)
        line = "{time} {} {process} {logger}: {message}".format(str(event["level"]).upper(), **event)
        request_id = event.get("request_id")
        if request_id is not None and request_id not in str(event["message"]).split():
            line += f" request_id={request_id}"
        for name, value in getattr(record, "attached", {}).items():
            line += f" {name}={json.dumps(value, default=str)}"
        lines = [_escaped(line), *("    " + _escaped(part) for part in self.exception(record).split("\n") if part)]
        text = "\n".join(lines)
        if not self._is_on_terminal:
            return text
        level = str(event["level"])
        return _CLEAR_LINE + text.replace(f" {level.upper()} ", f" {in_colour(level, level.upper())} ", 1)


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal that understands control sequences."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def in_colour(level: str, text: str) -> str:
    """Return the text in the colour of a level for a terminal on stderr, unless NO_COLOR is set."""
    has_colour = level in _COLOURS and is_terminal(sys.stderr) and not os.environ.get("NO_COLOR")
    return f"\x1b[{_COLOURS[level]}m{text}\x1b[0m" if has_colour else text


def _escaped(text: str) -> str:
    """Return the text with escapes for characters that end a line or control a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class LogWriter(logging.Handler):
    """Hands formatted lines to a thread that writes them. `num_dropped` counts lines that were not written."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.num_dropped = 0
        self._descriptor = descriptor
        self._lines: list[str] = []
        self._num_waiting = 0
        self._num_reported = 0
        self._is_writing = False
        self._changed = threading.Condition()
        threading.Thread(target=self._write_forever, name="log-writer", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record) + "\n"
        with self._changed:
            if self._num_waiting + len(line) > _MAX_WAITING_CHARACTERS:
                self.num_dropped += 1
                return
            self._lines.append(line)
            self._num_waiting += len(line)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything is written, for a second at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._is_writing, _LAST_WRITES)

    def _write_forever(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                lines, self._lines, self._num_waiting = self._lines, [], 0
                self._is_writing = True
            is_written = _write(self._descriptor, "".join(lines).encode("utf-8", "backslashreplace"))
            with self._changed:
                if not is_written:
                    self.num_dropped += len(lines)
                elif self.num_dropped > self._num_reported:
                    self._lines.append(self._report(self.num_dropped - self._num_reported))
                    self._num_reported = self.num_dropped
                self._is_writing = False
                self._changed.notify_all()

    def _report(self, count: int) -> str:
        text = "%d log lines were dropped: stderr did not take them"
        record = logging.LogRecord(__name__, logging.WARNING, "", 0, text, (count,), None)
        return self.format(record) + "\n"


def _write(descriptor: int, data: bytes) -> bool:
    """Write all of the data, and wait if necessary. Return False if the reader is gone, or the disk is full."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # made non-blocking by another process that shares it
            room = select.poll()
            room.register(descriptor, select.POLLOUT)
            room.poll()
        except OSError:
            return False
    return True


def num_dropped_lines() -> int:
    """Return how many log lines of this process stderr did not take."""
    return sum(handler.num_dropped for handler in logging.getLogger().handlers if isinstance(handler, LogWriter))


def flush() -> None:
    """Give the logged lines a moment to be written, before the process ends or something else goes to stderr."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def configure_logging(level: str, style: str, process: str = "api") -> None:
    """Send every event of this process to stderr, from `level` on, as `text` or `json` lines that name the process.

    Warnings and uncaught exceptions, in any thread, are events too.
    """
    if sys.stderr is None and not _is_open(_STDERR):
        # stderr was closed at the start. A socket could get its number, and our lines would go to a client.
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDERR)
    handler: logging.Handler = logging.NullHandler() if sys.stderr is None else LogWriter(_STDERR)
    handler.setFormatter(JsonFormatter(process) if style == "json" else TextFormatter(process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "litserve"):
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
    logging.getLogger("uvicorn.access").disabled = True  # the access log has more
    if level != "debug":
        for name in ("uvicorn", "uvicorn.error", "litserve", "asyncio"):
            logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_news)
    logging.captureWarnings(True)
    _log_uncaught_exceptions()


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for uvicorn's report of an exception that `server.http.error_handlers` has logged."""
    return current_record.get() is None or not record.getMessage().startswith("Exception in ASGI application")


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _log_uncaught_exceptions() -> None:
    log = logging.getLogger(__name__)

    def uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        log.critical("an uncaught exception ends the process", exc_info=(kind, error, traceback))

    def in_thread(args: threading.ExceptHookArgs) -> None:
        name = "?" if args.thread is None else args.thread.name
        if args.exc_value is not None:
            log.error("an exception ended thread %s", name, exc_info=args.exc_value)

    def unraisable(args: "sys.UnraisableHookArgs") -> None:
        log.error("an exception was ignored in %r: %s", args.object, args.err_msg, exc_info=args.exc_value)

    sys.excepthook, threading.excepthook, sys.unraisablehook = uncaught, in_thread, unraisable
