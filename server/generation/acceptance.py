"""Applies the terms that a body names: its model, priority, deadline and salt of the prefix cache."""

from contextvars import ContextVar

from lightwell.server.config.auth.keys import ApiKey
from lightwell.server.config.auth.quotas import PRIORITIES
from lightwell.server.dispatch.request_context import RequestContext
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.supported_routes import check_route
from lightwell.server.http.errors import BadRequest
from lightwell.server.schemas.base import RunFields

current_context: ContextVar[RequestContext | None] = ContextVar("request_context", default=None)
"""The terms of the HTTP request that the running task belongs to."""


async def accept(context: AppContext, body: RunFields, route: str) -> ServedModel:
    """Return the model that a body names, once it is loaded, and apply the body's terms.

    Raises the errors of `ModelList.find`, and BadRequest for a priority that clients may not set, and for a route that
    the model cannot answer.
    """
    request_context = current_request()
    if body.timeout is not None:
        request_context.shorten(body.timeout)
    model, request_context.adapter = await context.models.find(body.model, route)
    priority = _wanted_priority(context, body, request_context.key)
    if not request_context.is_background:
        request_context.priority = priority
    if body.cache_salt is not None:
        request_context.cache_salt += "\0" + body.cache_salt  # no key's name has that character
    check_route(model, route)
    return model


def current_request() -> RequestContext:
    """Return the context of the HTTP request that the running task belongs to, or a new one if it belongs to none."""
    return current_context.get() or RequestContext()


def min_priority(context: AppContext, key: ApiKey | None) -> int:
    """Return the earliest priority that requests with this key may have."""
    if key is not None and key.limits.min_priority is not None:
        return key.limits.min_priority
    return min(PRIORITIES) if context.settings.allow_priority else 0


def _wanted_priority(context: AppContext, body: RunFields, key: ApiKey | None) -> int:
    """Return the priority of a body; one without a priority has the key's. Raises BadRequest."""
    least = min_priority(context, key)
    if "priority" not in body.model_fields_set:
        return max(body.priority, least)
    if body.priority >= least:
        return body.priority
    if key is not None and key.limits.min_priority is not None:
        why = (
            f"is earlier than the API key {key.name!r} may go; at least {least} is accepted (min_priority of the key)."
        )
    else:
        why = (
            "would precede the requests of all other clients; at least 0 is accepted (or start the server with "
            "--allow-priority, or give its API key a min_priority)."
        )
    raise BadRequest(f"priority: {body.priority} {why}", param="priority", code="priority_not_allowed")
