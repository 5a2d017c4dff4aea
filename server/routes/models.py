"""GET /v1/models, /v1/models/{id} and /v1/capabilities: what is served and what it can show."""

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
        }

    @router.get("/v1/models", tags=["models"], summary="The models that are served")
    async def models() -> dict[str, Any]:
        """One model, with its limits."""
        return {"object": "list", "data": [card()]}

    # A path, because hub ids hold slashes.
    @router.get("/v1/models/{model_id:path}", tags=["models"], summary="One model")
    async def model(model_id: str) -> dict[str, Any]:
        """The model of this name."""
        check_model(context, model_id)
        return card()

    @router.get("/v1/capabilities", tags=["models"], summary="What the model can show")
    async def capabilities() -> dict[str, Any]:
        """Shapes of the network, and what each route can return of it."""
        config = context.config
        return {
            "model": context.model_id,
            "architecture": config.architecture,
            "family": config.family,
            "num_layers": config.num_layers,
            "num_heads": config.num_heads,
            "num_kv_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "vocab_size": config.vocab_size,
            "max_model_len": context.context_limit,
            "chat": context.chat_template is not None,
            "attention": {
                "parts": ["decoder"],
                "kinds": ["pattern", "scores", "dots"],
                "dtypes": ["float32", "float16", "uint8"],
                "with_generation": True,
            },
            "embeddings": {"layers": config.num_layers + 1, "poolings": ["mean", "last", "cls", "none"]},
        }
