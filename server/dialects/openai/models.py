"""GET /v1/models and /v1/models/{id}: the models that are served."""

import time
from typing import Any

from fastapi import APIRouter

from lightwell.server.dispatch.served_adapter import ServedAdapter
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.model_list import ModelSlot


def add_routes(router: APIRouter, context: AppContext) -> None:
    created = int(time.time())

    def card(slot: ModelSlot, name: str, adapter: ServedAdapter | None = None) -> dict[str, Any]:
        model = slot.model
        return {
            "id": name if adapter is None else adapter.name,
            "object": "model",
            "created": created if adapter is None else adapter.created,
            "owned_by": "lightwell",
            "root": slot.root if adapter is None else str(adapter.folder),
            "parent": None if adapter is None else slot.id,
            "max_model_len": None if model is None else model.context_limit,
            "compute_dtype": None if model is None else model.compute_dtype,
            "status": {"value": slot.state, "failed": bool(slot.error)},
            "kind": slot.kind,
            "capabilities": slot.roles,
        }

    def cards(slot: ModelSlot) -> list[dict[str, Any]]:
        return [card(slot, name) for name in slot.names] + [card(slot, slot.id, adapter) for adapter in slot.adapters]

    @router.get("/v1/models", tags=["models"], summary="The models that are served")
    @router.get("/models", tags=["models"], summary="The same, where llama.cpp's clients look for it")
    async def models() -> dict[str, Any]:
        """Return the models, loaded or not, with their limits and purposes, which are null until a model was loaded
        once, and their LoRA adapters, with the model as `parent`.
        """
        return {"object": "list", "data": [entry for slot in context.models for entry in cards(slot)]}

    # A path, because hub ids hold slashes.
    @router.get("/v1/models/{model_id:path}", tags=["models"], summary="One model")
    async def model(model_id: str) -> dict[str, Any]:
        """Return the model, or the LoRA adapter, of this name."""
        slot = context.models.slot(model_id)
        return next((entry for entry in cards(slot) if entry["id"] == model_id), card(slot, slot.id))
