"""GET /admin/models, POST /admin/models/{id}/load and /unload, and the same by llama.cpp's names: POST /models/load and
/models/unload.
"""

from typing import Any

from fastapi import APIRouter
from pydantic import Field

from lightwell.server.generation.context import AppContext
from lightwell.server.generation.model_list import ModelSlot
from lightwell.server.http.errors import BadRequest
from lightwell.server.schemas.base import RequestModel, Text


class ModelRequest(RequestModel):
    """Body of POST /models/load and /models/unload."""

    model: Text = Field(description="Name of the model.")


def add_admin_routes(router: APIRouter, context: AppContext) -> None:
    """Add the routes under /admin to the router, which must be one for admin keys."""

    @router.get("/admin/models", tags=["admin"], summary="The models and their states")
    async def models() -> dict[str, Any]:
        """Return every model: its names, its state, why it takes no requests, and how many HTTP requests use it."""
        return {"object": "list", "data": [_entry(slot) for slot in context.models]}

    @router.post("/admin/models/{model_id:path}/load", tags=["admin"], summary="Load a model")
    async def load(model_id: str) -> dict[str, Any]:
        """Load a model, and return its state once it takes requests."""
        slot = context.models.slot(model_id)
        await context.models.load(slot)
        return _entry(slot)

    @router.post("/admin/models/{model_id:path}/unload", tags=["admin"], summary="Unload a model")
    async def unload(model_id: str) -> dict[str, Any]:
        """Unload a model once its running requests have ended, and return its state; a later request loads it again."""
        slot = context.models.slot(model_id)
        await _unload(context, slot)
        return _entry(slot)


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add llama.cpp's routes to the router."""

    @router.post("/models/load", tags=["models"], summary="Load a model, as llama.cpp does")
    async def load(body: ModelRequest) -> dict[str, Any]:
        """Load a model; the answer comes once it takes requests."""
        await context.models.load(context.models.slot(body.model))
        return {"success": True}

    @router.post("/models/unload", tags=["models"], summary="Unload a model, as llama.cpp does")
    async def unload(body: ModelRequest) -> dict[str, Any]:
        """Unload a model once its running requests have ended; a later request loads it again."""
        await _unload(context, context.models.slot(body.model))
        return {"success": True}


async def _unload(context: AppContext, slot: ModelSlot) -> None:
    if not context.models.may_unload:
        raise BadRequest(f"The model {slot.id!r} is the only model of this server and stays loaded.", param="model")
    await context.models.unload(slot)


def _entry(slot: ModelSlot) -> dict[str, Any]:
    return {
        "id": slot.id,
        "names": slot.names,
        "root": slot.root,
        "state": slot.state,
        "reason": slot.reason,
        "requests_in_flight": slot.num_users,
    }
