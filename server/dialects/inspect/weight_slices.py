"""GET /v1/models/{id}/weights lists the weights, and /weights/{name} returns a part of one."""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from lightwell.model.analysis.matrices import NamedWeight, UnknownMatrix
from lightwell.model.analysis.weight_names import find_weight, list_weights
from lightwell.server.dialects.auth_route import KEY_IN_SCOPE
from lightwell.server.dialects.inspect.inspection import asked_of_weights, described, inspection_route
from lightwell.server.dialects.inspect.weights import (
    answer_about_weights,
    ask_about_weights,
    check_once,
    find_weights,
    layer_of,
)
from lightwell.server.dialects.responses import check_num_values, head_of, wire_of
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.interventions.selectors import resolve, span
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.supported_routes import ROUTE_OF_WEIGHTS, why_no_weights
from lightwell.server.http.errors import BadRequest, Forbidden, shown
from lightwell.server.http.tensor_formats import VALUE_BYTES, EncodingFormat, Wire, negotiate
from lightwell.server.http.trace_body import DescribedEntry
from lightwell.server.schemas.base import AnswerModel, Index, ListAnswer, Text
from lightwell.server.schemas.inspect.inputs import DescribedArrayAnswer

_BYTES_OF_A_NAME = 64
"""Bytes of the stored format of one weight, approximately."""
_PIECE = re.compile(r"(-?\d{1,9})|(?:-?\d{1,9})?:(?:-?\d{1,9})?")


class WeightEntry(AnswerModel):
    """A weight of the network, by TransformerLens's name."""

    name: str = Field(description='"embed.W_E", "blocks.0.attn.W_Q", "encoder.blocks.0.ln1.w".')
    axes: list[str] = Field(description="Names of its axes: matrices are [in, out], matrices of heads [head, ...].")
    shape: list[int] = Field(description="Their lengths.")
    stored: str | None = Field(
        description="The format in which the served model stores it: a dtype, or the kind of quantisation."
    )
    tied_to: str | None = Field(description="The weight that shares its storage.")


class WeightListAnswer(ListAnswer):
    """Answer of GET /v1/models/{id}/weights."""

    stored_as: str | None = Field(description="The format in which the checkpoint holds quantised matrices.")
    data: list[WeightEntry] = Field(description="In the order of a forward pass.")
    not_listed: list[str] = Field(
        description="Weights that TransformerLens has no name for, as Lightwell calls them: they cannot be read here."
    )


class WeightsQuery(BaseModel):
    """Query of GET /v1/models/{id}/weights/{name}."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    layer: Index | None = Field(None, description="Of a short name; negative counts from the end.")
    head: Index | None = Field(
        None, description="One head of an attention weight (key head of W_K and W_V); null is all of them."
    )
    rows: Text = Field(
        "all",
        description='Of the first axis of a matrix, or of a vector: "all", indices with commas between, and ranges '
        '"0:64", the end left out; negative counts from the end. Rows of W_E are token ids.',
        max_length=1 << 14,
    )
    columns: Text = Field("all", description="Of the second axis of a matrix, in the same way.", max_length=1 << 14)
    encoding_format: EncodingFormat = Field("float", description="The array in JSON.")


class WeightsEntry(AnswerModel):
    """The numbers of a weight, or of a part of it, as the network uses them: dequantised, whole where processes share
    it, and without LoRA adapters. Gains of norms include the added constant (1 for Gemma).

    Array: weights, float32.
    """

    object: Literal["weights"] = Field(description="Kind of entry.")
    index: int = Field(description="0.")
    name: str = Field(description="Full name.")
    head: int | None = Field(description="The head, if one was requested: its axis is left out.")
    rows: list[int] | None = Field(description="The rows, in the order of the answer; null is all.")
    columns: list[int] | None = Field(description="The columns, likewise.")
    whole_shape: list[int] = Field(description="Of the whole weight.")
    tied_to: str | None = Field(description="The weight that shares its storage.")
    arrays: dict[str, DescribedArrayAnswer] = Field(description="By name.")


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add the routes to the router, before the route of one model: its id may contain slashes."""

    @router.get(
        ROUTE_OF_WEIGHTS.replace("model_id", "model_id:path"),
        tags=["inside"],
        summary="Every weight by TransformerLens's name: axes, shape, and how it is kept",
        response_model=WeightListAnswer,
    )
    async def listing(request: Request, model_id: str) -> dict[str, Any]:
        """Return the name, axes and shape of every weight, in the order of a forward pass, and how its numbers are
        kept. `--weights-access` says who may ask.
        """
        _check_access(context, request)
        model = await find_weights(context, model_id)
        found = list_weights(model.config)
        asked = asked_of_weights("stored", _BYTES_OF_A_NAME * len(found.weights) // 4)
        stored = json.loads((await ask_about_weights(model, request, asked))["json"].tobytes())
        data = [
            {
                "name": each.name,
                "axes": each.axes,
                "shape": each.shape,
                "stored": stored.get(each.weight),
                "tied_to": each.tied_to,
            }
            for each in found.weights
        ]
        told = {"stored_as": model.config.stored_as, "data": data, "not_listed": found.not_listed}
        return {**head_of(model), **told}

    @inspection_route(
        router.get,
        ROUTE_OF_WEIGHTS.replace("model_id", "model_id:path") + "/{name}",
        "The numbers of one weight, or of some of its rows and columns",
        WeightsEntry,
        "One entry.",
        ListAnswer,
    )
    async def weights(request: Request, model_id: str, name: str, query: Annotated[WeightsQuery, Query()]) -> Response:
        """Return the numbers as the network uses them: dequantised, whole where processes share the weight, and
        without LoRA adapters. `Accept` chooses JSON, npy or safetensors; `--weights-access` says who may ask.
        """
        _check_access(context, request)
        model = await find_weights(context, model_id)
        check_once(request)
        wanted = negotiate(request.headers.get("accept"))
        chosen = _choose(model, name, query)
        advice = chosen.fitting(model.settings.max_response_bytes, wire_of(wanted, query.encoding_format))
        check_num_values(model, chosen.num_values, wanted, query.encoding_format, advice)
        options = {"name": chosen.weight.name, "head": chosen.head, "rows": chosen.rows, "columns": chosen.columns}
        asked = asked_of_weights("weights", chosen.num_values, **options)
        found = (await ask_about_weights(model, request, asked))["weights"]
        return await answer_about_weights(model, wanted, chosen.entry(found), query.encoding_format)


def _check_access(context: AppContext, request: Request) -> None:
    """Raise Forbidden for a client that may not read weights."""
    refusal = why_no_weights(context.settings, context.keys, request.scope.get(KEY_IN_SCOPE))
    if refusal is not None:
        raise Forbidden(f"{refusal.reason[0].upper()}{refusal.reason[1:]}.", code=refusal.code)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The requested part of a weight. rows and columns: None for all, and for an axis that it lacks."""

    weight: NamedWeight
    head: int | None
    rows: tuple[int, ...] | None
    columns: tuple[int, ...] | None

    @property
    def axes(self) -> tuple[str, ...]:
        return self.weight.axes[self.head is not None :]

    @property
    def shape(self) -> tuple[int, ...]:
        lengths = list(self.weight.shape[self.head is not None :])
        for axis, chosen in zip(self.weight.row_axes, (self.rows, self.columns), strict=False):
            lengths[axis] = lengths[axis] if chosen is None else len(chosen)
        return tuple(lengths)

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)

    def fitting(self, limit: int, wire: Wire) -> str:
        """Return the advice for an answer of at most `limit` bytes."""
        room, lengths = int(limit / VALUE_BYTES[wire]), self.shape
        if len(lengths) == 3 and math.prod(lengths[1:]) <= room:
            return "one head, such as head=0"
        width = lengths[-1] if len(self.weight.row_axes) == 2 else 1
        rows = max(1, room // width)
        one = "head=0 and " if len(lengths) > len(self.weight.row_axes) else ""
        narrow = f" and columns=0:{room}" if width > room else ""
        return f"{one}rows=0:{rows}{narrow}"

    def entry(self, found: Any) -> DescribedEntry:
        fields = {
            "object": "weights",
            "index": 0,
            "name": self.weight.name,
            "head": self.head,
            "rows": self.rows,
            "columns": self.columns,
            "whole_shape": self.weight.shape,
            "tied_to": self.weight.tied_to,
        }
        return DescribedEntry(0, fields, {"weights": described(found, *self.axes)}, key="arrays")


def _choose(model: ServedModel, name: str, query: WeightsQuery) -> _Chosen:
    """Return the requested part. Raises BadRequest, which names the accepted values."""
    try:
        weight = find_weight(model.config, name, layer_of(model, name, query.layer))
    except UnknownMatrix as error:
        raise BadRequest(f"name: {error}.", param="name", code="unknown_matrix") from None
    head = query.head
    if head is not None:
        if weight.num_heads is None:
            raise BadRequest(f"head: {weight.name} has no heads; leave out {head}.", param="head")
        (head,) = resolve(head, weight.num_heads, "head", "head")
    axes = weight.row_axes
    if query.columns != "all" and len(axes) == 1:
        raise BadRequest(f"columns: {weight.name} is a vector and has only rows; leave out columns.", param="columns")
    rows = _read_indices(query.rows, weight.shape[axes[0]], "rows")
    return _Chosen(weight, head, rows, _read_indices(query.columns, weight.shape[axes[-1]], "columns"))


def _read_indices(text: str, count: int, field: str) -> tuple[int, ...] | None:
    """Return the indices of "all" (None), or of numbers and ranges with commas between. Raises BadRequest."""
    if text.strip() == "all":
        return None
    pieces: list[Iterable[int]] = []
    for piece in text.split(","):
        match = _PIECE.fullmatch(piece.strip())
        if match is None:
            raise BadRequest(
                f'{field}: {shown(piece)} is none; "all", or indices and ranges as in 0,5,-1 or 0:64 are accepted.',
                param=field,
            )
        if match[1] is not None:
            pieces.append((int(match[1]),))
        else:
            pieces.append(span(match[0], count))
    found = list(islice(chain.from_iterable(pieces), count + 1))  # a longer list repeats an index: `resolve` refuses it
    if not found:
        raise BadRequest(f"{field}: {shown(text)} chooses none of {count}; at least one is accepted.", param=field)
    return resolve(found, count, field, field.removesuffix("s"))
