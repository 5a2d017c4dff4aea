"""Handlers that turn exceptions of a request into answers: our own, Pydantic's, Starlette's and unexpected ones."""

import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from lightwell.server.http.error_shapes import error_response
from lightwell.server.http.errors import (
    MAX_SHOWN_VALUE,
    ApiError,
    BadRequest,
    EngineError,
    NotFound,
    logger,
    note_error,
    shown,
)
from lightwell.server.observability.access_log import RECORD_IN_SCOPE

Model = TypeVar("Model", bound=BaseModel)

MAX_SHOWN_PROBLEMS = 4
_MAX_PROBLEMS = 64
"""Most problems that are compared: they are compared with each other, and no union has as many branches."""


@cache
def _branches() -> frozenset[str]:
    """Return pydantic's names for the branches of a union: plain types and classes of models."""
    classes = [BaseModel]
    for each in classes:
        classes += each.__subclasses__()
    own = (each.__name__ for each in classes if each.__module__.startswith("lightwell.server.schemas"))
    return frozenset({"str", "int", "float", "bool", "none", *own})


def _steps(error: Mapping[str, Any], body: Any) -> list[int | str | None]:
    """Return the path to the field as the user wrote it, with None for each union branch that pydantic tried."""
    steps: list[int | str | None] = []
    location: Sequence[int | str] = error["loc"][1:]
    for number, part in enumerate(location, 1):
        step: int | str | None = part
        if isinstance(body, dict) and part in body:
            body = body[part]
        elif isinstance(part, int):
            body = body[part] if isinstance(body, list) and part < len(body) else None
        elif not (error["type"] == "extra_forbidden" and number == len(location)):  # an unknown field stays as it is
            step = part if part.isidentifier() and part not in _branches() else None
            body = body if step is None else None
        steps.append(step)
    return steps


def _path(error: Mapping[str, Any]) -> tuple[int | str, ...]:
    path = [part for part in error["steps"] if part is not None]
    return (*path, error["ctx"]["field"]) if error["type"] == "wrong_field" else tuple(path)


def _field(path: Sequence[int | str]) -> str:
    """Return a path as a name: ("messages", 1, "content") is messages[1].content."""
    parts = [
        f"[{part}]" if isinstance(part, int) else "." + (part if part.isprintable() else ascii(part)) for part in path
    ]
    return "".join(parts).removeprefix(".")[:MAX_SHOWN_VALUE]


def _problem(error: Mapping[str, Any]) -> str:
    """Return one pydantic error as "PROBLEM, got VALUE"."""
    if error["type"] == "extra_forbidden":
        return "no such field; GET /openapi.json lists the accepted fields"
    if error["type"] == "missing":
        return "this field is required"
    if error["type"] in ("union_tag_not_found", "union_tag_invalid"):
        tag, accepted = error["ctx"]["discriminator"].strip("'"), error["ctx"].get("expected_tags")
        tag = "type" if tag.endswith("()") else tag  # the discriminator is a function, and its values are in brackets
        if accepted:
            return f"{tag} should be one of {re.sub('[<>]', '', accepted)}"
        return f"{tag} is missing, got {shown(error['input'])}"
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "wrong_field":
        return message
    message = re.sub(" or object to extract fields from| after validation", "", message)
    message = (message[:1].lower() + message[1:]).replace("dictionary", "object")
    return f"{message}, got {shown(error.get('input'))}"


def _is_mismatch(error: Mapping[str, Any]) -> bool:
    return bool(error["type"].endswith("_type"))


def _without_noise(errors: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the errors without branches of a union that do not fit the value.

    A list of ids is not a text, and not a list of lists. If one branch reports more about the value than its type, or a
    deeper place in it, the other branches' errors about its type are noise.
    """

    def branch(error: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(error["loc"][1:3])

    fitting = {branch(error) for error in errors if not _is_mismatch(error) and error["type"] != "literal_error"}
    paths = {_path(error) for error in errors}

    def is_noise(error: Mapping[str, Any]) -> bool:
        path = _path(error)
        if any(len(other) > len(path) and other[: len(path)] == path for other in paths):
            return True
        return any(other[:1] == branch(error)[:1] and other != branch(error) for other in fitting)

    return [error for error in errors if not _is_mismatch(error) or not is_noise(error)]


def _are_branches(first: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two errors may be of two branches of one union, and not of two fields or items."""
    ways = zip(first["loc"][1:], other["loc"][1:], first["steps"], other["steps"], strict=False)
    parted = next((both[2:] for both in ways if both[0] != both[1]), None)
    return _path(first)[:1] == _path(other)[:1] if parted is None else None in parted


def validation_error(errors: Sequence[Mapping[str, Any]], body: Any = None) -> BadRequest:
    """Return pydantic's list of errors as one BadRequest about the first wrong field of a body.

    A union reports one error for each of its branches; they are joined, so that the message lists all accepted values.
    """
    errors = [{**error, "steps": _steps(error, body)} for error in errors[:_MAX_PROBLEMS]]
    errors = _without_noise(errors) or errors
    first = errors[0]
    if first["type"] == "json_invalid":
        reason = (first.get("ctx") or {}).get("error", "syntax error")
        place = f"at character {first['loc'][-1]}"
        return BadRequest(f"The body is not valid JSON: {reason} ({place}).", code="json_invalid")
    path = _path(first)
    problems: list[str] = []
    for error in errors:
        problem = _problem(error)
        if _are_branches(first, error) and problem not in problems:
            problems.append(problem)
            path = tuple(part for part, same in zip(path, _path(error), strict=False) if part == same)
    field = _field(path)
    message = "; or ".join(problems[:MAX_SHOWN_PROBLEMS])
    if not field:
        return BadRequest(f"The body is wrong: {message}. A JSON object is accepted.", code="invalid_body")
    code = "unknown_field" if first["type"] == "extra_forbidden" else "invalid_value"
    return BadRequest(f"{field}: {message}.", param=field, code=code)


def translated(schema: type[Model], fields: dict[str, Any]) -> Model:
    """Return a body in our terms, made of another API's. Raises BadRequest, which has the names of our fields."""
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise validation_error([{**each, "loc": ("body", *each["loc"])} for each in error.errors()], fields) from None


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
    if isinstance(error.__cause__, ValueError):  # the only ValueError of json that is no JSONDecodeError
        limit = sys.get_int_max_str_digits()
        return BadRequest(f"The body holds a whole number of more than {limit} digits.", code="json_invalid")
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    return ApiError(error.status_code, str(error.detail), kind)


def install_error_handlers(app: FastAPI) -> None:
    """Make every error that leaves `app` an ApiError on the wire."""

    async def answer(request: Request, error: Exception) -> Response:
        headers = error.headers if isinstance(error, HTTPException) else None
        api_error = _as_api_error(request, error)
        note_error(request.scope, api_error)
        record = request.scope.get(RECORD_IN_SCOPE)
        request_id = None if record is None else record.request_id
        body = getattr(request, "_json", None)  # Request.json() stores it, if the body could be read
        return error_response(api_error, headers, request.url.path, request_id, body)

    for kind in (ApiError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)


def _as_api_error(request: Request, error: Exception) -> ApiError:
    match error:
        case ApiError():
            return error
        case RequestValidationError():
            return validation_error(error.errors(), error.body)
        case HTTPException():
            return http_error(error, request.method, request.url.path)
    logger.error("unexpected error on %s %s", request.method, request.url.path, exc_info=error)
    return EngineError("The server failed on this request; see its log.", code="internal_error")
