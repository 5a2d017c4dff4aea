"""All errors that a client can see; `server.http.error_shapes` writes them.

The tree (status, type):

    ApiError
    ├── BadRequest            400  invalid_request_error   a wrong value; the message names it and the accepted values
    ├── Unauthorized          401  authentication_error    no key, or a wrong one
    ├── Forbidden             403  permission_error        the key is not an admin key
    ├── NotFound              404  not_found_error         no such model or route
    ├── NotAcceptable         406  invalid_request_error   no such answer format
    ├── Conflict              409  invalid_request_error   the state of the object permits no such change
    ├── PayloadTooLarge       413  invalid_request_error   the body or the answer would be too large
    ├── UnsupportedMediaType  415  invalid_request_error   the body is not JSON
    ├── QueueFull             429  rate_limit_error        come back later (Retry-After)
    ├── RateLimited           429  rate_limit_error        the key has reached its limit (Retry-After)
    ├── EngineError           500  server_error            the engine failed on this request
    ├── Unavailable           503  unavailable_error       loading or draining (Retry-After)
    │   └── WorkerLost        503  unavailable_error       the worker that ran the request died
    ├── DeadlineExceeded      504  timeout_error           the request took longer than the server allows
    └── InsufficientStorage   507  server_error            the disk is full

`install_error_handlers` turns the exceptions of FastAPI and Starlette into these. Independent of routes and engine.
"""

import logging
from collections.abc import Iterator

from starlette.types import Scope

from lightwell.server.observability.access_log import RECORD_IN_SCOPE

logger = logging.getLogger(__name__)

MAX_SHOWN_VALUE = 80
"""Most characters of an offending value that an error message repeats."""
MAX_MESSAGE = 4096
"""Maximum length of an error message in characters; the middle of a longer one is cut."""


class ApiError(Exception):
    """An error with an HTTP status. `retry_after` is in seconds and becomes the Retry-After header."""

    def __init__(
        self,
        status: int,
        message: str,
        type: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        if len(message) > MAX_MESSAGE:
            message = f"{message[: MAX_MESSAGE // 2]} ... {message[-MAX_MESSAGE // 2 :]}"
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param and param[: MAX_MESSAGE // 2]
        self.code = code
        self.retry_after = retry_after


class _Kind(ApiError):
    """An ApiError with the status and type of its class."""

    _status: int
    _type: str

    def __init_subclass__(cls, *, status: int | None = None, type: str | None = None) -> None:
        """Set the status and type of the class; by default it inherits them from its base class."""
        super().__init_subclass__()
        cls._status, cls._type = status or cls._status, type or cls._type

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(self._status, message, self._type, param, code, retry_after)


class BadRequest(_Kind, status=400, type="invalid_request_error"):
    """Raised when a value in the request is wrong."""


class Unauthorized(_Kind, status=401, type="authentication_error"):
    """Raised for a request with no API key, or one that the server does not know."""


class Forbidden(_Kind, status=403, type="permission_error"):
    """Raised when the key is valid, but not for this route."""


class NotFound(_Kind, status=404, type="not_found_error"):
    """Raised when there is no such model or route."""


class NotAcceptable(_Kind, status=406, type="invalid_request_error"):
    """Raised when the Accept header names no format of the route."""


class Conflict(_Kind, status=409, type="invalid_request_error"):
    """Raised when the state of an object does not permit the requested change."""


class PayloadTooLarge(_Kind, status=413, type="invalid_request_error"):
    """Raised when the request body, or the requested answer, is over the limit."""


def answer_too_large(
    size: int, limit: int, advice: str, *, of: str = "The answer", param: str | None = None
) -> PayloadTooLarge:
    """Return the error of an answer over --max-response-bytes, or of its part `of`; `advice`: a request that fits."""
    message = f"{of} would be about {size} bytes; at most {limit} are sent (--max-response-bytes). {advice}"
    return PayloadTooLarge(message, param=param, code="answer_too_large")


class UnsupportedMediaType(_Kind, status=415, type="invalid_request_error"):
    """Raised when the request body is not declared as JSON."""


class QueueFull(_Kind, status=429, type="rate_limit_error"):
    """Raised when the server has as much waiting work as it accepts."""


class RateLimited(_Kind, status=429, type="rate_limit_error"):
    """Raised when the API key has as many requests in flight, or has used as many tokens, as it may."""


class EngineError(_Kind, status=500, type="server_error"):
    """Raised when the engine failed on this request."""


class Unavailable(_Kind, status=503, type="unavailable_error"):
    """Raised while the server is loading or draining."""


class WorkerLost(Unavailable):
    """Raised when the worker that ran the request died."""


class DeadlineExceeded(_Kind, status=504, type="timeout_error"):
    """Raised when the request took longer than the server allows."""


class InsufficientStorage(_Kind, status=507, type="server_error"):
    """Raised when the disk has no room."""


def not_in_time(seconds: float | None, reached: str) -> DeadlineExceeded:
    """Return the error of a request that did not end within `seconds` (None: unknown). reached: its last stage."""
    allowed = "its time" if seconds is None else f"{seconds:.3g} s"
    return DeadlineExceeded(f"The request did not end within {allowed}: {reached}.", code="deadline_exceeded")


def too_much_captured(num_bytes: int, limit: int, param: str | None = None) -> PayloadTooLarge:
    """Return the error of a request with more captures than are ever accepted."""
    return PayloadTooLarge(
        f"This request would capture {num_bytes} bytes of all its inputs; at most {limit} are accepted "
        "(--max-capture-bytes, --worker-memory). Request fewer layers, heads or positions, or send fewer or shorter "
        "inputs.",
        param=param,
        code="capture_too_large",
    )


def note_error(scope: Scope, error: ApiError) -> None:
    """Add the error's code to the log line of the request with this ASGI scope."""
    record = scope.get(RECORD_IN_SCOPE)
    if record is not None:
        record.error_code = error.code or error.type


def shown(value: object) -> str:
    """Return a value as an error message repeats it: its Python form, cut to a readable length."""
    text = ""
    for piece in _pieces(value):  # the rest of a value of megabytes is not read
        text += piece
        if len(text) > MAX_SHOWN_VALUE:
            return text[:MAX_SHOWN_VALUE] + "..."
    return text


def _pieces(value: object) -> Iterator[str]:
    if isinstance(value, str):
        begin = value[: MAX_SHOWN_VALUE + 1]
        yield repr(begin) if begin.isprintable() else ascii(begin)
    elif isinstance(value, list):
        yield "["
        for i, item in enumerate(value):
            yield ", " if i else ""
            yield from _pieces(item)
        yield "]"
    elif isinstance(value, dict):
        yield "{"
        for i, (name, item) in enumerate(value.items()):
            yield f"{', ' if i else ''}{shown(name)}: "
            yield from _pieces(item)
        yield "}"
    else:
        yield repr(value)
