"""Decides on what terms a request runs the model: its deadline and its priority. It also decides whether a request is
admitted at all, before its body is read.

A client sets how long it waits with the header `X-Request-Timeout` or the field `timeout`, in seconds; the least of
these and `--request-timeout` counts, from the arrival of the request's head to the head of its answer, or to the end of
a stream. The engine ends late requests (`server.dispatch.engine_client`); this file ends what the engine does not see:
reading, and writing the answer.
"""

import asyncio
import math
import time
from contextvars import ContextVar

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from server.auth.keys import ApiKey
from server.auth.quotas import PRIORITIES
from server.dispatch.request_context import RequestContext
from server.http.errors import BadRequest, shown
from server.observability.access_log import current_record
from server.routes.auth_route import KEY_IN_SCOPE, Handler
from server.routes.context import AppContext
from server.routes.prompts import find_adapter
from server.routes.supported_routes import check_route
from server.schemas.base import RunFields

HEADER = "X-Request-Timeout"

_current: ContextVar[RequestContext | None] = ContextVar("request_context", default=None)
"""The terms of the HTTP request that the running task belongs to."""


def running_route(base: type[APIRoute], context: AppContext, *, is_inspection: bool = False) -> type[APIRoute]:
    """Return a route that runs the model. After `base` has checked the key, and before it reads the body, a request is
    rejected if there is no room for any, and its time begins to run.

    `is_inspection`: the route generates and embeds nothing, and is admitted even during a flood of requests that do.
    """

    class RunningRoute(base):  # type: ignore[valid-type,misc]  # a class made for these keys
        def get_route_handler(self) -> Handler:
            handle = super().get_route_handler()

            async def timed(request: Request) -> Response:
                key: ApiKey | None = request.scope.get(KEY_IN_SCOPE)
                # Until its body says more, it may go as early as its key lets it.
                request_context = RequestContext(current_record.get(), key, _min_priority(context, key))
                if key is not None and not context.settings.share_prefix_cache:
                    request_context.cache_salt = key.name
                context.engine.check_room(request_context=request_context, is_inspection=is_inspection)
                try:
                    async with asyncio.timeout(None) as backstop:
                        request_context.backstop = backstop
                        for seconds in (context.settings.request_timeout, _wish(request.headers.get(HEADER))):
                            if seconds:
                                request_context.shorten(seconds)
                        _current.set(request_context)
                        response: Response = await handle(request)
                except TimeoutError:
                    if backstop.expired():
                        raise request_context.late() from None
                    raise
                return response

            return timed

    return RunningRoute


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
    return _current.get() or RequestContext()


def _min_priority(context: AppContext, key: ApiKey | None) -> int:
    """Return the earliest priority that requests with this key may ask for."""
    if key is not None and key.limits.min_priority is not None:
        return key.limits.min_priority
    return min(PRIORITIES) if context.settings.allow_priority else 0


def _wanted_priority(context: AppContext, body: RunFields, key: ApiKey | None) -> int:
    """Return the priority that the body asks for. A key that must yield need not say so. Raises BadRequest."""
    least = _min_priority(context, key)
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


def _wish(value: str | None) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise BadRequest(
            f"{HEADER}: {shown(value)} is no time; a number of seconds above 0 is accepted.",
            param=HEADER,
            code="invalid_value",
        )
    return seconds
