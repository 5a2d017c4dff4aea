"""Everything that can go wrong, as one tree of exceptions. Independent of httpx.

LightwellError
├── ConnectionFailed          no answer came, or it broke off
├── TimedOut                  the server was silent for longer than `timeout`
├── StreamInterrupted         a stream ended with an error event, or without its end mark
├── InvalidResponse           the answer does not match the protocol
├── NotParsed                 the answer to `parse` was cut off, or does not match the schema (in _parsing.py)
├── MissingDependency         numpy or matplotlib is needed and not installed (an ImportError too)
└── ApiError                  the server answered with an error status
    ├── BadRequest            400, 422
    ├── AuthenticationFailed  401
    ├── PermissionDenied      403
    ├── NotFound              404
    ├── MethodNotAllowed      405
    ├── NotAcceptable         406
    ├── TooLarge              413
    ├── UnsupportedMediaType  415
    ├── RateLimited           429
    └── ServerError           every 5xx
        ├── Unavailable       503
        └── DeadlineExceeded  504
"""

from __future__ import annotations


class LightwellError(Exception):
    """The root: catch this to catch everything the client raises about a request."""


class ConnectionFailed(LightwellError):
    """No answer came, or it broke off half way."""


class TimedOut(LightwellError):
    """The server could not be reached, or was silent, for longer than the timeout."""


class InvalidResponse(LightwellError):
    """The answer does not match the protocol."""


class MissingDependency(LightwellError, ImportError):
    """An optional package is missing; the message has the command that installs it."""


class StreamInterrupted(LightwellError):
    """A stream that had begun ended early. The chunks yielded before are valid."""

    def __init__(self, message: str, *, type: str | None = None, code: str | int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.type = type
        self.code = code


class ApiError(LightwellError):
    """The server answered with an error status."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        type: str | None = None,
        param: str | None = None,
        code: str | int | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type
        self.param = param
        self.code = code
        self.request_id = request_id
        self.retry_after = retry_after
        """Seconds the server asked to wait, if it did."""

    def __str__(self) -> str:
        request = f" (request {self.request_id})" if self.request_id else ""
        return f"{self.status}: {self.message}{request}"


class BadRequest(ApiError):
    """400 or 422: the request is wrong; `param` names the field."""


class AuthenticationFailed(ApiError):
    """401: the API key is missing or wrong."""


class PermissionDenied(ApiError):
    """403: the key is known and may not do this."""


class NotFound(ApiError):
    """404: no such route or model."""


class MethodNotAllowed(ApiError):
    """405: the route exists and does not take this method."""


class NotAcceptable(ApiError):
    """406: the server cannot write the requested format."""


class TooLarge(ApiError):
    """413: the request, or the answer it would have, is too large; the message has the limit."""


class UnsupportedMediaType(ApiError):
    """415: the body is not in a format that the server reads."""


class RateLimited(ApiError):
    """429: the queue or a budget is full; try again after `retry_after` seconds."""


class ServerError(ApiError):
    """5xx: the server failed."""


class Unavailable(ServerError):
    """503: the server is loading, draining or lost its worker; try again after `retry_after` seconds."""


class DeadlineExceeded(ServerError):
    """504: the request took longer than the server allows."""


ERROR_OF_STATUS: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: AuthenticationFailed,
    403: PermissionDenied,
    404: NotFound,
    405: MethodNotAllowed,
    406: NotAcceptable,
    413: TooLarge,
    415: UnsupportedMediaType,
    422: BadRequest,
    429: RateLimited,
    503: Unavailable,
    504: DeadlineExceeded,
}
