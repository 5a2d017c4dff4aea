"""Builds interventions as dicts: changes inside the network during a request.

    from lightwell_client.interventions import zero
    client.next("Once upon a", interventions=[zero("attn.hook_z", layer=1, head=3)])

Plain dicts work wherever these do. The server checks whether the model accepts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightwell_client._arrays import encoded
from lightwell_client._options import Prompt, Selection

Intervention = dict[str, Any]
"""{"point", "layer", "head", "positions", "op", "value" or "from", "minus", "times"}."""


def zero(
    point: str, *, layer: Selection | None = None, head: Selection | None = None, positions: Selection | None = None
) -> Intervention:
    """Set a point to 0: `zero("attn.hook_z", layer=1, head=3)` ablates one head."""
    return _intervention("zero", point, layer, head, positions)


def mean(
    point: str,
    *,
    layer: Selection | None = None,
    head: Selection | None = None,
    positions: Selection | None = None,
    source: Prompt | Mapping[str, Any] | None = None,
) -> Intervention:
    """Set a point to its mean over the positions of `source`, or of the request's own input when there is none."""
    return _intervention("mean", point, layer, head, positions, source=source)


def scale(
    point: str,
    value: Any = None,
    *,
    layer: Selection | None = None,
    head: Selection | None = None,
    positions: Selection | None = None,
    source: Prompt | Mapping[str, Any] | None = None,
) -> Intervention:
    """Multiply a point by a number, by an array that broadcasts to it, or by the numbers of another input."""
    return _intervention("scale", point, layer, head, positions, value, source)


def add(
    point: str,
    value: Any = None,
    *,
    layer: Selection | None = None,
    head: Selection | None = None,
    positions: Selection | None = None,
    source: Prompt | Mapping[str, Any] | None = None,
    minus: Prompt | Mapping[str, Any] | None = None,
    times: float | None = None,
) -> Intervention:
    """Add to a point: a steering vector [d_model] at "hook_resid_post", say, or the numbers of `source` minus the
    numbers of `minus`, `times` a number: `add("hook_resid_post", layer=2, times=4, source={"input": "love",
    "positions": -1}, minus={"input": "hate", "positions": -1})` steers from one word to the other.
    """
    more = {"minus": _source(minus), "times": times}
    made = _intervention("add", point, layer, head, positions, value, source)
    return made | {name: part for name, part in more.items() if part is not None}


def patch(
    point: str,
    value: Any = None,
    *,
    layer: Selection | None = None,
    head: Selection | None = None,
    positions: Selection | None = None,
    source: Prompt | Mapping[str, Any] | None = None,
) -> Intervention:
    """Replace a point's numbers: by an array, or by the values of the same point on another input (`source`)."""
    return _intervention("patch", point, layer, head, positions, value, source)


def temperature(
    value: float,
    *,
    layer: Selection | None = None,
    head: Selection | None = None,
    positions: Selection | None = None,
    point: str = "attn.hook_attn_scores",
) -> Intervention:
    """Divide attention scores by `value` before the softmax: 0 puts all weight on the largest, large values even it
    out.
    """
    return _intervention("temperature", point, layer, head, positions, value)


def _intervention(
    op: str,
    point: str,
    layer: Selection | None,
    head: Selection | None,
    positions: Selection | None,
    value: Any = None,
    source: Prompt | Mapping[str, Any] | None = None,
) -> Intervention:
    fields = {
        "point": point,
        "op": op,
        "layer": layer,
        "head": head,
        "positions": positions,
        "value": encoded(value),
        "from": _source(source),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _source(source: Prompt | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return source if source is None or isinstance(source, Mapping) else {"input": source}
