"""Defines the bodies of POST /v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them."""

from pydantic import Field

from lightwell.server.schemas.base import RequestModel, Text
from lightwell.server.schemas.known_fields import Ignored

_IGNORED: Ignored = {"lora_int_id": "adapters are known by their names"}


class LoadAdapterRequest(RequestModel):
    """Body of POST /v1/load_lora_adapter."""

    IGNORED = _IGNORED

    lora_name: Text = Field(description="Name of the adapter, for the field `model` of requests.")
    lora_path: Text = Field(description="Its folder, inside --lora-root.")
    base_model_name: Text | None = Field(None, description="Name of its model; by default the first model.")


class UnloadAdapterRequest(RequestModel):
    """Body of POST /v1/unload_lora_adapter."""

    IGNORED = _IGNORED

    lora_name: Text = Field(description="Name of the adapter.")
