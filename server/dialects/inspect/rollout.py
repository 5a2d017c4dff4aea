"""POST /v1/rollout: attention through all layers, multiplied (rollout) or as a maximum flow."""

from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from lightwell.model.analysis.rollout import flow
from lightwell.model.analysis.rollout import rollout as roll
from lightwell.model.hooks.point_names import stack_config
from lightwell.model.kernels.library import levels as kernel_levels
from lightwell.server.dialects.inspect.inspection import (
    Inspection,
    begin,
    described,
    inspection_route,
    rows_of,
    stack_of,
)
from lightwell.server.engine.messages.request import AttentionCapture, AttentionTask
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.interventions.selectors import resolve
from lightwell.server.generation.supported_routes import check_part
from lightwell.server.http.errors import BadRequest
from lightwell.server.http.tensor_formats import NumpyArray
from lightwell.server.http.trace_body import DescribedEntry
from lightwell.server.schemas.base import Selector
from lightwell.server.schemas.inspect.inputs import STACK, InspectionEntry, InspectionRequest, OwnPart

MAX_FLOW_WORK = 400_000_000
"""Most edges of the graphs, times the target inputs of flows: about six seconds of one core."""
MAX_ROLLOUT_WORK = 1_000_000_000_000
"""Most multiplications: about twenty seconds of one core."""


class RolloutRequest(InspectionRequest):
    """Body of POST /v1/rollout."""

    method: Literal["rollout", "flow"] = Field(
        "rollout", description="rollout: the product of the layers; flow: maximum flow through their graph."
    )
    layers: Selector = Field(-1, description='Above which layers: "all", a layer, or a list.')
    heads: Selector = Field("all", description='Whose patterns are averaged in each layer: "all", a head, or a list.')
    query_positions: Selector | None = Field(
        None, description="Rows; null is all for rollout, and the last position for flow."
    )
    part: OwnPart | None = STACK


class RolloutEntry(InspectionEntry):
    """Attention through the layers: array rollout [layer, query, key], whose rows sum to 1; or flow [layer, query,
    key], and normalized, the same with rows scaled to sum to 1.
    """

    part: OwnPart = Field(description="Which stack.")
    method: Literal["rollout", "flow"] = Field(description="Which of the two.")
    layers: list[int] = Field(description="Layers of the first axis.")
    heads: list[int] = Field(description="Heads in this mean pattern.")
    query_positions: list[int] = Field(description="Positions of the second axis.")


def add_routes(router: APIRouter, context: AppContext) -> None:
    @inspection_route(router.post, "/v1/rollout", "Attention through all layers: rollout and flow", RolloutEntry)
    async def rollout(request: Request, body: RolloutRequest) -> Response:
        """Return from which inputs each position's vector comes, through the heads' mean attention and the residual
        connection (Abnar and Zuidema 2020, arXiv:2005.00928).
        """
        model = await accept(context, body, "/v1/rollout")
        part = check_part(model, body.part)
        own = stack_config(model.config, stack_of(part))
        layers = resolve(body.layers, own.num_layers, "layers", "layer")
        heads = resolve(body.heads, own.num_heads, "heads", "head")
        num_arrays = 1 if body.method == "rollout" else 2
        inspection = await begin(model, request, body, num_arrays)
        lengths = [len(rows_of(prompt, part).ids) for prompt in inspection.inputs]
        by_default: Selector = "all" if body.method == "rollout" else -1
        rows = by_default if body.query_positions is None else body.query_positions
        queries = await inspection.positions(rows, "query_positions", part)
        _check_work(body, layers, lengths, queries)
        numbers = sum(num_arrays * len(layers) * len(q) * n for q, n in zip(queries, lengths, strict=True))
        inspection.check_size(numbers, "fewer layers or query_positions")
        needed = range(max(layers) + 1)
        task = AttentionTask(
            capture=AttentionCapture(
                pairs=tuple((layer, head) for layer in needed for head in heads),
                reduce="mean",
                part=part,
            )
        )
        found = await inspection.run([(task, 4 * len(needed) * length * length) for length in lengths])
        reported = {"part": part, "method": body.method, "layers": layers, "heads": heads}
        entries = (_entry(inspection, i, reported, queries[i], each["attention"]) for i, each in enumerate(found))
        return await inspection.answer_with(entries)


def _check_work(
    body: RolloutRequest, layers: tuple[int, ...], lengths: list[int], queries: list[tuple[int, ...]]
) -> None:
    """Raise BadRequest if the request would take too long. Each input has a flow for each query and layer."""
    if body.method == "flow" and not kernel_levels():
        raise BadRequest(
            "method: flow needs compiled kernels, which this machine does not have; rollout is accepted.",
            param="method",
            code="not_supported_by_machine",
        )
    if body.method == "rollout":
        work, most = sum((max(layers) + 1) * n**3 for n in lengths), MAX_ROLLOUT_WORK
        fewer = "tokens"
    else:
        work = sum((layer + 1) * n**3 * len(q) for layer in layers for n, q in zip(lengths, queries, strict=True))
        most, fewer = MAX_FLOW_WORK, "query_positions, layers or tokens, or request rollout"
    if work > most:
        raise BadRequest(
            f"method: {body.method} over {sum(lengths)} tokens, {sum(map(len, queries))} query positions and "
            f"{len(layers)} layers is {work / most:.1f} times the work that is accepted; send fewer {fewer}.",
            param="method",
            code="too_much_work",
        )


def _entry(
    inspection: Inspection, index: int, reported: dict[str, Any], queries: tuple[int, ...], patterns: NumpyArray
) -> DescribedEntry:
    """Return the entry of mean patterns [layer, query, key] of all layers from the first on; `reported` are the fields
    of all entries. Raises BadRequest for patterns that overflowed.
    """
    broken = np.flatnonzero(~np.isfinite(patterns).all((1, 2)))
    if len(broken):
        raise inspection.not_finite(f"the patterns of input {index} in layer {broken[0]}")
    fields, layers = {**reported, "query_positions": queries}, reported["layers"]
    axes = ("layer", "query", "key")
    if reported["method"] == "rollout":
        rows = {}
        for layer, rolled in enumerate(roll(patterns)):
            inspection.check()
            if layer in layers:
                rows[layer] = rolled[list(queries)]
        stacked = np.stack([rows[layer] for layer in layers])
        return inspection.entry(index, "rollout", fields, {"rollout": described(stacked, *axes)})
    flows = np.array([[flow(patterns[: layer + 1], query, inspection.check) for query in queries] for layer in layers])
    shares = flows / flows.sum(-1, keepdims=True)
    return inspection.entry(
        index, "flow", fields, {"flow": described(flows, *axes), "normalized": described(shares, *axes)}
    )
