"""uvicorn's HTTP parser with a limit on the head of a request, and with errors in the common shape from the first byte.

It overrides private parts of uvicorn, so pyproject.toml pins one version; tests/server/http must pass for another.
Independent of routes.
"""

import asyncio
import logging
from http import HTTPStatus
from typing import Any

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from lightwell.server.http.error_shapes import error_json
from lightwell.server.http.errors import ApiError, BadRequest
from lightwell.server.observability.access_log import request_id

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
"""Most bytes of request line and headers together."""
MAX_WRAPPING = 8
"""Most bytes that may come for each byte of a chunked body; in chunks of one byte there are six."""
_PIECE = 1 << 15
"""Bytes that are parsed at once; they may hold thousands of chunks, or hundreds of requests."""
_LINGER = 1.0
"""Seconds that a refused client has for reading why."""
BODY_WRITER = "lightwell.body_writer"
"""Extension of the ASGI scope: its "writer" is a BodyWriter."""


class BodyWriter:
    """Writes pieces of a body past the application's `send`, into uvicorn's connection.

    So the message that brings a token also writes it; through `send` it would wake the request's task and pass all of
    its generators and wrappers. Of the default model on 2 cores, a token of 64 streams then costs the API process 183
    us of CPU time instead of 100, of 8 streams 213 instead of 136, and 64 streams get a tenth fewer tokens a second.
    """

    def __init__(self, cycle: RequestResponseCycle, loop: asyncio.AbstractEventLoop) -> None:
        self._cycle = cycle
        self._loop = loop
        self._pieces: list[bytes] = []
        """Pieces to be written in the next turn of the event loop; the pieces of one step make one packet."""

    @property
    def is_ready(self) -> bool:
        """Return whether a piece may be written now: the answer, in chunks, has begun, and its client keeps up."""
        cycle = self._cycle
        is_over = cycle.disconnected or cycle.response_complete or cycle.flow.write_paused
        return not is_over and cycle.response_started and cycle.chunked_encoding is True

    def write(self, piece: bytes) -> None:
        """Write a non-empty piece after the bytes that were sent before; only while `is_ready`. The application may
        send more only after the event loop's next turn.
        """
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(piece)

    def _flush(self) -> None:
        body = b"".join(self._pieces)
        self._pieces.clear()
        if not self._cycle.disconnected:
            self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))


def _end_body_by_closing(cycle: RequestResponseCycle) -> None:
    """Send a body of unknown length without chunks. Clients of HTTP/1.0 do not understand the chunks that uvicorn
    sends, and read to the end of the connection (RFC 9112, 6.3). uvicorn closes it after every such answer.
    """
    send, is_plain = cycle.send, False

    async def send_plain(message: ASGISendEvent) -> None:
        nonlocal is_plain
        if message["type"] == "http.response.start":
            is_plain = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if is_plain:
                cycle.chunked_encoding = False
        elif is_plain and message["type"] == "http.response.body":
            cycle.expected_content_length = len(message.get("body", b""))  # uvicorn compares each piece with it
        await send(message)

    cycle.send = send_plain  # type: ignore[method-assign]


class HttpProtocol(HttpToolsProtocol):
    """One connection. A head that is too large is answered with 431, even while it is arriving, and bytes that are not
    HTTP with 400. A chunked body with more overhead than body (sizes, extensions, trailers) gets 400 too.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._in_head = True
        self._wrapping_bytes = 0
        """Bytes that came since the head, less MAX_WRAPPING times the bytes of body among them."""
        self._has_ended = False
        """True if a request ended in the last piece; the size of the next head in that piece is then unknown."""
        self._unread = b""
        self._is_reading = False
        self._is_refused = False

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._unread += data
        if not self._is_reading:
            self._read_piece()

    def _read_piece(self) -> None:
        """Parse a piece of the received bytes; the event loop runs before the next piece."""
        piece, self._unread = self._unread[:_PIECE], self._unread[_PIECE:]
        if self.parser is not None and not self._is_refused:
            self._parse(piece)
        if self._is_refused:  # the rest is read and dropped until the connection ends
            self._unread = b""
            self.flow.resume_reading()
        elif self._unread:
            self.flow.pause_reading()
            self.loop.call_soon(self._read_piece)
        elif self._is_reading and not (self.pipeline or (self.cycle and len(self.cycle.body) > HIGH_WATER_LIMIT)):
            self.flow.resume_reading()
        self._is_reading = bool(self._unread)

    def _parse(self, data: bytes) -> None:
        self._has_ended = False
        super().data_received(data)
        if self._in_head and not self._is_refused:
            self._head_bytes += 1 if self._has_ended else len(data)
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
        if self._in_head:  # trailers are ignored
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        num_hosts = sum(name == b"host" for name, _ in self.headers)
        if size > MAX_HEAD_BYTES:
            self._refuse_head()
        elif num_hosts != 1 and (num_hosts or self.parser.get_http_version() != "1.0"):  # RFC 9112, 3.2
            message = f"The request has {num_hosts} Host headers; one is accepted, or none in HTTP/1.0."
            self._refuse(BadRequest(message, code="http_invalid"))
        if self._is_refused:
            return
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:  # the application runs only after this
            self.scope["extensions"] = {BODY_WRITER: {"writer": BodyWriter(self.cycle, self.loop)}}
            if self.scope["http_version"] == "1.0":
                _end_body_by_closing(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._wrapping_bytes -= MAX_WRAPPING * len(body)
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._wrapping_bytes, self._has_ended = 0, True
        if not self._is_refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that uvicorn's parser rejects; uvicorn calls this."""
        if not self._is_refused:
            self._refuse(BadRequest("This is not an HTTP/1.1 request.", code="http_invalid"))

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: a client that offers another protocol is answered in this one, and the operator need not act."""

    def _refuse_head(self) -> None:
        message = f"The request line and headers are too large; at most {MAX_HEAD_BYTES} bytes are accepted."
        self._refuse(ApiError(431, message, "invalid_request_error", code="head_too_large"))

    def _refused_id(self) -> str:
        """Return the client's id of the refused request, if that header was read, or a new one."""
        headers = self.headers or []  # None before the first request
        sent = [value for name, value in headers if name == b"x-request-id"]
        return request_id(sent[0].decode("latin-1") if sent else "")

    def _is_behind(self) -> bool:
        """Return whether the arriving bytes are a further request while an earlier answer is not complete."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        return not cycle.more_body or bool(self.pipeline)

    def _refuse(self, error: ApiError, *, lingers: bool = True) -> None:
        """Answer without the application, and close. In the middle of an answer only close: more bytes would be part of
        it.

        lingers: close only our direction at first. Bytes that arrive at a closed socket cause a reset, which can
        overtake the answer.
        """
        self._is_refused = True
        is_begun = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        is_amid = is_begun or self._is_behind()
        if self.cycle is not None:  # further output of the application is dropped
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body, request = error_json(error), self._refused_id()
        retry = "" if error.retry_after is None else f"retry-after: {error.retry_after}\r\n"
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
            f"x-content-type-options: nosniff\r\nx-request-id: {request}\r\n"
            f"content-length: {len(body)}\r\n{retry}connection: close\r\n\r\n"
        )
        fields = {"request_id": request, "status": error.status, "error": error.code}
        if self.client is not None:
            fields["client"] = self.client[0]
        logger.info("%s refused: %s", request, error.code, extra={"fields": fields})
        if is_amid:
            self.transport.abort()
            return
        self.transport.write(head.encode() + body)
        if lingers and self.transport.can_write_eof():
            self.transport.write_eof()
            self.loop.call_later(_LINGER, self.transport.abort)
        else:
            self.transport.close()
