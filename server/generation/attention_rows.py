"""Writes the attention that comes with generated tokens: for each token the row that chose it, for the prompt its rows,
once.

The row of a token belongs to the position before it, and its keys are all positions up to that one; for cross attention
they are the encoder's positions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightwell.server.engine.messages.outputs import Array
from lightwell.server.engine.messages.request import AttentionCapture
from lightwell.server.generation.interventions.selectors import HeadSelection, select_heads, value_bytes
from lightwell.server.generation.prompts.field_names import FieldNames
from lightwell.server.generation.prompts.prompt import Prompt
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.supported_routes import check_part
from lightwell.server.http.errors import answer_too_large
from lightwell.server.http.tensor_formats import EncodingFormat, NumpyArray, Wire, as_numpy, json_value
from lightwell.server.schemas.sampling import GenerationAttention

_STREAMED_ROWS = 16
"""Most rows of a stream that may wait for a slow reader, for the budget of captured bytes."""


@dataclass(frozen=True)
class RowWriter:
    """The attention rows that one request captures for its tokens, as JSON."""

    heads: HeadSelection
    capture: AttentionCapture
    with_prompt: bool
    encoding_format: EncodingFormat

    def piece(self, tensors: dict[str, Array], query: int) -> dict[str, Any]:
        """Return one token's row, with its query at position `query`, and the prompt's rows if there are any."""
        value = self._object([tensors], [query]) if "attention" in tensors else {}
        return {**value, **self._prompt(tensors)}

    def whole(
        self, pieces: Sequence[dict[str, Array]], first_query: int, write: Callable[..., Any] = json_value
    ) -> dict[str, Any]:
        """Return the rows of all tokens as one array, keys zero-padded to the longest row.

        write: returns the value for an array; `JsonArray` for an answer that is written in pieces.
        """
        rows = [tensors for tensors in pieces if "attention" in tensors]
        value = self._object(rows, list(range(first_query, first_query + len(rows))), write) if rows else {}
        return {**value, **(self._prompt(pieces[0], write) if pieces else {})}

    def _prompt(self, tensors: dict[str, Array], write: Callable[..., Any] = json_value) -> dict[str, Any]:
        if "attention.prompt" not in tensors:
            return {}
        arrays = {"attention": as_numpy(tensors["attention.prompt"])}
        if "attention.prompt.indices" in tensors:
            arrays["attention.indices"] = as_numpy(tensors["attention.prompt.indices"])
        num_queries = arrays["attention"].shape[-2]
        return {"prompt": self._described(arrays, list(range(num_queries)), write)}

    def _object(
        self, rows: Sequence[dict[str, Array]], queries: list[int], write: Callable[..., Any] = json_value
    ) -> dict[str, Any]:
        arrays = {
            name: _stacked([as_numpy(tensors[name]) for tensors in rows], padding)
            for name, padding in (("attention", 0), ("attention.indices", -1))
            if name in rows[0]
        }
        return self._described(arrays, queries, write)

    def _described(
        self, arrays: dict[str, NumpyArray], queries: list[int], write: Callable[..., Any]
    ) -> dict[str, Any]:
        """Return arrays [first axis, query, key] with the names of their axes."""
        shaped = {name: value.reshape(*self.heads.shape, *value.shape[-2:]) for name, value in arrays.items()}
        is_sparse = "attention.indices" in shaped
        names = {"attention": "values" if is_sparse else "attention", "attention.indices": "indices"}
        pairs = {} if self.heads.is_grid else {"pairs": self.heads.pairs}
        return {
            "object": "attention",
            "part": self.capture.part,
            "layers": self.heads.layers,
            "heads": self.heads.heads,
            **pairs,
            "query_positions": queries,
            "axes": [*self.heads.axes, "query", "k" if is_sparse else "key"],
            "shape": shaped["attention"].shape,
            "dtype": self.capture.dtype,
            "kind": self.capture.kind,
            **{names[name]: write(value, self.encoding_format) for name, value in shaped.items()},
        }


def prompt_rows(tensors: dict[str, Array]) -> dict[str, Array]:
    """Return the prompt's rows without the row of the token, for a token that is not in the answer."""
    return {name: value for name, value in tensors.items() if name.startswith("attention.prompt")}


def _stacked(rows: Sequence[NumpyArray], padding: int) -> NumpyArray:
    """Stack rows [first axis, key] of growing length into [first axis, query, key]."""
    width = max(row.shape[-1] for row in rows)
    stacked = np.full((rows[0].shape[0], len(rows), width), padding, rows[0].dtype)
    for i, row in enumerate(rows):
        stacked[:, i, : row.shape[-1]] = row
    return stacked


def row_writer(model: ServedModel, fields: GenerationAttention) -> RowWriter:
    """Return the writer for a body's `attention`. Raises BadRequest for missing layers, heads or a missing part."""
    part = check_part(model, fields.part, "attention.part")
    heads = select_heads(fields, model.config, "attention.")
    capture = AttentionCapture(pairs=heads.pairs, kind=fields.kind, top_k=fields.top_k, dtype=fields.dtype, part=part)
    return RowWriter(heads, capture, fields.prompt, fields.encoding_format)


def check_rows(
    writer: RowWriter, prompt: Prompt, max_tokens: int, choices: int, streams: bool, limit: int, names: FieldNames
) -> int:
    """Return the most bytes that one choice will capture. Raises PayloadTooLarge when the answer would be over `limit`.

    A stream holds one row at a time; an answer in one piece holds all rows, each as long as the longest.
    """
    num_prompt = len(prompt.ids)
    is_cross = writer.capture.part == "cross"
    longest = len(prompt.encoder_ids) if is_cross else num_prompt + max_tokens

    def numbers(rows: int, keys: int) -> int:
        return len(writer.heads.pairs) * rows * (keys if writer.capture.top_k is None else writer.capture.top_k)

    wire: Wire = "base64" if writer.encoding_format == "base64" else "json"
    prompt_numbers = numbers(num_prompt, longest if is_cross else num_prompt) if writer.with_prompt else 0
    row_numbers = numbers(1 if streams else max_tokens, longest)
    estimate = round((prompt_numbers + row_numbers) * value_bytes(writer.capture, wire) * (1 if streams else choices))
    if estimate > limit:
        smaller = f"a smaller {names.of('max_tokens')}"
        advice = f'Request fewer layers or heads, {smaller}, "dtype": "uint8", "top_k": 8, or stream.'
        raise answer_too_large(estimate, limit, advice, of="attention: the answer", param="attention")
    kept = min(max_tokens, _STREAMED_ROWS) if streams else max_tokens
    return round((prompt_numbers + numbers(kept, longest)) * value_bytes(writer.capture, "binary"))
