"""Limits of connections: ends connections of clients that do not send their requests, do not read their answers, or
are too many. `server.http.connection` limits the size of a request. Independent of routes.
"""

import asyncio
import fcntl
import logging
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from lightwell.server.http.connection import HttpProtocol
from lightwell.server.http.errors import ApiError, Unavailable

logger = logging.getLogger(__name__)

MIN_BODY_RATE = 16 * 1024
"""Bytes per second: each such number of received bytes extends the time limit of a body by a second."""
SPARE_CONNECTIONS = 32
"""Connections in addition to `max_connections`, for probes and for answers with 503."""
_SPARE_HEAD_TIMEOUT = 1.0
"""Seconds for the head of a request on a spare connection."""
_CHECKS_PER_TIMEOUT = 4
"""Checks of a connection within its timeout; a slow connection ends at most a quarter of the timeout late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The limits of clients' connections. Times are in seconds; 0 is no limit."""

    send_timeout: float = 0.0
    """Time in which a client may take nothing of its answer."""
    receive_timeout: float = 0.0
    """Time for the head of a request, and for its body, which gets a second more for each MIN_BODY_RATE bytes."""
    max_connections: int = 0
    spare_paths: tuple[bytes, ...] = ()
    """Path prefixes that are answered even beyond `max_connections`."""


EndReason = Literal["stalled", "slow", "refused"]
"""Why a connection is ended here. stalled: the client took nothing of its answer; slow: it did not send its request in
time; refused: there were too many connections.
"""
OnEnd = Callable[[EndReason], None]


class LimitedHttpProtocol(HttpProtocol):
    """A connection that ends if there are too many, or if its client does not send its request or read its answer.

    Number: a connection gets 503 above `max_connections`. A few spare connections are kept for probes.

    Sending: the head has `receive_timeout` seconds; the body has the same time and a second for each MIN_BODY_RATE
    bytes received. The timer does not run while the application leaves received bytes unread, or answers an earlier
    request.

    Reading: unsent bytes are in this process and in the kernel; the client's machine acknowledges bytes that it took.
    In two states the unsent bytes can only decrease: while the writer is paused because the answer is written faster
    than it is read, and when the answer is complete. In any other state the client waits for the server.
    """

    def __init__(self, *args: Any, limits: ConnectionLimits, on_end: OnEnd, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._on_end = on_end
        timeouts = [limit for limit in (limits.send_timeout, limits.receive_timeout) if limit]
        self._check_interval = min(timeouts, default=0.0) / _CHECKS_PER_TIMEOUT
        self._next_check: asyncio.TimerHandle | None = None
        self._spare_end: asyncio.TimerHandle | None = None
        """The end of the time in which a spare connection's request must be known; None for any other connection."""
        self._unsent = 0
        self._taken_at = self.loop.time()
        self._awaited_since: float | None = self.loop.time()
        """Loop time from which the part of a request that is due now is awaited; None between requests."""
        self._came = 0
        """Received bytes of that part, if it is a body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._check_later()
        super().connection_made(transport)
        num_over = len(self.connections) - self._limits.max_connections
        if self._limits.max_connections and num_over > SPARE_CONNECTIONS:
            self._refuse_connection(lingers=False)
        elif self._limits.max_connections and num_over > 0:
            self._spare_end = self.loop.call_later(_SPARE_HEAD_TIMEOUT, self._refuse_connection)

    def connection_lost(self, exc: Exception | None) -> None:
        self._take_spare_end()
        if self._next_check is not None:
            self._next_check.cancel()
        super().connection_lost(exc)

    # ---- number of connections

    def _take_spare_end(self) -> bool:
        """Return whether this is a spare connection without a known request; if so, cancel its timer."""
        if self._spare_end is None:
            return False
        self._spare_end.cancel()
        self._spare_end = None
        return True

    def _refuse_connection(self, *, lingers: bool = True) -> None:
        self._on_end("refused")
        limit = self._limits.max_connections
        message = f"More than {limit} connections are open; at most {limit} are accepted (--max-connections)."
        self._refuse(Unavailable(message, code="too_many_connections", retry_after=1), lingers=lingers)

    # ---- sending

    def data_received(self, data: bytes) -> None:
        is_between = self.cycle is not None and self.cycle.response_complete
        if self._awaited_since is None and is_between:
            self._await_next()  # also for blank lines, which are no request but end uvicorn's own wait for one
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_next()

    def on_headers_complete(self) -> None:
        self._await_next()
        is_spare = self._take_spare_end()
        path = self.url.removeprefix(self.root_path.encode())
        if is_spare and not path.startswith(self._limits.spare_paths):
            self._refuse_connection()
            return
        super().on_headers_complete()
        if is_spare and not self._is_refused:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        if not self._is_refused and not self.cycle.response_complete:
            self._came += len(body)  # a body that is no longer needed earns no time
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._awaited_since = None
        super().on_message_complete()

    def _await_next(self) -> None:
        self._awaited_since, self._came = self.loop.time(), 0

    # ---- reading

    def resume_writing(self) -> None:
        """Resume writing: the client took enough for the next piece."""
        super().resume_writing()
        self._taken_at = self.loop.time()

    def on_response_complete(self) -> None:
        """More may wait now than at the last check."""
        super().on_response_complete()
        self._taken_at = self.loop.time()

    # ---- the checks

    def _check_later(self) -> None:
        if self._check_interval:
            self._next_check = self.loop.call_later(self._check_interval, self._check)

    def _check(self) -> None:
        if self._is_stalled():
            logger.warning(
                "closed the connection of %s: it took nothing of its answer for %g s, %d bytes waited (--send-timeout)",
                self._client_name(),
                self._limits.send_timeout,
                self._unsent,
            )
            self._on_end("stalled")
            self.transport.abort()
        elif self._is_slow():
            self._end_slow()
        else:
            self._check_later()

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
        """Answer with 408, unless the client sent nothing at all, or has an answer already."""
        part = "head" if self._in_head else "body"
        logger.info(
            "closed the connection of %s: the %s of its request did not come in time (--receive-timeout)",
            self._client_name(),
            part,
        )
        self._on_end("slow")
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
        """Return the bytes that the client has not acknowledged, here and in the kernel (tcp(7), SIOCOUTQ)."""
        in_kernel = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0" * 4)
        return int(self.transport.get_write_buffer_size() + struct.unpack("i", in_kernel)[0])


def http_protocol(limits: ConnectionLimits, on_end: OnEnd) -> Callable[..., HttpProtocol]:
    """Return the protocol of a server with these limits; `on_end` is called when one ends a connection."""
    return partial(LimitedHttpProtocol, limits=limits, on_end=on_end)
