"""Reads the rotary embedding that config.json describes, in the spellings of transformers 4 and 5."""

from collections.abc import Mapping
from typing import Any, get_args

from lightwell.model.checkpoint.families.fields import Fields
from lightwell.model.config import RopeConfig, RopeType

_ROPE_TYPES: dict[str, RopeType] = {name: name for name in get_args(RopeType)}
_ROPE_TYPES["su"] = "longrope"  # the name Phi-3 first gave it


def read_rope(
    hf: Fields, head_dim: int, max_position: int, renamed: Mapping[str, RopeType] | None = None
) -> RopeConfig:
    """Read `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (transformers 4).

    A family that rotates a part of each head has a default of `partial_rotary_factor`. renamed: types that have another
    name in the family's files.
    """
    trained = "original_max_position_embeddings"
    written = "rope_parameters" if hf.values.get("rope_parameters") else "rope_scaling"
    outer = {name: hf.optional_number(name) for name in ("rope_theta", "partial_rotary_factor")}
    inner = dict(hf.nested(written).values or hf.defaults.get(written, {}))
    for spelled in ("rope_type", "type"):
        named = inner.get(spelled)
        if isinstance(named, str):
            inner[spelled] = (renamed or {}).get(named, named)
    return rope_of(
        Fields({name: value for name, value in outer.items() if value is not None} | inner, hf.file),
        head_dim,
        max_position,
        original=None if hf.get(trained) is None else hf.size(trained),
        partial=hf.defaults.get("partial_rotary_factor"),
    )


def read_local_and_global_rope(
    hf: Fields, head_dim: int, max_position: int, thetas: Mapping[str, float], *, scale_both: bool
) -> tuple[RopeConfig, RopeConfig]:
    """Read the embeddings of the layers with full attention, and of the layers with a window.

    transformers 5 writes an object for each kind of layer in `rope_parameters`. transformers 4 writes one object,
    `rope_scaling`, for full attention only, or for both if `scale_both`. thetas: the bases if files have no
    `rope_parameters`.
    """
    nested, old = hf.nested("rope_parameters"), hf.nested("rope_scaling").values

    def one(layers: str, scaled: bool) -> RopeConfig:
        found = nested.nested(layers).values
        values: dict[str, Any] = {"rope_theta": thetas[layers], **found, **(old if scaled else {})}
        return rope_of(Fields(values, hf.file), head_dim, max_position)

    return one("full_attention", True), one("sliding_attention", scale_both)


def rope_of(
    fields: Fields, head_dim: int, max_position: int, *, original: int | None = None, partial: float | None = None
) -> RopeConfig:
    """Read one object of parameters, with `rope_theta`.

    original: the length before stretching, in place of the object's own. partial: the share of each head that is
    rotated if the object does not set it, or None for a family that rotates whole heads.
    """
    spelled = "rope_type" if "rope_type" in fields.values else "type"
    named = fields.text(spelled, "") or "default"
    if named not in _ROPE_TYPES:
        raise fields.refuse(spelled, f"supported are {', '.join(_ROPE_TYPES)}")
    rope_type = _ROPE_TYPES[named]
    if partial is None and rope_type != "proportional":
        fields.only("partial_rotary_factor", 1.0)
    dims = int(head_dim * fields.number("partial_rotary_factor", partial or 1.0))
    if dims > head_dim or dims % 2 or not dims:
        raise fields.refuse(
            "partial_rotary_factor", f"an even number of the head's {head_dim} dimensions must be rotated, not {dims}"
        )
    factor = fields.optional_number("factor")
    if factor is None and rope_type in ("linear", "dynamic", "llama3"):
        raise fields.refuse("factor", f"rope type {rope_type!r} needs a positive number")
    longrope = rope_type == "longrope"
    return RopeConfig(
        rope_type=rope_type,
        dims=None if dims == head_dim else dims,
        theta=fields.number("rope_theta", 10000.0),
        max_position=max_position,
        original_max_position=original or fields.size("original_max_position_embeddings", max_position),
        factor=factor,
        attention_factor=fields.optional_number("attention_factor"),
        low_freq_factor=fields.number("low_freq_factor", 1.0),
        high_freq_factor=fields.number("high_freq_factor", 4.0),
        beta_fast=fields.number("beta_fast", 32.0),
        beta_slow=fields.number("beta_slow", 1.0),
        mscale=_absent_if_zero(fields, "mscale"),
        mscale_all_dim=_absent_if_zero(fields, "mscale_all_dim"),
        truncate=fields.flag("truncate", True),
        short_factor=fields.numbers("short_factor", dims // 2) if longrope else (),
        long_factor=fields.numbers("long_factor", dims // 2) if longrope else (),
    )


def _absent_if_zero(fields: Fields, name: str) -> float | None:
    """Return a number, or None if it is absent or 0, which some checkpoints write for "not used"."""
    return fields.optional_number(name) if fields.values.get(name) else None
