"""Converts the body of /v1/attention to AttentionResults: safetensors, or the JSON form if that is what came."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lightwell_client._arrays import array_from_json, array_of
from lightwell_client._attention import AttentionResult
from lightwell_client._exceptions import InvalidResponse
from lightwell_client._results import Usage
from lightwell_client._safetensors import read_safetensors
from lightwell_client._wire import JSON, Answer

if TYPE_CHECKING:
    from lightwell_client._arrays import Array

TakeArray = Callable[[str], "Array"]
"""Returns the array of an entry by its name: attention, values or indices."""


def parse_attention(answer: Answer, kind: str, count: int) -> list[AttentionResult]:
    """Return one result for each of `count` inputs, in their order; `kind` is what was asked for.

    Raises:
        InvalidResponse: neither form, or a field is missing or does not fit the numbers.
    """
    read = _from_json if answer.media_type == JSON else _from_file
    try:
        results = read(answer, kind)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InvalidResponse(f"not an attention answer: {type(error).__name__}: {error}") from error
    results.sort(key=lambda result: result.index)
    if [result.index for result in results] != list(range(count)):
        raise InvalidResponse(f"attention of {count} inputs was asked for; {[r.index for r in results]} came")
    return results


def _from_json(answer: Answer, kind: str) -> list[AttentionResult]:
    body = answer.json()

    def taker(entry: dict[str, Any]) -> TakeArray:
        def take(name: str) -> Array:
            dtype = "int32" if name == "indices" else str(entry.get("dtype", "float32"))
            return array_from_json(entry[name], dtype, tuple(entry["shape"]))

        return take

    return [_result(entry, body, kind, taker(entry)) for entry in body["data"]]


def _from_file(answer: Answer, kind: str) -> list[AttentionResult]:
    file = read_safetensors(answer.content)
    common = {name: _json_or_text(text) for name, text in file.metadata.items()}

    def taker(index: int) -> TakeArray:
        def take(name: str) -> Array:
            return array_of(file.tensors[f"{name}.{index}"])

        return take

    entries = [entry for name, entry in common.items() if re.fullmatch(r"attention\.\d+", name)]
    return [_result(entry, common, kind, taker(entry["index"])) for entry in entries]


def _result(entry: dict[str, Any], common: Mapping[str, Any], kind: str, take: TakeArray) -> AttentionResult:
    """Return the entry as a result, after checking that its parts agree with each other."""
    axes = tuple(map(str, entry["axes"]))
    sparse = "k" in axes
    pairs = None if entry.get("pairs") is None else tuple((pair[0], pair[1]) for pair in entry["pairs"])
    offsets = None if entry.get("offsets") is None else tuple((span[0], span[1]) for span in entry["offsets"])
    result = AttentionResult(
        index=int(entry["index"]),
        attention=take("values" if sparse else "attention"),
        indices=take("indices") if sparse else None,
        axes=axes,
        tokens=tuple(entry["tokens"]),
        token_ids=tuple(entry["token_ids"]),
        offsets=offsets,
        layers=tuple(entry.get("layers") or dict.fromkeys(layer for layer, _ in pairs or ())),
        heads=tuple(entry.get("heads") or dict.fromkeys(head for _, head in pairs or ())),
        pairs=pairs,
        query_positions=tuple(entry["query_positions"]),
        key_positions=tuple(entry["key_positions"]),
        key_tokens=None if entry.get("key_tokens") is None else tuple(entry["key_tokens"]),
        key_token_ids=None if entry.get("key_token_ids") is None else tuple(entry["key_token_ids"]),
        kind=str(entry.get("kind", kind)),
        model=str(common.get("model", "")),
        compute_dtype=common.get("compute_dtype"),
        part=str(entry.get("part", "")),
        stacks=common.get("stacks") or {},
        usage=Usage.model_validate(common["usage"]) if isinstance(common.get("usage"), dict) else None,
    )
    if len(result.shape) != len(axes):
        raise InvalidResponse(f"attention of shape {result.shape} came with the axes {axes}")
    if "shape" in entry and result.shape != tuple(entry["shape"]):
        raise InvalidResponse(f"attention of shape {result.shape} was announced as {entry['shape']}")
    return result


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
