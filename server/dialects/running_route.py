"""Routes that run the model: a request is admitted before its body is read, and its time begins to run.

A client sets how long it waits with the header `X-Request-Timeout` or the field `timeout`, in seconds; the least of
these and `--request-timeout` counts, from the arrival of the request's head to the head of its answer, or to the end of
a stream. The engine ends late requests (`server.dispatch.engine_client`); this file ends the
other parts: reading the body, and writing the answer.
"""

import asyncio
import math

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from lightwell.server.batches.runner import OWNER_IN_SCOPE
from lightwell.server.config.auth.keys import ApiKey
from lightwell.server.dialects.auth_route import KEY_IN_SCOPE, Handler
from lightwell.server.dispatch.request_context import RequestContext
from lightwell.server.engine.messages.request import BACKGROUND
from lightwell.server.generation.acceptance import current_context, min_priority
from lightwell.server.generation.context import AppContext
from lightwell.server.http.errors import BadRequest, shown
from lightwell.server.observability.access_log import current_record

HEADER = "X-Request-Timeout"


def running_route(base: type[APIRoute], context: AppContext, *, is_inspection: bool = False) -> type[APIRoute]:
    """Return a route that runs the model. After `base` has checked the key, and before it reads the body, a request is
    rejected if there is no room for any, and its time begins to run.

    `is_inspection`: the route generates and embeds nothing, and is admitted even during a flood of requests that do.
    """

    class RunningRoute(base):  # type: ignore[valid-type,misc]  # a class made for these keys
        @property
        def runs_model(self) -> set[str]:
            """Return its methods."""
            return set(self.methods)

        def get_route_handler(self) -> Handler:
            handle = super().get_route_handler()

            async def timed(request: Request) -> Response:
                key: ApiKey | None = request.scope.get(KEY_IN_SCOPE)
                # Until its body says more, it may go as early as its key lets it.
                is_row = OWNER_IN_SCOPE in request.scope  # of a batch
                priority = BACKGROUND if is_row else min_priority(context, key)
                request_context = RequestContext(current_record.get(), key, priority)
                if key is not None and not context.settings.share_prefix_cache:
                    request_context.cache_salt = key.name
                context.check_room(request_context, is_inspection=is_inspection)
                try:
                    async with asyncio.timeout(None) as backstop:
                        request_context.backstop = backstop
                        limit = 0.0 if is_row else context.settings.request_timeout
                        for seconds in (limit, _wish(request.headers.get(HEADER))):
                            if seconds:
                                request_context.shorten(seconds)
                        current_context.set(request_context)
                        response: Response = await handle(request)
                except TimeoutError:
                    if backstop.expired():
                        raise request_context.late() from None
                    raise
                return response

            return timed

    return RunningRoute


def _wish(value: str | None) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise BadRequest(
            f"{HEADER}: {shown(value)} is not a duration; a number of seconds above 0 is accepted.",
            param=HEADER,
            code="invalid_value",
        )
    return seconds
