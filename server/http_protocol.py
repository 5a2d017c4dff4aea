"""uvicorn's HTTP parser with a bound on the head of a request, errors in the one shape from the very first byte, and
an end for clients that do not read their answers.

Knows nothing of routes and of what is answered.
"""

import asyncio
import fcntl
import logging
import struct
import termios
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.errors import ApiError, BadRequest, error_json

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers together."""
_REASONS = {400: "Bad Request", 431: "Request Header Fields Too Large"}
_LOOKS_PER_TIMEOUT = 4
"""How often within the send timeout a connection is looked at: a stalled one ends up to a quarter of it later."""


class HttpProtocol(HttpToolsProtocol):
    """One connection. A head that is too large is answered 431, also while it still comes; what is no HTTP, 400."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._in_head = True
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

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes, self._in_head = 0, True

    def on_headers_complete(self) -> None:
        self._in_head = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._refuse_head()
        else:
            super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls it for what its parser does not understand."""
        if not self._is_refused:
            self._refuse(BadRequest("This is not an HTTP/1.1 request.", code="http_invalid"))

    def _refuse_head(self) -> None:
        message = f"The request line and headers are too large; at most {MAX_HEAD_BYTES} bytes are accepted."
        self._refuse(ApiError(431, message, "invalid_request_error", code="head_too_large"))

    def _refuse(self, error: ApiError) -> None:
        self._is_refused = True
        body = error_json(error)
        head = (
            f"HTTP/1.1 {error.status} {_REASONS[error.status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


class WatchedHttpProtocol(HttpProtocol):
    """Ends its connection once the client has taken nothing of what waits for it in `send_timeout` seconds.

    What waits is what this process and the kernel hold; taken is what the client's machine acknowledged. While an
    answer is written faster than it is taken, the writer rests, and an answer that is complete grows no more: in both
    states the bytes can only become fewer. In any other the server itself is what the client waits for.
    """

    def __init__(self, *args: Any, send_timeout: float, on_stalled_client: Callable[[], None], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._send_timeout = send_timeout
        self._on_stalled_client = on_stalled_client

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._unsent = 0
        self._taken_at = self.loop.time()
        self._next_look = self._look_later()

    def connection_lost(self, exc: Exception | None) -> None:
        self._next_look.cancel()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """The client took enough for the next piece to be written."""
        super().resume_writing()
        self._taken_at = self.loop.time()

    def on_response_complete(self) -> None:
        """What waits may be more than at the last look."""
        super().on_response_complete()
        self._taken_at = self.loop.time()

    def _look_later(self) -> asyncio.TimerHandle:
        return self.loop.call_later(self._send_timeout / _LOOKS_PER_TIMEOUT, self._look)

    def _look(self) -> None:
        now, before, self._unsent = self.loop.time(), self._unsent, self._count_unsent()
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if not self._unsent or self._unsent < before or (is_answering and not self.flow.write_paused):
            self._taken_at = now
        if now - self._taken_at < self._send_timeout:
            self._next_look = self._look_later()
            return
        logger.warning(
            "closed the connection of %s: it took nothing of its answer for %g s, %d bytes waited (--send-timeout)",
            "a client" if self.client is None else ":".join(map(str, self.client)),
            self._send_timeout,
            self._unsent,
        )
        self._on_stalled_client()
        self.transport.abort()

    def _count_unsent(self) -> int:
        """Bytes in this process and in the kernel (tcp(7), SIOCOUTQ) that the client's machine has not acknowledged."""
        in_kernel = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0" * 4)
        return int(self.transport.get_write_buffer_size() + struct.unpack("i", in_kernel)[0])


def http_protocol(send_timeout: float, on_stalled_client: Callable[[], None]) -> Callable[..., HttpProtocol]:
    """The protocol of a server that gives clients `send_timeout` seconds to take something; 0 gives them all time.

    `on_stalled_client` is called for each connection that is ended.
    """
    if not send_timeout:
        return HttpProtocol
    return partial(WatchedHttpProtocol, send_timeout=send_timeout, on_stalled_client=on_stalled_client)
