"""Shapes of errors on the wire. All routes except the routes of other APIs have this one:

{"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
"""

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from lightwell.server.http.errors import ApiError

Shape = Callable[[ApiError, str | None], dict[str, Any]]
"""Returns an error as an API has it, with the id of its request if that is known."""


def openai_shape(error: ApiError, request_id: str | None = None) -> dict[str, Any]:
    """Return an error in the common shape."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


_ANTHROPICS_TYPES: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}


def _anthropic_shape(error: ApiError, request_id: str | None) -> dict[str, Any]:
    """Return an error in the shape of Anthropic's API; `param` and `code` are ours."""
    other = "api_error" if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    described = {"type": _ANTHROPICS_TYPES.get(error.status, other), "message": error.message}
    return {"type": "error", "error": {**described, "param": error.param, "code": error.code}, "request_id": request_id}


def _ollama_shape(error: ApiError, request_id: str | None) -> dict[str, Any]:
    return {"error": error.message}


def _with_message_in(field: str) -> Shape:
    """Return the common shape with the message in one more field."""
    return lambda error, request_id: {field: error.message, **openai_shape(error)}


def _hugging_face_shape(types: dict[int, str], *, server: str, client: str) -> Shape:
    """Return a shape with a message and a type: by status, or `server` for any other 5xx and `client` for the rest."""

    def shape(error: ApiError, request_id: str | None) -> dict[str, Any]:
        other = server if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR else client
        return {"error": error.message, "error_type": types.get(error.status, other)}

    return shape


_TEI_SHAPE = _hugging_face_shape(
    {HTTPStatus.TOO_MANY_REQUESTS: "Overloaded", HTTPStatus.SERVICE_UNAVAILABLE: "Unhealthy"},
    server="Backend",
    client="Validation",
)
_TGI_SHAPE = _hugging_face_shape(
    {HTTPStatus.TOO_MANY_REQUESTS: "overloaded", HTTPStatus.SERVICE_UNAVAILABLE: "overloaded"},
    server="generation",
    client="validation",
)
_SHAPES: dict[str, Shape] = {
    "/api/": _ollama_shape,
    "/v1/messages": _anthropic_shape,
    "/v1/systemone": _with_message_in("detail"),
    **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/rerank"), _with_message_in("message")),
    **dict.fromkeys(("/predict", "/embed", "/similarity", "/info"), _TEI_SHAPE),
    "/generate": _TGI_SHAPE,
}
"""Shapes of other APIs, by the beginnings of their routes' paths."""


def shape_of(path: str, body: Any = None) -> Shape:
    """Return the shape of the errors of a path's API. Two APIs have /rerank; the body distinguishes them."""
    if path == "/":
        return _TGI_SHAPE
    if path == "/rerank" and ("texts" in body if isinstance(body, dict) else hasattr(body, "texts")):
        return _TEI_SHAPE
    return next((shape for beginning, shape in _SHAPES.items() if path.startswith(beginning)), openai_shape)


def error_json(error: ApiError, path: str = "", request_id: str | None = None, body: Any = None) -> bytes:
    """Return an error as JSON in ASCII, so that a message quoting a lone surrogate can still be sent."""
    return json.dumps(shape_of(path, body)(error, request_id), ensure_ascii=True).encode("ascii")


def error_response(
    error: ApiError,
    headers: Mapping[str, str] | None = None,
    path: str = "",
    request_id: str | None = None,
    body: Any = None,
) -> Response:
    """Return the HTTP answer of an error, with Retry-After or WWW-Authenticate where they belong."""
    extra = dict(headers or {})
    if error.retry_after is not None:
        extra["Retry-After"] = str(error.retry_after)
    if error.status == HTTPStatus.UNAUTHORIZED:
        extra["WWW-Authenticate"] = "Bearer"
    return Response(
        error_json(error, path, request_id, body), error.status, headers=extra, media_type="application/json"
    )
