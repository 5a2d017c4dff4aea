"""uvicorn's HTTP parser with a bound on the head of a request, errors in the one shape from the very first byte, and
an end for clients that do not send their requests, do not read their answers, or are too many.

Knows nothing of routes and of what is answered.
"""

import asyncio
import fcntl
import logging
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from server.http.errors import ApiError, BadRequest, Unavailable, error_json
from server.observability.access_log import request_id

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers together."""
MAX_WRAPPING = 8
"""Bytes that may come for each byte of a chunked body: in chunks of one byte they are six."""
MIN_BODY_RATE = 16 * 1024
"""Bytes each of which gives the rest of the body a little more time: so many, a second."""
SPARE_CONNECTIONS = 32
"""Beyond `max_connections`: for probes, and for telling the others that there are too many."""
_SPARE_HEAD_TIMEOUT = 1.0
"""Seconds for the head of a request on one of them."""
_LINGER = 1.0
"""Seconds that a refused client has to read why."""
_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}
_LOOKS_PER_TIMEOUT = 4
"""How often within a timeout a connection is looked at: a slow one ends up to a quarter of it later."""


BODY_WRITER = "lightwell.body_writer"
"""Extension of the ASGI scope; its "writer" is a BodyWriter."""


def _ignore() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What clients may do with their connections. Times are seconds; 0 is no limit."""

    send_timeout: float = 0.0
    """In which a client takes nothing of its answer."""
    receive_timeout: float = 0.0
    """For the head of a request, and for its body, which gets a second more for each MIN_BODY_RATE bytes."""
    max_connections: int = 0
    spare_paths: tuple[bytes, ...] = ()
    """Beginnings of paths that are answered beyond `max_connections` too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionEvents:
    """What is called for each connection that is ended here."""

    on_stalled: Callable[[], None] = _ignore
    """Its client took nothing of its answer."""
    on_slow: Callable[[], None] = _ignore
    """Its client did not send its request in time."""
    on_refused: Callable[[], None] = _ignore
    """There were too many."""


class BodyWriter:
    """Writes pieces of a body past the application's `send`: no task of its own need wake to write each token."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def is_ready(self) -> bool:
        """Whether a piece may be written now: the answer, in chunks, has begun, and its client keeps up."""
        cycle = self._cycle
        is_over = cycle.disconnected or cycle.response_complete
        return bool(cycle.response_started and cycle.chunked_encoding) and not (is_over or cycle.flow.write_paused)

    def write(self, piece: bytes) -> None:
        """Write a piece that is not empty, right behind what was sent before; only while it `is_ready`."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))


def _end_body_by_closing(cycle: RequestResponseCycle) -> None:
    """Send a body of unknown length as it is, as HTTP/1.0 needs: its clients know no chunks, which uvicorn sends to
    all, and take the end of the connection for the body's (RFC 9112, 6.3). uvicorn closes it after every such answer.
    """
    send, is_plain = cycle.send, False

    async def send_plain(message: ASGISendEvent) -> None:
        nonlocal is_plain
        if message["type"] == "http.response.start":
            is_plain = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if is_plain:
                cycle.chunked_encoding = False
        elif is_plain and message["type"] == "http.response.body":
            cycle.expected_content_length = len(message.get("body", b""))  # uvicorn holds each piece against it
        await send(message)

    cycle.send = send_plain  # type: ignore[method-assign]


class HttpProtocol(HttpToolsProtocol):
    """One connection. A head that is too large is answered 431, also while it still comes; what is no HTTP, 400.

    So is a chunked body that is mostly no body: sizes of chunks, their extensions, and fields after the last one.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._in_head = True
        self._wrapping_bytes = 0
        """Of a body: what came, less MAX_WRAPPING times what of it is body."""
        self._is_refused = False

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        pending = len(data) if self._in_head else 0
        super().data_received(data)
        if self._in_head and not self._is_refused:
            self._head_bytes += pending
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse_head()
        elif not self._is_refused:
            self._wrapping_bytes += len(data)
            if self._wrapping_bytes > MAX_HEAD_BYTES + len(data):
                self._refuse(BadRequest("The body is chunked into too little of anything.", code="http_invalid"))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes, self._in_head = 0, True
        self._wrapping_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # fields after the body mean nothing here
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._refuse_head()
            return
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:  # the application runs only after this
            self.scope["extensions"] = {BODY_WRITER: {"writer": BodyWriter(self.cycle)}}
            if self.scope["http_version"] == "1.0":
                _end_body_by_closing(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._wrapping_bytes -= MAX_WRAPPING * len(body)
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._wrapping_bytes = 0
        if not self._is_refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls it for what its parser does not understand."""
        if not self._is_refused:
            self._refuse(BadRequest("This is not an HTTP/1.1 request.", code="http_invalid"))

    def _unsupported_upgrade_warning(self) -> None:
        """A client may ask for another protocol and is answered in this one: nothing that an operator should mend."""

    def _refuse_head(self) -> None:
        message = f"The request line and headers are too large; at most {MAX_HEAD_BYTES} bytes are accepted."
        self._refuse(ApiError(431, message, "invalid_request_error", code="head_too_large"))

    def _refused_id(self) -> str:
        """The id of the request that is refused: the client's, as far as its headers were read, or a new one."""
        headers = self.headers or []  # None before the first request, of which blank lines are no part
        sent = [value for name, value in headers if name == b"x-request-id"]
        return request_id(sent[0].decode("latin-1") if sent else "")

    def _is_behind(self) -> bool:
        """Whether what comes now is a further request, behind one whose answer is not over."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        return not cycle.more_body or bool(self.pipeline)

    def _refuse(self, error: ApiError, *, lingers: bool = True) -> None:
        """Answer without the application, and close. Amid an answer only close: what were written would be part of it.

        `lingers`: first only our direction. What the client is sending meanwhile would meet a closed socket, whose
        reset can overtake the answer.
        """
        self._is_refused = True
        is_begun = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        is_amid = is_begun or self._is_behind()
        if self.cycle is not None:  # what the application still says has nowhere to go
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body, request = error_json(error), self._refused_id()
        retry = "" if error.retry_after is None else f"retry-after: {error.retry_after}\r\n"
        head = (
            f"HTTP/1.1 {error.status} {_REASONS[error.status]}\r\ncontent-type: application/json\r\n"
            f"x-content-type-options: nosniff\r\nx-request-id: {request}\r\n"
            f"content-length: {len(body)}\r\n{retry}connection: close\r\n\r\n"
        )
        told = {"request_id": request, "status": error.status, "error": error.code}
        if self.client is not None:
            told["client"] = self.client[0]
        logger.info("%s refused: %s", request, error.code, extra={"fields": told})
        if is_amid:
            self.transport.abort()
            return
        self.transport.write(head.encode() + body)
        if lingers and self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(_LINGER, self.transport.abort)
        else:
            self.transport.close()


class CountedHttpProtocol(HttpProtocol):
    """Refused with 503 when there are more than `max_connections`; a few more are kept for probes."""

    def __init__(self, *args: Any, limits: ConnectionLimits, events: ConnectionEvents, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._events = events
        self._spare_end: asyncio.TimerHandle | None = None
        """Of a spare connection: when its request must be known."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        num_over = len(self.connections) - self._limits.max_connections
        if self._limits.max_connections and num_over > SPARE_CONNECTIONS:
            self._refuse_connection(lingers=False)
        elif self._limits.max_connections and num_over > 0:
            self._spare_end = self.loop.call_later(_SPARE_HEAD_TIMEOUT, self._refuse_connection)

    def connection_lost(self, exc: Exception | None) -> None:
        self._take_spare_end()
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        is_spare = self._take_spare_end()
        path = self.url.removeprefix(self.root_path.encode())
        if is_spare and not path.startswith(self._limits.spare_paths):
            self._refuse_connection()
            return
        super().on_headers_complete()
        if is_spare and not self._is_refused:
            self.cycle.keep_alive = False

    def _take_spare_end(self) -> bool:
        """Whether it is a spare connection whose request is not known yet; then its time ends no more."""
        if self._spare_end is None:
            return False
        self._spare_end.cancel()
        self._spare_end = None
        return True

    def _refuse_connection(self, *, lingers: bool = True) -> None:
        self._events.on_refused()
        limit = self._limits.max_connections
        message = f"More than {limit} connections are open; at most {limit} are accepted (--max-connections)."
        self._refuse(Unavailable(message, code="too_many_connections", retry_after=1), lingers=lingers)


class WatchedHttpProtocol(CountedHttpProtocol):
    """Ends its connection when the client does not send its request, or take its answer, in time.

    Sending: the head has `receive_timeout` seconds, the body as many and one more for each MIN_BODY_RATE bytes that
    came. While the application does not read what came, or answers the request before, nobody waits for the client.

    Taking: what waits is what this process and the kernel hold; taken is what the client's machine acknowledged. While
    an answer is written faster than it is taken, the writer rests, and an answer that is complete grows no more: in
    both states the bytes can only become fewer. In any other the server itself is what the client waits for.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        timeouts = [limit for limit in (self._limits.send_timeout, self._limits.receive_timeout) if limit]
        self._interval = min(timeouts) / _LOOKS_PER_TIMEOUT

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._unsent = 0
        self._taken_at = self.loop.time()
        self._awaited_since: float | None = self.loop.time()
        """When the part of a request that is to come now was first waited for; None between requests."""
        self._came = 0
        """Bytes of that part, of a body."""
        self._next_look = self.loop.call_later(self._interval, self._look)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._next_look.cancel()
        super().connection_lost(exc)

    # ---- what comes

    def data_received(self, data: bytes) -> None:
        is_between = self.cycle is not None and self.cycle.response_complete
        if self._awaited_since is None and is_between:
            self._await_next()  # also of blank lines, which are no request and end uvicorn's own wait for one
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_next()

    def on_headers_complete(self) -> None:
        self._await_next()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._is_refused and not self.cycle.response_complete:
            self._came += len(body)  # what nobody wants any more earns no more time
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._awaited_since = None
        super().on_message_complete()

    def _await_next(self) -> None:
        self._awaited_since, self._came = self.loop.time(), 0

    # ---- what the transport and the application tell

    def resume_writing(self) -> None:
        """The client took enough for the next piece to be written."""
        super().resume_writing()
        self._taken_at = self.loop.time()

    def on_response_complete(self) -> None:
        """What waits may be more than at the last look."""
        super().on_response_complete()
        self._taken_at = self.loop.time()

    # ---- the looks

    def _look(self) -> None:
        if self._is_stalled():
            logger.warning(
                "closed the connection of %s: it took nothing of its answer for %g s, %d bytes waited (--send-timeout)",
                self._client_name(),
                self._limits.send_timeout,
                self._unsent,
            )
            self._events.on_stalled()
            self.transport.abort()
        elif self._is_slow():
            self._end_slow()
        else:
            self._next_look = self.loop.call_later(self._interval, self._look)

    def _is_stalled(self) -> bool:
        now, before, self._unsent = self.loop.time(), self._unsent, self._count_unsent()
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not self._unsent or self._unsent < before or (is_answering and not self.flow.write_paused):
            self._taken_at = now
        return bool(self._limits.send_timeout) and now - self._taken_at >= self._limits.send_timeout

    def _is_slow(self) -> bool:
        if not self._limits.receive_timeout or self._awaited_since is None:
            return False
        if self.flow.read_paused or self._is_behind():
            self._await_next()
        return self.loop.time() - self._awaited_since >= self._limits.receive_timeout + self._came / MIN_BODY_RATE

    def _end_slow(self) -> None:
        """With 408, unless the client said nothing at all, or has an answer already."""
        part = "head" if self._in_head else "body"
        logger.info(
            "closed the connection of %s: the %s of its request did not come in time (--receive-timeout)",
            self._client_name(),
            part,
        )
        self._events.on_slow()
        is_answered = not self._in_head and self.cycle.response_started
        if is_answered or (self._in_head and not self._head_bytes):
            self.transport.abort()
            return
        more = "" if self._in_head else f", and one more for each {MIN_BODY_RATE} bytes"
        message = f"The {part} of the request came too slowly; {self._limits.receive_timeout:g} s are accepted{more}."
        self._refuse(ApiError(408, message, "timeout_error", code="request_timeout"))

    def _client_name(self) -> str:
        return "a client" if self.client is None else ":".join(map(str, self.client))

    def _count_unsent(self) -> int:
        """Bytes in this process and in the kernel (tcp(7), SIOCOUTQ) that the client's machine has not acknowledged."""
        in_kernel = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0" * 4)
        return int(self.transport.get_write_buffer_size() + struct.unpack("i", in_kernel)[0])


def http_protocol(limits: ConnectionLimits, events: ConnectionEvents) -> Callable[..., HttpProtocol]:
    """The protocol of a server with these limits; `events` says what is called when one is met."""
    is_watched = limits.send_timeout or limits.receive_timeout
    return partial(WatchedHttpProtocol if is_watched else CountedHttpProtocol, limits=limits, events=events)
