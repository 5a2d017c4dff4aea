"""GET /api/tags, /api/ps and /api/version, POST /api/show: the models, in the form of Ollama's clients."""

import time
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import Any

from fastapi import APIRouter, Request

from lightwell.model.analysis.census import take_census
from lightwell.model.config import ModelConfig
from lightwell.server.config.memory_estimate import resolved_dtype, weight_bytes
from lightwell.server.dialects.ollama.translation import can_think, served_name, tagged
from lightwell.server.dispatch.served_adapter import ServedAdapter
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.model_list import ModelSlot
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.supported_routes import why_not
from lightwell.server.http.errors import ApiError, NotFound
from lightwell.server.observability.version import lightwell_version
from lightwell.server.schemas.ollama import OllamaShowRequest

_OPTIONS = {"repetition_penalty": "repeat_penalty"}
_UNKNOWN = {
    "format": "", "family": "", "families": [], "parameter_size": "", "quantization_level": ""
}  # fmt: skip
_NEVER = "9999-12-31T23:59:59Z"
_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_NOT_THERE = {"push": "POST", "create": "POST", "copy": "POST", "delete": "DELETE"}
"""Routes of Ollama's that change the models on a disk, each with its method."""


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add the routes that need a key to the router."""
    started = datetime.now(UTC)

    @router.get("/api/tags", tags=["Ollama"], summary="The models that are served, as Ollama lists them")
    async def tags() -> dict[str, Any]:
        """Return the models and their LoRA adapters. `digest` is computed from the name and the place of the files, not
        from their content. `size` is the memory of the weights where none stay quantised as they are stored, and 0 for
        a model that is not loaded.
        """
        found = []
        for slot in context.models:
            found += [_card(slot, name, started) for name in slot.names]
            found += [_card(slot, slot.id, started, adapter) for adapter in slot.adapters]
        return {"models": found}

    @router.get("/api/ps", tags=["Ollama"], summary="The models that are loaded, as Ollama lists them")
    async def loaded() -> dict[str, Any]:
        """Return the models that are loaded."""
        found = []
        for slot in context.models:
            info = None if slot.model is None else slot.model.engine_info
            if slot.model is not None and info is not None:
                told = _card(slot, slot.id, started)
                on_gpu = 0 if info.device == "cpu" else told["size"]
                in_use = {"size_vram": on_gpu, "context_length": slot.model.context_limit}
                found.append({**told, "expires_at": _expiry(slot), **in_use})
        return {"models": found}

    @router.post("/api/show", tags=["Ollama"], summary="Description of a model, as Ollama returns it")
    async def show(body: OllamaShowRequest) -> dict[str, Any]:
        """Return the model's sizes, its chat template, the default settings of requests, and its capabilities."""
        name = served_name(context, body.name if body.model is None else body.model)
        model, adapter = await context.models.find(name)
        told, defaults = (
            _card(context.models.slot(model.id), model.id, started, adapter),
            asdict(model.sampling_defaults),
        )
        return {
            "modified_at": told["modified_at"],
            "details": told["details"],
            "model_info": _model_info(model),
            "template": "" if model.chat_template is None else model.chat_template.source,
            "parameters": "\n".join(f"{_OPTIONS.get(name, name)} {value}" for name, value in defaults.items()),
            "capabilities": _capabilities(model),
        }

    @router.post("/api/pull", include_in_schema=False)
    async def pull() -> None:
        """Refuse a download, and name the command for it."""
        raise ApiError(
            501,
            "A running server does not download models; use `lightwell pull MODEL`, and serve a folder of models with "
            "--models-dir.",
            "invalid_request_error",
            code="not_implemented",
        )

    for route, method in _NOT_THERE.items():
        router.add_api_route(f"/api/{route}", _not_there(context, route), methods=[method], include_in_schema=False)


def _expiry(slot: ModelSlot) -> str:
    """Return the time at which the model is unloaded if no request uses it."""
    if slot.keep_seconds is None:
        return _NEVER
    idle = 0.0 if slot.num_users else time.monotonic() - slot.used_at
    end = datetime.now(UTC) + timedelta(seconds=slot.keep_seconds - idle)
    return end.isoformat(timespec="seconds").replace("+00:00", "Z")


def _card(slot: ModelSlot, name: str, started: datetime, adapter: ServedAdapter | None = None) -> dict[str, Any]:
    """Return a model, or a LoRA adapter of it, as a list of Ollama's has it."""
    root = slot.root if adapter is None else str(adapter.folder)
    parent, name = ("", name) if adapter is None else (tagged(name), adapter.name)
    modified = started if adapter is None else datetime.fromtimestamp(adapter.created, UTC)
    size, details = (0, _UNKNOWN)
    if slot.model is not None:
        config, quantize = slot.model.config, slot.settings.quantize
        size, details = _described(config, resolved_dtype(config, slot.settings), quantize)
    return {
        "name": tagged(name),
        "model": tagged(name),
        "modified_at": modified.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "size": size,
        "digest": sha256(f"{root}\0{name}".encode()).hexdigest(),
        "details": {**details, "parent_model": parent},
    }


def add_open_routes(router: APIRouter, context: AppContext) -> None:
    """Add the route that needs no key to the router."""

    @router.get("/api/version", tags=["Ollama"], summary="Version of the server, where Ollama's clients look for it")
    async def get_version() -> dict[str, str]:
        """Return this server's own version, not one of Ollama's."""
        return {"version": lightwell_version()}


def _not_there(context: AppContext, route: str) -> Any:
    async def refuse(request: Request) -> None:
        """Refuse a change of the models on the disk."""
        names = ", ".join(tagged(name) for slot in context.models for name in slot.names)
        raise NotFound(
            f"There is no /api/{route}: models cannot be changed through this API; available: {names} (GET /api/tags).",
            code="route_not_found",
        )

    return refuse


@lru_cache(32)  # counting parameters takes some milliseconds
def _described(config: ModelConfig, dtype: str, quantize: str) -> tuple[int, dict[str, Any]]:
    """Return the bytes of the weights, and the field `details` of Ollama's models."""
    level = _DTYPES.get(dtype, dtype) if quantize == "none" else quantize.upper()
    details = {
        "format": "gguf" if config.stored_as == "gguf" else "safetensors",
        "family": config.family,
        "families": [config.family],
        "parameter_size": _short(take_census(config).total),
        "quantization_level": level if config.stored_as is None else config.stored_as.upper(),
    }
    return weight_bytes(config, dtype, quantize), details


def _short(number: int) -> str:
    """Return a number of parameters as people say it: 8.0B, 134.5M."""
    for unit, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= unit:
            return f"{number / unit:.1f}{letter}"
    return str(number)


def _model_info(model: ServedModel) -> dict[str, Any]:
    """Return the sizes by the names that GGUF files have for them."""
    config: ModelConfig = model.config
    of_the_family = {
        "context_length": model.context_limit,
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "vocab_size": config.vocab_size,
    }
    return {
        "general.architecture": config.family,
        "general.parameter_count": take_census(config).total,
        **{f"{config.family}.{name}": value for name, value in of_the_family.items()},
    }


def _capabilities(model: ServedModel) -> list[str]:
    """Return the capabilities of the model, by Ollama's names."""
    source = "" if model.chat_template is None else model.chat_template.source
    can = {
        "completion": why_not(model, "/api/generate") is None,
        "tools": "tools" in source,
        "thinking": can_think(model),
        "embedding": True,
    }
    return [name for name, is_there in can.items() if is_there]
