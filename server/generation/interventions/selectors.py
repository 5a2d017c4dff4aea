"""Selectors of layers, heads and positions as absolute indices, checked against the model and the input.

The module also estimates the size of an answer with attention, and finds smaller requests for the error of one that is
too large.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from msgspec import structs

from lightwell.model.config import ModelConfig
from lightwell.server.engine.messages.request import AttentionCapture, Part
from lightwell.server.http.errors import BadRequest, answer_too_large, shown
from lightwell.server.http.tensor_formats import Wire
from lightwell.server.schemas.inspect.attention import AttentionFields, AttentionRequest

Selector = str | int | list[int]

_ITEM_BYTES = {"float32": 4, "float16": 2, "uint8": 1}
_INDEX_BYTES = 4
_JSON_BYTES = {"float32": 14.0, "float16": 13.0, "uint8": 4.0}
"""Characters of one number and its comma in JSON."""
_JSON_INDEX_BYTES = 6.0


def resolve(selector: Selector, count: int, field: str, what: str) -> tuple[int, ...]:
    """Return "all", a range ("0:2"), an index or a list of them as absolute indices below `count`, in the order given.

    Raises BadRequest if an index is out of range or is given twice, or a range is empty.
    """
    if isinstance(selector, str):
        chosen = span(selector, count)
        if not chosen:
            message = f"{field}: {selector!r} chooses none of {count} {what}s; at least one is accepted."
            raise BadRequest(message, param=field, code="out_of_range")
        return tuple(chosen)
    # Of more than `count` indices, one of the first `count + 1` is out of range or is given twice.
    indices = [selector] if isinstance(selector, int) else selector[: count + 1]
    for outermost in (min(indices), max(indices)):
        _absolute(outermost, count, field, what)
    absolute = tuple([index % count for index in indices])
    if len(set(absolute)) != len(absolute):
        twice = next(index for index, number in Counter(absolute).items() if number > 1)
        raise BadRequest(f"{field}: {what} {twice} is given twice in {shown(selector)}; once is accepted.", param=field)
    return absolute


def span(selector: str, count: int) -> range:
    """Return the indices below `count` of "all" or of a range such as "-4:"."""
    return range(count)[slice(*(int(end) if end else None for end in selector.replace("all", ":").split(":")))]


def resolve_attending(selector: Selector, config: ModelConfig, field: str) -> tuple[int, ...]:
    """Return the layers of a selector; "all" is the layers with attention.

    Raises BadRequest as `resolve` does, and for a layer without attention.
    """
    if selector == "all":
        return config.attention_layers
    layers = resolve(selector, config.num_layers, field, "layer")
    for layer in layers:
        _check_attends(layer, config, field)
    return layers


def _check_attends(layer: int, config: ModelConfig, field: str) -> None:
    if not config.has_attention(layer):
        raise BadRequest(
            f"{field}: layer {layer} has no attention, but a {config.mixer_name(layer)}; accepted are "
            f"{', '.join(map(str, config.attention_layers))}.",
            param=field,
            code="no_attention",
        )


def _absolute(index: int, count: int, field: str, what: str) -> int:
    if not -count <= index < count:
        raise BadRequest(
            f"{field}: there is no {what} {index}; accepted are 0 to {count - 1}, and -{count} to -1 from the end.",
            param=field,
            code="out_of_range",
        )
    return index % count


@dataclass(frozen=True, slots=True)
class HeadSelection:
    """The (layer, head) pairs of an answer and how they are arranged on its first axes."""

    pairs: tuple[tuple[int, int], ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    is_grid: bool
    """Whether the pairs are every head of `heads` in every layer of `layers`, so the answer has an axis for each."""
    is_reduced: bool = False
    """Whether the answer is reduced over the heads of each layer."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the names of the leading axes."""
        if self.is_reduced:
            return ("layer",)
        return ("layer", "head") if self.is_grid else ("pair",)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the lengths of the leading axes."""
        if self.is_reduced:
            return (len(self.layers),)
        return (len(self.layers), len(self.heads)) if self.is_grid else (len(self.pairs),)


def every_head(
    layers: Selector, heads: Selector, config: ModelConfig, prefix: str = "", is_reduced: bool = False
) -> HeadSelection:
    """Return every head of `heads` in every layer of `layers`. Raises BadRequest, as `select_heads` does."""
    rows = resolve_attending(layers, config, f"{prefix}layers")
    columns = resolve(heads, config.num_heads, f"{prefix}heads", "head")
    return HeadSelection(tuple(product(rows, columns)), rows, columns, True, is_reduced)


def select_heads(fields: AttentionFields, config: ModelConfig, prefix: str = "") -> HeadSelection:
    """Return the pairs selected by `fields`. Raises BadRequest; `prefix` precedes the names of the fields."""
    is_reduced = getattr(fields, "reduce", None) is not None
    if fields.pairs is None:
        return every_head(fields.layers, fields.heads, config, prefix, is_reduced)
    name = f"{prefix}pairs"
    pairs = tuple(
        (_absolute(layer, config.num_layers, name, "layer"), _absolute(head, config.num_heads, name, "head"))
        for layer, head in fields.pairs
    )
    for layer, _ in pairs:
        _check_attends(layer, config, name)
    if len(set(pairs)) != len(pairs):
        raise BadRequest(f"{name}: a pair is given twice in {shown(fields.pairs)}; once is accepted.", param=name)
    layers = tuple(dict.fromkeys(layer for layer, _ in pairs))
    heads = tuple(dict.fromkeys(head for _, head in pairs))
    return HeadSelection(pairs, layers, heads, False, is_reduced)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The planned contents of one input's answer."""

    heads: HeadSelection
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    capture: AttentionCapture

    @property
    def num_values(self) -> int:
        """Return the number of values in the answer."""
        if self.capture.resize is not None:
            return math.prod(self.heads.shape) * self.capture.resize**2
        row_width = len(self.keys) if self.capture.top_k is None else self.capture.top_k
        return math.prod(self.heads.shape) * len(self.queries) * row_width

    @property
    def capture_bytes(self) -> int:
        """Return the bytes that the engine keeps and sends."""
        return round(self.num_values * value_bytes(self.capture, "binary"))


def plan_attention(
    request: AttentionRequest, heads: HeadSelection, num_queries: int, num_keys: int, part: Part
) -> AttentionPlan:
    """Return the plan for an input; for cross attention the keys are the encoder's.

    Raises BadRequest if a position is out of range.
    """
    queries = resolve(request.query_positions, num_queries, "query_positions", "position")
    keys = resolve(request.key_positions, num_keys, "key_positions", "position")
    capture = AttentionCapture(
        pairs=heads.pairs,
        queries=None if request.query_positions == "all" else queries,
        keys=None if request.key_positions == "all" else keys,
        kind=request.kind,
        reduce=request.reduce,
        top_k=request.top_k,
        resize=request.resize,
        dtype=request.dtype,
        part=part,
    )
    return AttentionPlan(heads, queries, keys, capture)


def value_bytes(capture: AttentionCapture, wire: Wire) -> float:
    """Return the bytes of one number of the answer, with its index if there is a top_k."""
    return number_bytes(capture.dtype, wire, has_index=capture.top_k is not None)


def number_bytes(dtype: str, wire: Wire, *, has_index: bool = False) -> float:
    """Return the bytes of one number of an answer, and of its index if it has one."""
    if wire == "json":
        return _JSON_BYTES[dtype] + (_JSON_INDEX_BYTES if has_index else 0.0)
    raw = _ITEM_BYTES[dtype] + (_INDEX_BYTES if has_index else 0)
    return raw * 4 / 3 if wire == "base64" else float(raw)


def check_answer_size(plans: Sequence[AttentionPlan], wire: Wire, limit: int, token_bytes: int = 0) -> int:
    """Return the estimated bytes of the answer to `plans`, with `token_bytes` of the inputs' tokens.

    Raises PayloadTooLarge if they are over `limit`. The error names the estimate, and smaller requests that fit.
    """
    estimate = _estimate(plans, wire) + token_bytes
    if estimate <= limit:
        return estimate
    room = max(0, limit - token_bytes)
    ways = [way for way in (_fewer_heads(plans, wire, room), *_cheaper_forms(plans, wire, room)) if way]
    fits = f"Any of these fits: {'; '.join(ways)}." if ways else "Send fewer or shorter inputs."
    raise answer_too_large(estimate, limit, fits)


def _estimate(plans: Sequence[AttentionPlan], wire: Wire) -> int:
    return math.ceil(sum(plan.num_values * value_bytes(plan.capture, wire) for plan in plans))


def _cheaper_forms(plans: Sequence[AttentionPlan], wire: Wire, limit: int) -> list[str]:
    """Return other encodings of the same numbers that fit, then parts of each row."""

    def fits(change: Callable[[AttentionCapture], AttentionCapture], to: Wire) -> bool:
        return _estimate([replace(plan, capture=change(plan.capture)) for plan in plans], to) <= limit

    ways = []
    if wire != "binary" and fits(lambda capture: capture, "binary"):
        ways.append("Accept: application/vnd.safetensors")
    capture = plans[0].capture
    if capture.dtype == "float32" and fits(lambda c: structs.replace(c, dtype="float16"), wire):
        ways.append('"dtype": "float16"')
    if (
        capture.dtype != "uint8"
        and capture.kind == "pattern"
        and fits(lambda c: structs.replace(c, dtype="uint8"), wire)
    ):
        ways.append('"dtype": "uint8"')
    if capture.top_k is None and capture.resize is None and fits(lambda c: structs.replace(c, top_k=8), wire):
        ways.append('"top_k": 8')
    return ways


def _fewer_heads(plans: Sequence[AttentionPlan], wire: Wire, limit: int) -> str:
    """Return the largest selection of layers, else heads, else rows that fits, as JSON; "" if no row fits."""
    heads = plans[0].heads
    per_pair = sum(plan.num_values * value_bytes(plan.capture, wire) for plan in plans) / math.prod(heads.shape)
    pairs = int(limit // per_pair)
    if not heads.is_grid:
        return f'"pairs": the first {pairs} of them' if pairs else ""
    per_layer = math.prod(heads.shape[1:])
    if pairs >= per_layer:
        return f'"layers": {shown(list(heads.layers[: pairs // per_layer]))}'
    if pairs:
        return f'"layers": {heads.layers[0]}, "heads": {shown(list(heads.heads[:pairs]))}'
    if len(plans) > 1 or plans[0].capture.resize is not None:
        return ""
    rows = int(limit // (per_pair / len(plans[0].queries)))
    positions = shown(list(plans[0].queries[-rows:])) if rows else ""
    return f'"layers": {heads.layers[0]}, "heads": {heads.heads[0]}, "query_positions": {positions}' if rows else ""
