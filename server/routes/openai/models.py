"""GET /v1/models and /v1/models/{id}: the models that are served."""

import time
from typing import Any

from fastapi import APIRouter

from server.routes.context import AppContext
from server.routes.prompts import check_model


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add the routes to the router."""
    created = int(time.time())

    def card() -> dict[str, Any]:
        return {
            "id": context.model_id,
            "object": "model",
            "created": created,
            "owned_by": "lightwell",
            "root": context.model_root,
            "max_model_len": context.context_limit,
            "compute_dtype": context.compute_dtype,
        }

    @router.get("/v1/models", tags=["models"], summary="The models that are served")
    async def models() -> dict[str, Any]:
        """Return the one model that is served, with its limits."""
        return {"object": "list", "data": [card()]}

    # A path, because hub ids hold slashes.
    @router.get("/v1/models/{model_id:path}", tags=["models"], summary="One model")
    async def model(model_id: str) -> dict[str, Any]:
        """Return the model of this name."""
        check_model(context, model_id)
        return card()
