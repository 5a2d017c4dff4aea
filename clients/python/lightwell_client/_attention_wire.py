"""Converts the body of /v1/attention to AttentionResults: from safetensors or JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lightwell_client._arrays import array_from_json, array_of
from lightwell_client._attention import AttentionResult
from lightwell_client._exceptions import InvalidResponse
from lightwell_client._results import Usage
from lightwell_client._safetensors import read_safetensors
from lightwell_client._wire import JSON, Answer

if TYPE_CHECKING:
    from lightwell_client._arrays import Array


def parse_attention(answer: Answer, kind: str, count: int) -> list[AttentionResult]:
    """Return one result for each of `count` inputs, in their order; `kind` is the requested one.

    Raises:
        InvalidResponse: the body has another form, or a field is missing or does not fit the numbers.
    """
    read = _from_json if answer.media_type == JSON else _from_file
    try:
        results = sorted(read(answer, kind), key=lambda result: result.index)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InvalidResponse(f"not an attention answer: {type(error).__name__}: {error}") from error
    if [result.index for result in results] != list(range(count)):
        raise InvalidResponse(f"attention of {count} inputs was requested; {[r.index for r in results]} came")
    return results


def _from_json(answer: Answer, kind: str) -> Iterator[AttentionResult]:
    body = answer.json()
    for entry in body["data"]:
        dtypes = [str(entry.get("dtype", "float32")), "int32"]
        arrays = [
            array_from_json(entry[name], dtype, tuple(entry["shape"]))
            for name, dtype in zip(_names_of_arrays(entry), dtypes, strict=False)
        ]
        yield _result(entry, body, kind, *arrays)


def _from_file(answer: Answer, kind: str) -> Iterator[AttentionResult]:
    file = read_safetensors(answer.content)
    common = file.fields
    for key, entry in common.items():
        if re.fullmatch(r"attention\.\d+", key):
            names = _names_of_arrays(entry)
            yield _result(entry, common, kind, *(array_of(file.tensors[f"{name}.{entry['index']}"]) for name in names))


def _names_of_arrays(entry: dict[str, Any]) -> tuple[str, ...]:
    return ("values", "indices") if "k" in entry["axes"] else ("attention",)


def _result(
    entry: dict[str, Any], common: Mapping[str, Any], kind: str, attention: Array, indices: Array | None = None
) -> AttentionResult:
    """Return the entry as a result, after checking that its parts agree with each other."""
    axes = tuple(map(str, entry["axes"]))
    pairs = None if entry.get("pairs") is None else tuple((pair[0], pair[1]) for pair in entry["pairs"])
    offsets = None if entry.get("offsets") is None else tuple((span[0], span[1]) for span in entry["offsets"])
    result = AttentionResult(
        index=int(entry["index"]),
        attention=attention,
        indices=indices,
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
