"""GET /v1/models and /v1/models/{id}: the models that are served."""

import time
from typing import Any

from fastapi import APIRouter

from lightwell.server.dispatch.served_adapter import ServedAdapter
from lightwell.server.generation.context import AppContext


def add_routes(router: APIRouter, context: AppContext) -> None:
    served = context.model
    created = int(time.time())

    def card(adapter: ServedAdapter | None = None) -> dict[str, Any]:
        return {
            "id": served.id if adapter is None else adapter.name,
            "object": "model",
            "created": created if adapter is None else adapter.created,
            "owned_by": "lightwell",
            "root": served.root if adapter is None else str(adapter.folder),
            "parent": None if adapter is None else served.id,
            "max_model_len": served.context_limit,
            "compute_dtype": served.compute_dtype,
        }

    @router.get("/v1/models", tags=["models"], summary="The models that are served")
    async def models() -> dict[str, Any]:
        """Return the model that is served, with its limits, and its LoRA adapters, with the model as `parent`."""
        return {"object": "list", "data": [card(), *map(card, served.adapters)]}

    # A path, because hub ids hold slashes.
    @router.get("/v1/models/{model_id:path}", tags=["models"], summary="One model")
    async def model(model_id: str) -> dict[str, Any]:
        """Return the model, or the LoRA adapter, of this name."""
        _, adapter = context.find(model_id)
        return card(adapter)
