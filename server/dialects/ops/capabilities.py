"""GET /v1/capabilities: the structure of the loaded model, the routes that answer, and the reasons of the others."""

from dataclasses import asdict
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query, Request

from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import (
    full_name,
    points_of,
    sizes,
    stack_config,
    stacks,
    version_4_names,
    why_absent,
)
from lightwell.model.hooks.points import Point, Stack
from lightwell.server.dialects.auth_route import KEY_IN_SCOPE
from lightwell.server.engine.messages.request import AttentionKind, CaptureDtype, Pooling
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.interventions.reading import MAX_VALUE_BYTES
from lightwell.server.generation.prompts.prompt import encoder_limit
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.supported_routes import (
    CLASSIFICATIONS,
    ROUTE_OF_WEIGHTS,
    ROUTES_OF_A_DECODER,
    ROUTES_OF_A_HEAD,
    ROUTES_OF_ANY_MODEL,
    SCORINGS,
    SPARSE,
    UnsupportedReason,
    parts_of,
    why_no_weights,
    why_not,
)
from lightwell.server.schemas.base import MAX_PROMPTS
from lightwell.server.schemas.inspect.interventions import MAX_INTERVENTIONS
from lightwell.server.schemas.inspect.trace import MAX_POINTS
from lightwell.server.schemas.judgements.head_fields import MAX_DOCUMENTS

_OPS = {
    "zero": "0",
    "mean": "the mean over positions, of other inputs or of this one",
    "scale": "times a value",
    "add": "plus a value",
    "patch": "a value, or the numbers of another input",
    "temperature": "attention scores divided by a value before the softmax; hook_attn_scores only",
}

_ROUTES = (*ROUTES_OF_A_DECODER, *ROUTES_OF_A_HEAD, *ROUTES_OF_ANY_MODEL, *SCORINGS, *CLASSIFICATIONS, SPARSE)
_SAME_BITS: dict[str | None, str] = {"float32": "every_level", "bf16-dot": "same_level"}
"""The levels of CPU between which an answer has the same bits, by how products are computed."""


def add_routes(router: APIRouter, context: AppContext) -> None:
    @router.get("/v1/capabilities", tags=["models"], summary="Points, parts and routes of a model")
    async def capabilities(
        request: Request, named: Annotated[str | None, Query(alias="model", description="Name of the model.")] = None
    ) -> dict[str, Any]:
        """Return the shapes of each stack, every point with its axes, and which routes answer; those that do not say
        why. Without `model`, the first model is described.
        """
        model, _ = await context.models.find(named)
        config = model.config
        refusal = why_no_weights(context.settings, context.keys, request.scope.get(KEY_IN_SCOPE))
        return {
            "model": model.id,
            "architecture": config.architecture,
            "family": config.family,
            "kind": config.kind,
            **_sizes(config),
            "vocab_size": config.vocab_size,
            "max_model_len": model.context_limit,
            "compute_dtype": model.compute_dtype,
            "batch_invariant": model.batch_invariant,
            "speculation": model.speculation,
            **_kernels(model),
            "quantize": model.settings.quantize,
            "stored_weights": _stored_weights(model),
            "chat": model.chat_template is not None,
            "default_sampling_params": asdict(model.sampling_defaults),
            "stacks": {stack: _stack(model, stack) for stack in stacks(config)},
            "attention": {
                "parts": parts_of(config),
                "kinds": get_args(AttentionKind),
                "dtypes": get_args(CaptureDtype),
                "with_generation": config.kind != "encoder" and config.has_head,
            },
            "prefix_caching": config.reuses_prefixes and not model.settings.no_prefix_caching,
            "embeddings": _embeddings(model),
            "points": [_point(config, stack, point) for stack in stacks(config) for point in points_of(config, stack)],
            "interventions": {
                "ops": _OPS,
                "max_interventions": MAX_INTERVENTIONS,
                "max_value_bytes": MAX_VALUE_BYTES,
            },
            "routes": {
                **{route: _route(why_not(model, route)) for route in _ROUTES},
                ROUTE_OF_WEIGHTS: _route(refusal),
            },
            "limits": {
                "max_response_bytes": model.settings.max_response_bytes,
                "max_capture_bytes": model.capture_limit,
                "max_body_bytes": context.settings.max_body_bytes,
                "max_inputs": MAX_PROMPTS,
                "max_documents": MAX_DOCUMENTS,
                "max_points": MAX_POINTS,
            },
        }


_SIZES = (
    "num_layers", "num_heads", "num_kv_heads", "attention_layers", "head_dim", "hidden_size", "intermediate_size",
)  # fmt: skip
_CONFIG_FIELDS = (
    "norm", "norm_placement", "activation", "gated_mlp", "parallel_blocks", "qk_norm", "v_norm", "keys_are_values",
    "per_layer_size", "stream_scales", "embedding_scale", "residual_scale", "attention_gate", "attention_scale",
    "attention_sinks", "attn_logit_softcap", "final_logit_softcap", "causal", "cross_attention",
)  # fmt: skip


def _sizes(config: ModelConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in _SIZES}


def _kernels(model: ServedModel) -> dict[str, str | None]:
    """Return the kernels, and the levels of CPU between which whole answers have the same bits; null before a worker
    has reported them. There is no such promise for several ranks.
    """
    info = model.engine_info
    kernels = {name: getattr(info, name, None) for name in ("kernels", "kernel_level", "kernel_arithmetic")}
    is_promised = model.settings.tensor_parallel == 1
    promised = _SAME_BITS.get(kernels["kernel_arithmetic"]) if is_promised else None
    return {**kernels, "same_bits_across": promised}


def _stored_weights(model: ServedModel) -> dict[str, Any] | None:
    """Return the quantised format of a checkpoint and the number of matrices that remain in it; null if it has none.
    The numbers are null before a worker has reported them.
    """
    info, is_kept = model.engine_info, model.settings.quantize == "none"
    if model.config.stored_as is None:
        return None
    return {
        "format": model.config.stored_as,
        "num_matrices": None if info is None else info.num_matrices,
        "num_kept": None if info is None else info.num_grouped * is_kept,
        "kept_bytes": None if info is None else info.grouped_bytes * is_kept,
    }


def _stack(model: ServedModel, stack: Stack) -> dict[str, Any]:
    own = stack_config(model.config, stack)
    positions = {
        "learned": own.learned_positions,
        "sinusoidal": own.sinusoidal_positions,
        "rotary": own.rope is not None,
        "relative": own.position_bias is not None,
        "alibi": own.alibi,
    }
    return {
        **_sizes(own),
        "max_model_len": encoder_limit(model) if stack == "encoder" else model.context_limit,
        "positions": [name for name, is_used in positions.items() if is_used],
        "unrotated_layers": own.unrotated_layers or None,
        **{name: getattr(own, name) for name in _CONFIG_FIELDS},
        "clamped_gate": None if own.clamped_gate is None else asdict(own.clamped_gate),
        "recurrence": None if own.recurrence is None else {"kind": own.recurrence.kind, **asdict(own.recurrence)},
        "experts": None if own.experts is None else asdict(own.experts),
        "layer_sizes": _layer_sizes(own),
        "altup": None if own.altup is None else asdict(own.altup),
        "sliding_windows": own.sliding_windows or None,
    }


def _layer_sizes(own: ModelConfig) -> list[dict[str, int]] | None:
    """Return the sizes of each layer, and the layer of its keys and values; None if all layers are equal."""
    if own.layers_are_alike and not own.num_kv_shared_layers:
        return None
    found = []
    for layer in range(own.num_layers):
        sizes_there, names = own.at(layer), ("num_kv_heads", "head_dim", "intermediate_size")
        found.append({**{name: getattr(sizes_there, name) for name in names}, "kv_layer": own.kv_layer(layer)})
    return found


def _point(config: ModelConfig, stack: Stack, point: Point) -> dict[str, Any]:
    """Return one point: its names, axes and layers, and the lengths of the axes that the model fixes."""
    layers = range(stack_config(config, stack).num_layers) if point.in_block else ()
    fixed = [
        each[0] if len(set(each)) == 1 else None
        for each in zip(*(sizes(config, stack, point, 0, 0, layer) for layer in layers or (None,)), strict=True)
    ]
    name = full_name(config, stack, point.name, None)
    prefix = name.removesuffix(point.name)
    return {
        "name": f"{prefix}blocks.{{layer}}.{point.name}" if point.in_block else name,
        "short": point.name if stack == "decoder" or config.kind == "encoder" else name,
        "stack": stack,
        "axes": point.axes,
        "shape": [
            None if axis in ("position", "query", "key") else n for axis, n in zip(point.axes, fixed, strict=True)
        ],
        "layers": [layer for layer in layers if why_absent(config, stack, point, layer) is None],
        "formula": point.formula,
        "about": point.about,
        "other_names": [written for written, meant in version_4_names(config, stack).items() if meant == point.name],
        "changeable": point.changeable,
    }


def _embeddings(model: ServedModel) -> dict[str, Any]:
    defaults = model.embedding_defaults
    own = stack_config(model.config, "encoder")
    width = max(1, len(defaults.modes)) * own.hidden_size
    return {
        "layers": own.num_layers + 1,
        "dimensions": defaults.dense[-1].out_features if defaults.dense else width,
        "poolings": get_args(Pooling),
        "defaults": {
            "pooling": "+".join(defaults.modes or (defaults.pooling,)) if defaults.refusal is None else None,
            "normalize": defaults.normalize,
            "dense": [layer.out_features for layer in defaults.dense],
            "max_length": defaults.max_length,
            "truncate": defaults.truncate,
            "lowercase": defaults.lowercase,
            "prompt_name": defaults.default_prompt_name,
            "is_declared": defaults.is_declared,
            "refusal": defaults.refusal,
        },
        "prompts": dict(defaults.prompts),
    }


def _route(refusal: UnsupportedReason | None) -> dict[str, Any]:
    return {"works": refusal is None, "reason": None if refusal is None else refusal.reason}
