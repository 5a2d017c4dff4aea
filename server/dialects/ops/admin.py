"""The operator's routes, for admin keys only: the API keys with their use, and the state of the server."""

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from lightwell.server.config.auth.keys import KeyFileError, KnownKey
from lightwell.server.dialects.responses import json_response
from lightwell.server.generation.context import AppContext
from lightwell.server.http.errors import Conflict


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add the routes to the router, which must be one for admin keys."""

    @router.get("/admin/keys", tags=["admin"], summary="The API keys and their use", response_model=None)
    async def keys() -> Response:
        """Return the names, limits and use of all keys, without the keys and their hashes."""
        return json_response({"object": "list", "data": [_entry(known) for known in context.keys.known]})

    @router.get("/admin/state", tags=["admin"], summary="State of the server", response_model=None)
    async def state() -> Response:
        """Return the requests in flight, admission, and each worker's queues, blocks and last step, as SIGUSR1
        writes them to the log. The answer contains ids and numbers, but no prompts.
        """
        return json_response(await context.models.describe())

    @router.post("/admin/keys/reload", tags=["admin"], summary="Read the key file again", response_model=None)
    async def reload() -> Response:
        """Read the key file again. The answer is 409 if the file cannot be used, or there is none: the keys are then
        as before.
        """
        try:
            context.keys.reload()
        except KeyFileError as error:
            raise Conflict(f"The API keys are unchanged: {error}.", code="key_file_invalid") from None
        return await keys()


def _entry(known: KnownKey) -> dict[str, Any]:
    key, use = known.key, known.use
    return {
        "name": key.name,
        "admin": key.is_admin,
        "expires": None if key.expires is None else int(key.expires),
        "max_requests": key.limits.max_requests,
        "tokens_per_minute": key.limits.tokens_per_minute,
        "min_priority": key.limits.min_priority,
        "requests_in_flight": use.num_requests,
        "requests_total": use.requests_total,
        "tokens_total": use.tokens_total,
        "refusals": dict(use.refusals),
    }
