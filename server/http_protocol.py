"""uvicorn's HTTP parser with a bound on the head of a request, and errors in the one shape from the very first byte.

Knows nothing of routes: these requests never reach one.
"""

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.errors import ApiError, BadRequest, error_json

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers together."""
_REASONS = {400: "Bad Request", 431: "Request Header Fields Too Large"}


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
