"""Defines every error that a client can see, and the one shape that they all have on the wire.

    {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}

The tree (status, type):

    ApiError
    ├── BadRequest            400  invalid_request_error   a value is wrong; the message names it and what is accepted
    ├── Unauthorized          401  authentication_error    no key, or a wrong one
    ├── Forbidden             403  permission_error        the key is no admin key
    ├── NotFound              404  not_found_error         no such model or route
    ├── NotAcceptable         406  invalid_request_error   no such answer format
    ├── PayloadTooLarge       413  invalid_request_error   the body or the answer would be too large
    ├── UnsupportedMediaType  415  invalid_request_error   the body is not JSON
    ├── QueueFull             429  rate_limit_error        come back later (Retry-After)
    ├── RateLimited           429  rate_limit_error        the key has used what it may (Retry-After)
    ├── EngineError           500  server_error            the engine failed on this request
    ├── Unavailable           503  unavailable_error       loading or draining (Retry-After)
    │   └── WorkerLost        503  unavailable_error       the worker that ran the request died
    └── DeadlineExceeded      504  timeout_error           the request took longer than the server allows

`install_error_handlers` turns what FastAPI and Starlette raise into the same shape. This file knows no route and no
engine.
"""

import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from server.observability.access_log import RECORD_IN_SCOPE

logger = logging.getLogger(__name__)

MAX_SHOWN_VALUE = 80
"""Most characters of an offending value that an error message repeats."""
MAX_SHOWN_PROBLEMS = 4
_BRANCHES = frozenset({"str", "int", "float", "bool", "none"})
"""pydantic's names for the branches of a union of plain types."""


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
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.retry_after = retry_after


class _Kind(ApiError):
    """An ApiError whose status and type are fixed by its class."""

    STATUS = 500
    TYPE = "server_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(self.STATUS, message, self.TYPE, param, code, retry_after)


class BadRequest(_Kind):
    """Raised when a value in the request is wrong."""

    STATUS, TYPE = 400, "invalid_request_error"


class Unauthorized(_Kind):
    """Raised for a request with no API key, or one that the server does not know."""

    STATUS, TYPE = 401, "authentication_error"


class Forbidden(_Kind):
    """Raised when the key is valid, but not for this route."""

    STATUS, TYPE = 403, "permission_error"


class NotFound(_Kind):
    """Raised when there is no such model or route."""

    STATUS, TYPE = 404, "not_found_error"


class NotAcceptable(_Kind):
    """Raised when the Accept header asks for a format that the route does not have."""

    STATUS, TYPE = 406, "invalid_request_error"


class PayloadTooLarge(_Kind):
    """Raised when the request body, or the answer it asks for, is over the limit."""

    STATUS, TYPE = 413, "invalid_request_error"


class UnsupportedMediaType(_Kind):
    """Raised when the request body is not declared as JSON."""

    STATUS, TYPE = 415, "invalid_request_error"


class QueueFull(_Kind):
    """Raised when the server has as much waiting work as it accepts."""

    STATUS, TYPE = 429, "rate_limit_error"


class RateLimited(_Kind):
    """Raised when the API key has as many requests in flight, or has used as many tokens, as it may."""

    STATUS, TYPE = 429, "rate_limit_error"


class EngineError(_Kind):
    """Raised when the engine failed on this request."""

    STATUS, TYPE = 500, "server_error"


class Unavailable(_Kind):
    """Raised while the server is loading or draining."""

    STATUS, TYPE = 503, "unavailable_error"


class WorkerLost(Unavailable):
    """Raised when the worker that ran the request died."""


class DeadlineExceeded(_Kind):
    """Raised when the request took longer than the server allows."""

    STATUS, TYPE = 504, "timeout_error"


def not_in_time(seconds: float | None, reached: str) -> DeadlineExceeded:
    """Return the error of a request that had so many seconds (None: unknown) and `reached` so far."""
    allowed = "its time" if seconds is None else f"{seconds:.3g} s"
    return DeadlineExceeded(f"The request did not end within {allowed}: {reached}.", code="deadline_exceeded")


def too_much_captured(num_bytes: int, limit: int) -> PayloadTooLarge:
    """Return the error of a request whose captures are more than are ever accepted."""
    return PayloadTooLarge(
        f"This request would capture {num_bytes} bytes of all its inputs; at most {limit} are accepted "
        "(--max-capture-bytes, --worker-memory). Ask for fewer layers, heads or positions, or send fewer or shorter "
        "inputs.",
        code="capture_too_large",
    )


def error_body(error: ApiError) -> dict[str, dict[str, str | None]]:
    """Return an error in the one shape that all errors have."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


def error_json(error: ApiError) -> bytes:
    """Return `error_body` as JSON in ASCII, so that a message quoting a lone surrogate can still be sent."""
    return json.dumps(error_body(error), ensure_ascii=True).encode("ascii")


def note_error(scope: Scope, error: ApiError) -> None:
    """Let the log line of the request with this ASGI scope say how it failed."""
    record = scope.get(RECORD_IN_SCOPE)
    if record is not None:
        record.error_code = error.code or error.type


def error_response(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    """Return the HTTP answer of an error, with Retry-After or WWW-Authenticate where they belong."""
    extra = dict(headers or {})
    if error.retry_after is not None:
        extra["Retry-After"] = str(error.retry_after)
    if error.status == HTTPStatus.UNAUTHORIZED:
        extra["WWW-Authenticate"] = "Bearer"
    return Response(error_json(error), error.status, headers=extra, media_type="application/json")


def shown(value: object) -> str:
    """Return a value as an error message repeats it: its Python form, cut to a readable length."""
    text = ""
    for piece in _pieces(value):  # of a value of megabytes the rest is not looked at
        text += piece
        if len(text) > MAX_SHOWN_VALUE:
            return text[:MAX_SHOWN_VALUE] + "..."
    return text


def _pieces(value: object) -> Iterator[str]:
    """Yield the Python form of a JSON value, piece by piece."""
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


def _path(error: Mapping[str, Any]) -> tuple[int | str, ...]:
    """Return the path to the field as the user wrote it, without the union branches that pydantic tried."""
    location: Sequence[int | str] = error["loc"][1:]
    unknown = location[-1:] if error["type"] == "extra_forbidden" else ()  # as the user wrote it, whatever it is
    known = location[: len(location) - len(unknown)]
    path = [part for part in known if isinstance(part, int) or (part.isidentifier() and part not in _BRANCHES)]
    path += unknown
    if error["type"] == "wrong_field":
        path.append(error["ctx"]["field"])
    return tuple(path)


def _field(path: Sequence[int | str]) -> str:
    """Return a path as a name: ("messages", 1, "content") is messages[1].content."""
    parts = [
        f"[{part}]" if isinstance(part, int) else "." + (part if part.isprintable() else ascii(part)) for part in path
    ]
    return "".join(parts).removeprefix(".")[:MAX_SHOWN_VALUE]


def _problem(error: Mapping[str, Any]) -> str:
    """Return one pydantic error as "PROBLEM, got VALUE"."""
    if error["type"] == "extra_forbidden":
        return "no such field; GET /openapi.json lists those that are accepted"
    if error["type"] == "missing":
        return "this field is required"
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "wrong_field":
        return message
    message = message[:1].lower() + message[1:]
    return f"{message}, got {shown(error.get('input'))}"


def _is_mismatch(error: Mapping[str, Any]) -> bool:
    return bool(error["type"].endswith("_type"))


def _telling(errors: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the errors without the branches of a union that the value was never meant for.

    A list of ids is not a text and not a list of lists either: if one branch reports more about the value than its
    type, or got further into it, the others' complaints about the type are noise.
    """

    def branch(error: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(error["loc"][1:3])

    telling = {branch(error) for error in errors if not _is_mismatch(error) and error["type"] != "literal_error"}
    paths = {_path(error) for error in errors}

    def is_noise(error: Mapping[str, Any]) -> bool:
        path = _path(error)
        if any(len(other) > len(path) and other[: len(path)] == path for other in paths):
            return True
        return any(other[:1] == branch(error)[:1] and other != branch(error) for other in telling)

    return [error for error in errors if not _is_mismatch(error) or not is_noise(error)]


def validation_error(errors: Sequence[Mapping[str, Any]]) -> BadRequest:
    """Return pydantic's list of errors as one BadRequest about the first offending field.

    A union reports one error for each of its branches; they are joined, so that the message lists what is accepted.
    """
    errors = _telling(errors) or errors
    first = errors[0]
    if first["type"] == "json_invalid":
        reason = (first.get("ctx") or {}).get("error", "syntax error")
        place = f"at character {first['loc'][-1]}"
        return BadRequest(f"The body is not valid JSON: {reason} ({place}).", code="json_invalid")
    path = _path(first)
    problems: list[str] = []
    for error in errors:
        other, problem = _path(error), _problem(error)
        if other[:1] == path[:1] and problem not in problems:
            problems.append(problem)
            path = tuple(part for part, same in zip(path, other, strict=False) if part == same)
    field = _field(path)
    message = "; or ".join(problems[:MAX_SHOWN_PROBLEMS])
    if not field:
        return BadRequest(f"The body is wrong: {message}. A JSON object is accepted.", code="invalid_body")
    code = "unknown_field" if first["type"] == "extra_forbidden" else "invalid_value"
    return BadRequest(f"{field}: {message}.", param=field, code=code)


def http_error(error: HTTPException, method: str, path: str) -> ApiError:
    """Return a Starlette error (unknown route, wrong method, unreadable body) as an ApiError of the same status."""
    if error.status_code == HTTPStatus.NOT_FOUND:
        return NotFound(f"No route {method} {shown(path)}; GET /openapi.json lists the routes.", code="route_not_found")
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "")
        accepted = f"; accepted: {allowed}" if allowed else ""
        message = f"{shown(path)} does not take {method}{accepted}."
        return ApiError(405, message, "invalid_request_error", code="method_not_allowed")
    if isinstance(error.__cause__, RecursionError):
        return BadRequest("The body is nested too deeply; a few hundred levels are accepted.", code="json_invalid")
    if isinstance(error.__cause__, ValueError):  # of json's errors the only one that is no JSONDecodeError
        limit = sys.get_int_max_str_digits()
        return BadRequest(f"The body holds a whole number of more than {limit} digits.", code="json_invalid")
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    return ApiError(error.status_code, str(error.detail), kind)


def install_error_handlers(app: FastAPI) -> None:
    """Make every error that leaves `app` an ApiError on the wire."""

    def answer(request: Request, error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
        note_error(request.scope, error)
        return error_response(error, headers)

    async def api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return answer(request, error)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return answer(request, validation_error(error.errors()))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return answer(request, http_error(error, request.method, request.url.path), error.headers)

    async def unexpected(request: Request, error: Exception) -> Response:
        logger.error("unexpected error on %s %s", request.method, request.url.path, exc_info=error)
        return answer(
            request, EngineError("The server failed on this request; its log says why.", code="internal_error")
        )

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, unexpected)
