"""POST /v1/trajectory: the change of positions' vectors through the layers."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from lightwell.model.analysis.trajectory import trajectory as measure
from lightwell.model.hooks.point_names import stack_config
from lightwell.server.dialects.inspect.inspection import (
    Inspection,
    begin,
    capture,
    described,
    inspection_route,
    stack_of,
)
from lightwell.server.engine.messages.request import Part, TraceTask
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.supported_routes import check_part
from lightwell.server.http.tensor_formats import NumpyArray
from lightwell.server.http.trace_body import DescribedEntry
from lightwell.server.http.turns import in_turns
from lightwell.server.schemas.base import Selector
from lightwell.server.schemas.inspect.inputs import STACK, InspectionEntry, InspectionRequest, OwnPart


class TrajectoryRequest(InspectionRequest):
    """Body of POST /v1/trajectory."""

    positions: Selector = Field(-1, description='Whose way through the layers: "all", a position, or a list.')
    compare_positions: Selector | None = Field(
        None, description="Also the cosine to these positions at every layer; null is none."
    )
    part: OwnPart | None = STACK


class TrajectoryEntry(InspectionEntry):
    """How the vectors of some positions of one input change through the layers.

    Arrays [position, state], where state 0 is the embedding and i the residual stream after block i: norms, steps
    (length of the difference from the state before), cosine_to_start, cosine_to_previous; and cosine_to_others
    [position, state, other].
    """

    part: OwnPart = Field(description="Which stack.")
    positions: list[int] = Field(description="Positions of the first axis.")
    compare_positions: list[int] | None = Field(None, description="Positions of the last axis of cosine_to_others.")


def add_routes(router: APIRouter, context: AppContext) -> None:
    @inspection_route(
        router.post, "/v1/trajectory", "The residual stream at a position, layer by layer", TrajectoryEntry
    )
    async def trajectory(request: Request, body: TrajectoryRequest) -> Response:
        """Return the length of each position's vector in every state, and its cosines to the start, to the state
        before, and to other positions' vectors. State 0 is the embedding, state i the residual stream after block i.
        """
        model = await accept(context, body, "/v1/trajectory")
        part = check_part(model, body.part)
        inspection = await begin(model, request, body, 4 if body.compare_positions is None else 5)
        own = stack_config(model.config, stack_of(part))
        chosen = await inspection.positions(body.positions, part=part)
        others: list[tuple[int, ...]] = [()] * len(chosen)
        if body.compare_positions is not None:
            others = await inspection.positions(body.compare_positions, "compare_positions", part)
        states = own.num_layers + 1
        inspection.check_size(
            sum(states * len(p) * (4 + len(o)) for p, o in zip(chosen, others, strict=True)),
            "fewer positions or compare_positions",
        )
        rows = [tuple(dict.fromkeys(p + o)) for p, o in zip(chosen, others, strict=True)]
        states_of = [("hook_resid_pre", 0), *(("hook_resid_post", layer) for layer in range(own.num_layers))]
        points = [
            tuple(capture(model, stack_of(part), *state, positions=kept) for state in states_of)
            async for kept in in_turns(rows, 64)
        ]
        asked = [
            (TraceTask(points=captures), 4 * states * len(kept) * own.hidden_size)
            for captures, kept in zip(points, rows, strict=True)
        ]
        found = await inspection.run(asked)

        def report() -> Iterator[DescribedEntry]:
            for index, tensors in enumerate(found):
                streams = np.stack([tensors[point.name] for point in points[index]])
                place = {position: i for i, position in enumerate(rows[index])}
                yield _entry(inspection, index, part, streams, place, chosen[index], others[index])

        return await inspection.answer_with(report())


def _entry(
    inspection: Inspection,
    index: int,
    part: Part,
    streams: NumpyArray,
    place: dict[int, int],
    chosen: tuple[int, ...],
    others: tuple[int, ...],
) -> DescribedEntry:
    """Return the entry of residual streams [state, row, d], where `place` gives the row of a position."""
    found = measure(streams[:, [place[p] for p in chosen]], streams[:, [place[p] for p in others]])
    fields: dict[str, Any] = {"part": part, "positions": chosen}
    arrays = {
        name: described(getattr(found, name), "position", "state")
        for name in ("norms", "steps", "cosine_to_start", "cosine_to_previous")
    }
    if others:
        fields["compare_positions"] = others
        arrays["cosine_to_others"] = described(found.cosine_to_others, "position", "state", "other")
    return inspection.entry(index, "trajectory", fields, arrays)
