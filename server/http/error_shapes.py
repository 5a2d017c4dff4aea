"""Shapes of errors on the wire. All routes except the routes of other APIs have this one:

{"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
"""

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from server.http.errors import ApiError

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


def anthropic_shape(error: ApiError, request_id: str | None = None) -> dict[str, Any]:
    """Return an error in the shape of Anthropic's API; `param` and `code` are ours."""
    other = "api_error" if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    described = {"type": _ANTHROPICS_TYPES.get(error.status, other), "message": error.message}
    return {"type": "error", "error": {**described, "param": error.param, "code": error.code}, "request_id": request_id}


def ollama_shape(error: ApiError, request_id: str | None = None) -> dict[str, Any]:
    """Return an error in the shape that Ollama's clients read."""
    return {"error": error.message}


def systemone_shape(error: ApiError, request_id: str | None = None) -> dict[str, Any]:
    """Return an error in the shape that System One's clients read: some `detail`, some `error`."""
    return {"detail": error.message, **openai_shape(error)}


def cohere_shape(error: ApiError, request_id: str | None = None) -> dict[str, Any]:
    """Return an error in the shape that rerankers' clients read: Cohere's `message`, others `error`."""
    return {"message": error.message, **openai_shape(error)}


_TEIS_TYPES: dict[int, str] = {
    HTTPStatus.TOO_MANY_REQUESTS: "Overloaded",
    HTTPStatus.SERVICE_UNAVAILABLE: "Unhealthy",
}


def tei_shape(error: ApiError, request_id: str | None = None) -> dict[str, Any]:
    """Return an error in the shape of Text Embeddings Inference."""
    other = "Backend" if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "Validation"
    return {"error": error.message, "error_type": _TEIS_TYPES.get(error.status, other)}


_TGIS_TYPES: dict[int, str] = {HTTPStatus.TOO_MANY_REQUESTS: "overloaded", HTTPStatus.SERVICE_UNAVAILABLE: "overloaded"}


def tgi_shape(error: ApiError, request_id: str | None = None) -> dict[str, Any]:
    """Return an error in the shape of Text Generation Inference."""
    other = "generation" if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR else "validation"
    return {"error": error.message, "error_type": _TGIS_TYPES.get(error.status, other)}


SHAPES: dict[str, Shape] = {
    "/api/": ollama_shape,
    "/v1/messages": anthropic_shape,
    "/v1/systemone": systemone_shape,
    **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/rerank"), cohere_shape),
    **dict.fromkeys(("/predict", "/embed", "/similarity", "/info"), tei_shape),
    "/generate": tgi_shape,
}
"""Shapes of other APIs, by the beginnings of their routes' paths."""


def shape_of(path: str, body: Any = None) -> Shape:
    """Return the shape of the errors of a path's API. Two APIs have /rerank; the body distinguishes them."""
    if path == "/":
        return tgi_shape
    if path == "/rerank" and ("texts" in body if isinstance(body, dict) else hasattr(body, "texts")):
        return tei_shape
    return next((shape for beginning, shape in SHAPES.items() if path.startswith(beginning)), openai_shape)


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
