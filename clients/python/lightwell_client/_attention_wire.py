"""From the body of /v1/attention to AttentionResults: safetensors, or the JSON form if that is what came."""

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
"""The array of an entry by its name: attention, values or indices."""


def parse_attention(answer: Answer, kind: str) -> list[AttentionResult]:
    """One result for each input, in their order; `kind` is what was asked for.

    Raises:
        InvalidResponse: neither form, or a field is missing or does not fit the numbers.
    """
    read = _from_json if answer.media_type == JSON else _from_file
    try:
        results = read(answer, kind)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InvalidResponse(f"not an attention answer: {type(error).__name__}: {error}") from error
    if not results:
        raise InvalidResponse("an attention answer with no entry")
    return sorted(results, key=lambda result: result.index)


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
            tensor = file.tensors.get(f"{name}.{index}") or file.tensors[f"attention.{index}.{name}"]
            return array_of(tensor)

        return take

    return [_result(entry, common, kind, taker(entry["index"])) for entry in _entries(common)]


def _entries(common: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The entries of a file's metadata: a list under "data", or one object under the name of each tensor."""
    data = common.get("data")
    if isinstance(data, list):
        return data
    entries = {
        int(match[1]): entry
        for name, entry in common.items()
        if (match := re.fullmatch(r"(?:attention\.)?(\d+)", name)) and isinstance(entry, dict)
    }
    return [{"index": index, **entry} for index, entry in entries.items()]


def _result(entry: dict[str, Any], common: Mapping[str, Any], kind: str, take: TakeArray) -> AttentionResult:
    """The entry as a result, once its parts agree with each other."""
    axes = tuple(map(str, entry["axes"]))
    sparse = bool(entry.get("top_k")) or "values" in entry or "k" in axes
    key_tokens, offsets, pairs = entry.get("key_tokens"), entry.get("offsets"), entry.get("pairs")
    result = AttentionResult(
        index=int(entry["index"]),
        attention=take("values" if sparse else "attention"),
        indices=take("indices") if sparse else None,
        axes=axes,
        tokens=tuple(entry["tokens"]),
        token_ids=tuple(entry["token_ids"]),
        offsets=None if offsets is None else tuple((span[0], span[1]) for span in offsets),
        layers=tuple(entry["layers"]),
        heads=tuple(entry["heads"]),
        pairs=None if pairs is None else tuple((pair[0], pair[1]) for pair in pairs),
        query_positions=tuple(entry["query_positions"]),
        key_positions=tuple(entry["key_positions"]),
        key_tokens=None if key_tokens is None else tuple(key_tokens),
        key_token_ids=None if entry.get("key_token_ids") is None else tuple(entry["key_token_ids"]),
        kind=str(entry.get("kind", kind)),
        model=str(common.get("model", "")),
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
