"""Describes the errors of a route for the OpenAPI page. It makes none: `server.http.error_shapes` writes them."""

from typing import Any

from server.schemas.base import AnswerModel

_STATUSES = {
    400: "A value is wrong; the message names it and what is accepted.",
    401: "No key, or a wrong one.",
    403: "The key may not do this.",
    404: "No such model.",
    406: "No such answer format.",
    413: "The body or the answer would be too large.",
    415: "The body is not JSON.",
    429: "As much work waits as is accepted, or the key's limit is reached; see Retry-After.",
    500: "The engine failed on this request.",
    503: "Loading, draining, or the worker was lost; see Retry-After.",
    504: "The request took longer than allowed.",
}


def error_answers(model: type[AnswerModel]) -> dict[int | str, dict[str, Any]]:
    """Return the errors of a route whose API writes them as `model` describes."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {
        # "default" also keeps FastAPI from announcing a 422 that this server never sends.
        "default": {"model": model, "description": "Any other error, in the same shape."},
        # The others refer to its schema: given the model, FastAPI would make a validator of each status of each route,
        # which took most of the time of making an application.
        **{
            status: {"description": text, "content": {"application/json": {"schema": schema}}}
            for status, text in _STATUSES.items()
        },
    }
