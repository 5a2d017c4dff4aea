"""Writes errors. They have one shape on the wire, but for the routes of other APIs, whose clients expect their own:

{"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
"""

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from server.http.errors import ApiError

Shape = Callable[[ApiError], dict[str, Any]]


def openai_shape(error: ApiError) -> dict[str, Any]:
    """Return an error in the shape that all routes have whose API has none of its own."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


SHAPES: dict[str, Shape] = {}
"""Shapes of other APIs, by what their routes' paths begin with."""


def shape_of(path: str) -> Shape:
    """Return the shape of the errors of a path's API."""
    return next((shape for beginning, shape in SHAPES.items() if path.startswith(beginning)), openai_shape)


def error_json(error: ApiError, path: str = "") -> bytes:
    """Return an error as JSON in ASCII, so that a message quoting a lone surrogate can still be sent."""
    return json.dumps(shape_of(path)(error), ensure_ascii=True).encode("ascii")


def error_response(error: ApiError, headers: Mapping[str, str] | None = None, path: str = "") -> Response:
    """Return the HTTP answer of an error, with Retry-After or WWW-Authenticate where they belong."""
    extra = dict(headers or {})
    if error.retry_after is not None:
        extra["Retry-After"] = str(error.retry_after)
    if error.status == HTTPStatus.UNAUTHORIZED:
        extra["WWW-Authenticate"] = "Bearer"
    return Response(error_json(error, path), error.status, headers=extra, media_type="application/json")
