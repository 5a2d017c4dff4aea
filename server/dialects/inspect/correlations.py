"""POST /v1/geometry: correlations of the numbers of a point over the positions of texts."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from lightwell.model.analysis.correlations import correlations as correlate
from lightwell.model.analysis.correlations import gaussian_information, independent_information
from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import UnknownPoint, full_name, read_name, sizes, stack_config, why_absent
from lightwell.server.dialects.inspect.inspection import Inspection, begin, described, inspection_route
from lightwell.server.engine.messages.request import TraceTask
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.interventions.selectors import resolve
from lightwell.server.generation.interventions.trace_plan import ChosenPoint, choose_heads, head_axis, lengths_at
from lightwell.server.http.errors import BadRequest
from lightwell.server.http.tensor_formats import NumpyArray
from lightwell.server.http.trace_body import DescribedEntry
from lightwell.server.http.turns import in_turns
from lightwell.server.schemas.base import AnswerModel, Index, Selector
from lightwell.server.schemas.inspect.inputs import DescribedArrayAnswer, InspectionRequest
from lightwell.server.schemas.inspect.interventions import PointName

MAX_STRONGEST = 10_000
MAX_PRODUCTS = 20_000_000_000
"""Most samples times pairs of units of one request: some seconds of one core."""
_PER_PAIR = 200
"""Work for each pair in addition to the samples, in samples: the histogram takes the time of this number of products.
"""


class CorrelationsRequest(InspectionRequest):
    """Body of POST /v1/geometry."""

    point: PointName = Field(
        description="A point with a position axis, as in /v1/trace, with its layer in the name or in `layer`: its "
        "numbers are the units h_i = w_i . x, heads side by side."
    )
    layer: Index | None = Field(None, description="Of a name without a layer; negative counts from the end.")
    heads: Selector = Field("all", description="Of a point with heads.")
    positions: Selector = Field("all", description="Of each input: the samples.")
    units: Selector = Field("all", description="Of the point's last axes, numbered as they lie.")
    num_strongest: Annotated[int, Field(ge=0, le=MAX_STRONGEST)] = Field(32, description="Pairs that are named.")


class CorrelationsEntry(AnswerModel):
    """How a point's units correlate over the positions of all inputs.

    Arrays: histogram [bin] of the correlations over [-1, 1]; strongest_pairs [pair, 2] of units, strongest_correlations
    [pair] and strongest_information [pair], -1/2 ln(1 - rho^2) in nats: the mutual information of normal numbers with
    this correlation (at most 17.3, because of rounding).
    """

    object: Literal["correlations"] = Field(description="Kind of entry.")
    index: int = Field(description="0: all inputs together.")
    point: str = Field(description="Full name.")
    heads: list[int] | None = Field(None, description="Heads of the units, if the point has heads.")
    num_samples: int = Field(description="Positions of all inputs together.")
    num_units: int = Field(description="Number of requested units.")
    num_constant_units: int = Field(description="Units with one value everywhere: they are in no pair.")
    num_pairs: int = Field(description="Number of correlated pairs of units.")
    mean_correlation: float | None = Field(description="Of the pairs; null when there is none.")
    root_mean_square_correlation: float | None = Field(description="Of the pairs; null when there is none.")
    mean_information: float | None = Field(description="Nats; null when there is no pair.")
    baseline: dict[str, Any] = Field(
        description='Expected for independent normal units: {"std": 1/sqrt(N - 1), "information": 1/(2(N - 2))}.'
    )
    arrays: dict[str, DescribedArrayAnswer] = Field(description="By name.")


def add_routes(router: APIRouter, context: AppContext) -> None:
    @inspection_route(
        router.post,
        "/v1/geometry",
        "Correlation of a point's numbers over a text, and their Gaussian mutual information",
        CorrelationsEntry,
        "One entry.",
    )
    async def correlations(request: Request, body: CorrelationsRequest) -> Response:
        """Return the correlations of every pair of units of a point, over the positions of all inputs together:
        Pearson's rho, and the mutual information of normal numbers with it, -1/2 ln(1 - rho^2) nats.
        """
        model = await accept(context, body, "/v1/geometry")
        chosen, num_units = _choose(model.config, body)
        inspection = await begin(model, request, body, 4)
        positions = []
        async for prompt in in_turns(inspection.inputs, 64):
            _, length, _ = lengths_at(
                model.config, chosen.stack, chosen.point, len(prompt.ids), len(prompt.encoder_ids)
            )
            positions.append(resolve(body.positions, length, "positions", "position"))
        num_samples = sum(map(len, positions))
        units = resolve(body.units, num_units, "units", "unit")
        _check_amount(num_samples, len(units))
        inspection.check_size(200 + 4 * body.num_strongest, "a smaller num_strongest", reported=())
        asked = [
            (TraceTask(points=(chosen.capture(positions=rows, units=units),)), 4 * len(rows) * len(units))
            for rows in positions
        ]
        found = await inspection.run(asked)

        samples = [tensors[chosen.name] for tensors in found]
        return await inspection.answer_with(_entry(inspection, chosen, each, units) for each in [samples])


def _choose(config: ModelConfig, body: CorrelationsRequest) -> tuple[ChosenPoint, int]:
    """Return the point of a request, and its number of units. Raises BadRequest for a point that does not exist or has
    no position axis, and for a missing layer.
    """
    try:
        written = read_name(config, body.point)
    except UnknownPoint as error:
        raise BadRequest(f"point: {error}.", param="point", code="unknown_point") from None
    stack, point, own = written.stack, written.point, stack_config(config, written.stack)
    if point.axes[0] != "position":
        raise BadRequest(
            f"point: {point.name} has the axes {', '.join(point.axes)}; a point with position as its first axis is "
            "accepted.",
            param="point",
        )
    layer = written.layer if body.layer is None else body.layer
    if not point.in_block and body.layer is not None:
        raise BadRequest(f"layer: {point.name} is outside the blocks; null is accepted.", param="layer")
    if point.in_block:
        if layer is None or (written.layer is not None and body.layer is not None):
            raise BadRequest(
                f"layer: {point.name} exists in every block; give its layer once, here or in the point's name.",
                param="layer",
            )
        (layer,) = resolve(layer, own.num_layers, "layer", "layer")
        absent = why_absent(config, stack, point, layer)
        if absent is not None:
            raise BadRequest(f"point: layer {layer} has no {point.name}: {absent}.", param="point")
    if body.heads != "all" and head_axis(point) is None:
        raise BadRequest(f"heads: {point.name} has no heads; leave it out.", param="heads")
    heads = choose_heads(body.heads, own.at(layer or 0), point, "heads")
    lengths = list(sizes(config, stack, point, 1, 1, layer))
    if heads is not None:
        lengths[1] = len(heads)
    chosen = ChosenPoint(full_name(config, stack, point.name, layer), stack, layer, point, heads)
    return chosen, int(np.prod(lengths))


def _check_amount(num_samples: int, num_units: int) -> None:
    """Raise BadRequest for too few samples or too many pairs."""
    if num_samples < 3:
        raise BadRequest(
            f"positions: {num_samples} positions in all inputs together; at least 3 are needed for a correlation.",
            param="positions",
        )
    per_pair = num_samples + _PER_PAIR
    if per_pair * num_units * (num_units - 1) // 2 > MAX_PRODUCTS:
        fitting = int((2 * MAX_PRODUCTS / per_pair) ** 0.5)
        raise BadRequest(
            f"units: {num_units} units at {num_samples} positions are too many pairs for one request; {fitting} "
            "units are accepted for this number of positions, or fewer positions.",
            param="units",
        )


def _entry(
    inspection: Inspection, chosen: ChosenPoint, samples: Sequence[NumpyArray], units: tuple[int, ...]
) -> DescribedEntry:
    """Return the only entry. Raises BadRequest for numbers that overflowed."""
    for index, numbers in enumerate(samples):
        if not np.isfinite(numbers).all():
            raise inspection.not_finite(f"the numbers of input {index} at {chosen.name}")
    assert isinstance(inspection.body, CorrelationsRequest)
    found = correlate(np.concatenate(samples), inspection.body.num_strongest, inspection.check)
    fields: dict[str, Any] = {
        "object": "correlations",
        "index": 0,
        "point": chosen.name,
        "num_samples": found.num_samples,
        "num_units": len(units),
        "num_constant_units": len(found.constant_units),
        "num_pairs": found.num_pairs,
        "mean_correlation": found.mean,
        "root_mean_square_correlation": found.mean_square**0.5,
        "mean_information": found.mean_information,
        "baseline": {
            "std": (found.num_samples - 1) ** -0.5,
            "information": independent_information(found.num_samples),
        },
    }
    if chosen.heads is not None:
        fields["heads"] = chosen.heads
    arrays = {
        "histogram": described(found.histogram, "bin"),
        "strongest_pairs": described(np.array(units)[found.strongest], "pair", "member"),
        "strongest_correlations": described(found.strongest_correlations, "pair"),
        "strongest_information": described(gaussian_information(found.strongest_correlations), "pair"),
    }
    return DescribedEntry(0, fields, arrays, key="arrays")
