"""Converts the bytes of a stream to its chunks, and httpx's errors to ours. It is pure; both clients use it."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import httpx

from lightwell_client._exceptions import ConnectionFailed, InvalidResponse, LightwellError, StreamInterrupted, TimedOut
from lightwell_client._sse import ServerSentEvent, SseDecoder
from lightwell_client._wire import EVENT_STREAM

T = TypeVar("T")

END_MARK = "[DONE]"


class EventReader(Generic[T]):
    """Takes the bytes of one stream, and yields its chunks; it distinguishes a good end from a bad one."""

    def __init__(self, parse: Callable[[Any], T], content_type: str) -> None:
        """Make the reader.

        Raises:
            InvalidResponse: the answer is no event stream.
        """
        if content_type.partition(";")[0].strip().lower() != EVENT_STREAM:
            raise InvalidResponse(f"expected a stream of {EVENT_STREAM}, got {content_type or 'no content type'}")
        self._parse = parse
        self._decoder = SseDecoder()
        self._done = False

    def feed(self, piece: bytes) -> Iterator[T]:
        """Yield the chunks that `piece` completes; text after the end mark is ignored.

        Raises:
            StreamInterrupted: there is an error event.
            InvalidResponse: an event is not a chunk.
        """
        if self._done:
            return
        try:
            events = self._decoder.feed(piece)
        except UnicodeDecodeError as error:
            raise InvalidResponse(f"the stream is not UTF-8: {error}") from error
        for event in events:
            if event.data == END_MARK:
                self._done = True
                return
            _raise_if_error(event)
            yield self._parse(event.data)

    def finish(self, broken_by: httpx.HTTPError | None = None) -> None:
        """Check the end, after the bytes have ended or broken off.

        Raises:
            StreamInterrupted: the stream ended without the end mark.
            TimedOut: the server fell silent before it.
        """
        if self._done:
            return
        if isinstance(broken_by, httpx.TimeoutException):
            raise failure_of(broken_by) from broken_by
        why = f": {broken_by or type(broken_by).__name__}" if broken_by is not None else ""
        raise StreamInterrupted(f"the stream ended before its end mark {END_MARK!r}{why}") from broken_by


def _raise_if_error(event: ServerSentEvent) -> None:
    """Raise the error of an event: one named "error", or (as others send them) a plain event with an `error` field."""
    if event.event != "error" and '"error"' not in event.data:
        return
    try:
        body = json.loads(event.data)
    except ValueError:
        body = {}
    error = body.get("error") if isinstance(body, dict) else None
    if event.event == "error" and not isinstance(error, dict):
        error = body if isinstance(body, dict) and body else {"message": event.data}
    if isinstance(error, str):
        error = {"message": error}
    if isinstance(error, dict):
        message = str(error.get("message") or "the server gave no reason")
        raise StreamInterrupted(message, type=error.get("type"), code=error.get("code"))


def failure_of(error: httpx.HTTPError) -> LightwellError:
    """Return httpx's error as ours; a connection that could not be made in time has failed, not timed out."""
    what = str(error) or type(error).__name__
    try:
        where = f" ({error.request.url})"
    except RuntimeError:  # httpx: no request is attached
        where = ""
    if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
        return TimedOut(f"{what}{where}")
    if isinstance(error, httpx.DecodingError):
        return InvalidResponse(f"{what}{where}")
    connection_errors = (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError, httpx.ConnectTimeout)
    return (ConnectionFailed if isinstance(error, connection_errors) else LightwellError)(f"{what}{where}")
