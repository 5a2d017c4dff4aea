"""POST /v1/lens: the prediction of each layer (nostalgebraist 2020, "interpreting GPT: the logit lens").

Each state goes through the model's own final norm and head; the last one gives the model's own logits.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from lightwell.server.dialects.inspect.inspection import (
    Inspection,
    NamedToken,
    begin,
    described,
    inspection_route,
    read_token,
)
from lightwell.server.engine.messages.request import LensTask
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.interventions.selectors import resolve
from lightwell.server.http.tensor_formats import NumpyArray
from lightwell.server.http.trace_body import DescribedEntry
from lightwell.server.schemas.base import Selector
from lightwell.server.schemas.inspect.inputs import InspectionEntry, InspectionRequest, Target

MAX_LENS_TOKENS = 100
_NAMED_BYTES = 10
"""Bytes of a token's text in JSON, approximately."""
_ROWS = 32
"""Positions in each piece of the names."""


class LensRequest(InspectionRequest):
    """Body of POST /v1/lens."""

    layers: Selector = Field(
        "all", description='States: 0 is the embedding, i the stream after block i; "all", one, or a list.'
    )
    positions: Selector = Field("all", description='Positions: "all", one, or a list; negative from the end.')
    top_k: int = Field(5, ge=1, le=MAX_LENS_TOKENS, description="How many of the likeliest tokens to name.")
    target: Target | None = Field(
        None, description="A text that is one token, or a token id; its rank and probability are returned."
    )


class LensEntry(InspectionEntry):
    """The lens of one input. Arrays: ids [layer, position, k], probabilities [layer, position, k], entropy [layer,
    position] in nats, and with a target target_probabilities and target_ranks [layer, position], 1 the likeliest."""

    layers: list[int] = Field(description="States of the first axis.")
    positions: list[int] = Field(description="Positions of the second axis.")
    top_tokens: list[list[list[str]]] = Field(description="The likeliest tokens, decoded: [layer][position][k].")
    target: dict[str, Any] | None = Field(None, description='{"token_id", "token"} of the target.')


def add_routes(router: APIRouter, context: AppContext) -> None:
    @inspection_route(router.post, "/v1/lens", "Logit lens: the prediction of each layer", LensEntry)
    async def lens(request: Request, body: LensRequest) -> Response:
        """Return the likeliest next tokens by each layer at each position, and a target's rank and probability
        there.
        """
        model = await accept(context, body, "/v1/lens")
        target = read_token(model, body.target, "target")
        inspection = await begin(model, request, body, 3 if body.target is None else 5)
        layers = resolve(body.layers, model.config.num_layers + 1, "layers", "state")
        targets = () if target is None else (target.token_id,)
        top_k = min(body.top_k, model.config.vocab_size)
        tasks = [
            LensTask(layers=layers, positions=positions, top_k=top_k, target_token_ids=targets)
            for positions in await inspection.positions(body.positions)
        ]
        numbers = [len(layers) * len(task.positions) * (2 * task.top_k + 3) for task in tasks]
        num_named = sum(len(layers) * len(task.positions) * task.top_k for task in tasks)
        advice = "fewer layers or positions, or a smaller top_k"
        inspection.check_size(sum(numbers), advice, named_bytes=_NAMED_BYTES * num_named)
        found = await inspection.run([(task, 4 * count) for task, count in zip(tasks, numbers, strict=True)])
        _check_finite(inspection, tasks, found)
        entries = (_entry(inspection, i, task, target, found[i]) for i, task in enumerate(tasks))
        return await inspection.answer_with(entries)


def _check_finite(inspection: Inspection, tasks: Sequence[LensTask], found: Sequence[dict[str, NumpyArray]]) -> None:
    """Raise BadRequest for logits that overflowed: they have no order, so no likeliest tokens and no ranks."""
    for index, (task, tensors) in enumerate(zip(tasks, found, strict=True)):
        broken = np.argwhere(~np.isfinite(tensors["lens.entropy"]))
        if len(broken):
            state, position = task.layers[broken[0, 0]], task.positions[broken[0, 1]]
            raise inspection.not_finite(f"the logits of input {index} in state {state} at position {position}")


def _entry(
    inspection: Inspection, index: int, task: LensTask, target: NamedToken | None, tensors: dict[str, NumpyArray]
) -> DescribedEntry:
    ids = tensors["lens.ids"]
    named = inspection.model.tokenizer.token_strings
    fields: dict[str, Any] = {
        "layers": task.layers,
        "positions": task.positions,
        "top_tokens": [
            [
                orjson.Fragment(orjson.dumps([*map(named, rows[i : i + _ROWS].tolist())])[1:-1])
                for i in range(0, len(rows), _ROWS)
            ]
            for rows in ids
        ],
    }
    arrays = {
        "ids": described(ids, "layer", "position", "k"),
        "probabilities": described(np.exp(tensors["lens.logprobs"]), "layer", "position", "k"),
        "entropy": described(tensors["lens.entropy"], "layer", "position"),
    }
    if target is not None:
        fields["target"] = target.as_json()
        arrays["target_probabilities"] = described(np.exp(tensors["lens.target_logprobs"][..., 0]), "layer", "position")
        arrays["target_ranks"] = described(tensors["lens.target_ranks"][..., 0], "layer", "position")
    return inspection.entry(index, "lens", fields, arrays)
