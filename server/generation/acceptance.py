"""Applies the terms that a body names: its model, priority, deadline and salt of the prefix cache."""

import time
from contextvars import ContextVar

from server.config.auth.keys import ApiKey
from server.config.auth.quotas import PRIORITIES
from server.dispatch.request_context import RequestContext
from server.dispatch.served_adapter import ServedAdapter
from server.generation.context import PLACEHOLDERS, AppContext
from server.generation.supported_routes import check_route
from server.http.errors import BadRequest, NotFound, shown
from server.schemas.base import RunFields

current_context: ContextVar[RequestContext | None] = ContextVar("request_context", default=None)
"""The terms of the HTTP request that the running task belongs to."""


def check_model(context: AppContext, model: str) -> None:
    """Raise NotFound unless `model` names the model that is served."""
    if model not in (context.model_id, *PLACEHOLDERS):
        names = [context.model_id, *(each.name for each in context.adapters)]
        served = f"{names[0]!r} is served" if len(names) == 1 else f"{', '.join(map(repr, names))} are served"
        message = f"The model {shown(model)} does not exist here; {served}."
        raise NotFound(message, param="model", code="model_not_found")


def find_adapter(context: AppContext, model: str | None) -> ServedAdapter | None:
    """Return the LoRA adapter that is named as the model, or None for the model itself. Raises NotFound for a name that
    is neither's.
    """
    if model is None or model == context.model_id:
        return None
    adapter = context.adapters.find(model)
    if adapter is None:
        check_model(context, model)
    return adapter


def accept(context: AppContext, body: RunFields, route: str | None = None) -> float:
    """Check the model that a body names, and that it can answer `route`, and apply the body's terms. Return the time of
    the call, in CLOCK_MONOTONIC seconds.

    Raises NotFound, and BadRequest for a priority that clients may not set, and a route that the model cannot answer.
    """
    arrival = time.monotonic()
    request_context = current_request()
    request_context.adapter = find_adapter(context, body.model)
    request_context.priority = _wanted_priority(context, body, request_context.key)
    if body.cache_salt is not None:
        request_context.cache_salt += "\0" + body.cache_salt  # no key's name has that character
    if body.timeout is not None:
        request_context.shorten(body.timeout)
    if route is not None:
        check_route(context, route)
    return arrival


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
