"""Answers questions about the weights alone: GET /v1/models/{id}/parameters and /geometry, and POST /v1/circuits."""

import time
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from model.analysis import spectra
from model.analysis.census import take_census
from model.analysis.census_report import as_json
from model.analysis.matrices import MatrixLocation, UnknownMatrix, find_matrix
from model.config import ModelConfig
from model.hooks.point_names import stack_config
from server.http.errors import BadRequest, shown
from server.http.sse import unless_disconnected
from server.http.tensor_formats import EncodingFormat, Format, NumpyArray, as_numpy, body_pieces, check_npy, negotiate
from server.http.trace_body import DescribedArray, DescribedEntry
from server.routes.context import AppContext
from server.routes.inspect.inspection import Asked, Tensors, asked_of_weights, described, stack_of
from server.routes.inspect.selectors import every_head, resolve
from server.routes.prompts import NOTHING, check_model
from server.routes.request_context import accept
from server.routes.responses import check_num_values, head_of, tensor_response, tensor_route
from server.routes.supported_routes import check_part
from server.routes.tasks import Work, run_all
from server.schemas.inspect.weights import (
    CircuitsAnswer,
    CircuitsRequest,
    GeometryAnswer,
    GeometryQuery,
    ParametersAnswer,
)

MAX_COMPOSED_HEADS = 256
"""Most heads whose composition scores are computed at once: the scores are the square of it, about 10 seconds of one
core.
"""
_QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
"""The quantiles that the worker returns, in its order."""
_GEOMETRY_VALUES = 20_000
"""A bound of the numbers of a geometry's answer, apart from the singular values."""


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add the routes to the router, before the route of one model, whose id may hold slashes."""
    _add_parameters(router, context)
    _add_geometry(router, context)
    _add_circuits(router, context)


def _add_parameters(router: APIRouter, context: AppContext) -> None:
    @router.get(
        "/v1/models/{model_id:path}/parameters",
        tags=["models"],
        summary="Number of parameters by component",
        response_model=ParametersAnswer,
    )
    async def parameters(model_id: str) -> dict[str, Any]:
        """Return the parameter census by component, shared storage counted once, and next to it the matrices counted
        as textbooks do. `lightwell census` does the same for any configuration.
        """
        check_model(context, model_id)
        head = {"object": "parameters", "model": context.model_id, "architecture": context.config.architecture}
        return {**head, **as_json(take_census(context.config))}


def _add_geometry(router: APIRouter, context: AppContext) -> None:
    @tensor_route(
        router.get,
        "/v1/models/{model_id:path}/geometry",
        "Cosines between the rows or columns of a weight matrix",
        GeometryAnswer,
    )
    async def geometry(request: Request, model_id: str, query: Annotated[GeometryQuery, Query()]) -> Response:
        """Return the cosines of all pairs of rows or columns, compared with those of random directions, and the
        singular values. They are computed next to the running requests, at low priority: a large matrix takes
        seconds to minutes.
        """
        arrival = time.monotonic()
        check_model(context, model_id)
        check_once(request)
        wanted = negotiate(request.headers.get("accept"))
        place, head = _locate(context, query)
        if wanted is Format.NPY:
            check_npy(4 if query.spectrum else 3)
        check_num_values(context, _GEOMETRY_VALUES + min(place.shape), wanted, query.encoding_format, "spectrum=false")
        options = {"matrix": place.name, "axis": query.axis, "head": head, "max_pairs": query.pairs, "seed": query.seed}
        question = asked_of_weights("geometry", _GEOMETRY_VALUES, **options, spectrum=int(query.spectrum))
        found = await ask_about_weights(context, request, arrival, question)
        return await answer_about_weights(
            context, wanted, _geometry_entry(place, head, query, found), query.encoding_format
        )


def _add_circuits(router: APIRouter, context: AppContext) -> None:
    @tensor_route(
        router.post,
        "/v1/circuits",
        "OV and QK circuits of heads: spectra of W_V W_O and W_Q W_K^T",
        CircuitsAnswer,
    )
    async def circuits(request: Request, body: CircuitsRequest) -> Response:
        """Return the low-rank matrices of heads, from the weights alone: singular values, effective rank,
        eigenvalues of OV, and how much of what each head writes later heads read.
        """
        arrival = accept(context, body)
        wanted = negotiate(request.headers.get("accept"))
        part = check_part(context, body.part)
        own = stack_config(context.config, stack_of(part))
        chosen = every_head(body.layers, body.heads, own)
        pairs, alike = chosen.pairs, _alike(own, chosen.layers)
        _check_composition(body, part, len(pairs))
        if wanted is Format.NPY:
            check_npy(8)
        composed = 3 * len(pairs) ** 2 if body.compose else 0
        num_values = len(pairs) * (4 * alike.head_dim + 10) + composed
        check_num_values(context, num_values, wanted, body.encoding_format, "fewer layers or heads")
        question = asked_of_weights("circuits", 2 * num_values, part=part, pairs=pairs, compose=int(body.compose))
        found = await ask_about_weights(context, request, arrival, question)
        group = alike.num_heads // alike.num_kv_heads
        fields: dict[str, Any] = {
            "object": "circuits",
            "index": 0,
            "part": part,
            "layers": chosen.layers,
            "heads": chosen.heads,
            "kv_heads": [head // group for head in chosen.heads],
        }
        if body.compose:
            fields |= {"pairs": pairs, "composition_baseline": spectra.random_cosine_std(own.hidden_size)}
        arrays = _circuit_arrays(found, chosen.shape)
        return await answer_about_weights(
            context, wanted, DescribedEntry(0, fields, arrays, key="arrays"), body.encoding_format
        )


def _alike(own: ModelConfig, layers: tuple[int, ...]) -> ModelConfig:
    """Return the configuration with the sizes of heads of these layers. Raises BadRequest if they are not the same."""
    found = {(each.head_dim, each.num_kv_heads): each for each in map(own.at, layers)}
    if len(found) > 1:
        firsts = [layer for layer in layers if own.at(layer).head_dim == own.at(layers[0]).head_dim]
        raise BadRequest(
            f"layers: their heads are of different sizes; layers of one kind are accepted, such as {shown(firsts)}.",
            param="layers",
        )
    return next(iter(found.values()))


async def ask_about_weights(context: AppContext, request: Request, arrival: float, asked: Asked) -> Tensors:
    """Return the worker's answer to a question about the weights."""
    task, num_bytes = asked
    work = Work(task, NOTHING, num_bytes)
    (result,) = await unless_disconnected(request, run_all(context, [work], arrival))
    return {name: as_numpy(tensor) for name, tensor in result.tensors.items()}


async def answer_about_weights(
    context: AppContext, wanted: Format, entry: DescribedEntry, encoding_format: EncodingFormat
) -> Response:
    pieces = body_pieces(wanted, head_of(context), [entry], encoding_format)
    return await tensor_response(wanted, pieces, (point.value for point in entry.points.values()))


# ---- geometry


def check_once(request: Request) -> None:
    """Raise BadRequest for a name that the query gives twice: only one of its values would count."""
    for name in request.query_params:
        values = request.query_params.getlist(name)
        if len(values) > 1:
            raise BadRequest(f"{name}: given {len(values)} times, {shown(values)}; once is accepted.", param=name)


def layer_of(context: AppContext, name: str, layer: int | None) -> int | None:
    """Return the layer that a query gives next to a weight's name, counted from the start. Raises BadRequest."""
    if layer is None:
        return None
    stack = "encoder" if name.startswith("encoder.") else stack_of(check_part(context, None))
    return resolve(layer, stack_config(context.config, stack).num_layers, "layer", "layer")[0]


def _locate(context: AppContext, query: GeometryQuery) -> tuple[MatrixLocation, int | None]:
    """Return the matrix that is asked for, and which of its heads. Raises BadRequest, naming what there is."""
    try:
        place = find_matrix(context.config, query.matrix, layer_of(context, query.matrix, query.layer))
    except UnknownMatrix as error:
        raise BadRequest(f"matrix: {error}.", param="matrix", code="unknown_matrix") from None
    if query.head is None:
        return place, None
    if place.num_heads is None:
        raise BadRequest(
            f"head: {place.name} has no heads; leave out {query.head}, or request W_Q, W_K, W_V or W_O.", param="head"
        )
    (head,) = resolve(query.head, place.num_heads, "head", "head")
    return place, head


def _geometry_entry(
    place: MatrixLocation, head: int | None, query: GeometryQuery, found: dict[str, NumpyArray]
) -> DescribedEntry:
    count, dimension, num_zero, num_pairs, num_compared, is_drawn = (int(n) for n in found["counts"])
    moments = [float(x) if num_compared else None for x in found["moments"]]
    closest = found["closest"]
    reported = zip(_QUANTILES, found["quantiles"], strict=True) if num_compared else ()
    fields = {
        "object": "geometry",
        "index": 0,
        "matrix": place.name,
        "axes": place.axes,
        "shape": (count, dimension) if query.axis == "rows" else (dimension, count),
        "axis": query.axis,
        "head": head,
        "num_vectors": count,
        "dimension": dimension,
        "num_zero_vectors": num_zero,
        "num_pairs": num_pairs,
        "num_compared": num_compared,
        "sampled": bool(is_drawn),
        "seed": query.seed if is_drawn else None,
        "norms": dict(zip(("smallest", "mean", "largest"), found["norms"].tolist(), strict=True)),
        "cosines": {
            **dict(zip(("mean", "std", "smallest", "largest"), moments, strict=True)),
            "quantiles": {str(share): float(value) for share, value in reported},
        },
        "max_deviation_from_identity": float(np.abs(closest).max()) if len(closest) else None,
        "baseline": {
            "mean": 0.0,
            "std": spectra.random_cosine_std(dimension),
            "largest": spectra.random_largest_cosine(num_compared, dimension),
            "welch_bound": spectra.welch_bound(count - num_zero, dimension),
        },
        "spectrum": None,
    }
    arrays = {
        "histogram": described(found["histogram"].astype(np.int64), "bin"),
        "closest": described(closest, "pair"),
        "closest_pairs": described(found["closest_pairs"], "pair", "member"),
    }
    values = found.get("singular_values")
    if values is not None:
        fields["spectrum"] = {
            "effective_rank": spectra.effective_rank(values),
            "stable_rank": spectra.stable_rank(values),
            "largest_singular_value": float(values[0]),
            "frobenius_norm": float(np.linalg.norm(values)),
        }
        arrays["singular_values"] = described(values, "index")
    return DescribedEntry(0, fields, arrays, key="arrays")


# ---- circuits


def _check_composition(body: CircuitsRequest, part: str, num_heads: int) -> None:
    if not body.compose:
        return
    if part == "cross":
        raise BadRequest(
            "compose: the decoder reads the output of the encoder's heads through a norm; compose is accepted for "
            "part 'encoder' and 'decoder'.",
            param="compose",
        )
    if num_heads > MAX_COMPOSED_HEADS:
        raise BadRequest(
            f"compose: {num_heads} heads are over the {MAX_COMPOSED_HEADS} that are accepted at once; choose layers "
            "and heads.",
            param="compose",
        )


def _circuit_arrays(found: dict[str, NumpyArray], grid: tuple[int, ...]) -> dict[str, DescribedArray]:
    """Return the arrays of heads on a grid [layer, head]."""
    arrays: dict[str, DescribedArray] = {}

    def per_head(name: str, values: list[float]) -> None:
        arrays[name] = described(np.array(values).reshape(grid), "layer", "head")

    for circuit in ("ov", "qk"):
        values = found[f"{circuit}.singular_values"]
        arrays[f"{circuit}.singular_values"] = described(values.reshape(*grid, -1), "layer", "head", "index")
        per_head(f"{circuit}.effective_rank", [spectra.effective_rank(row) for row in values])
        per_head(f"{circuit}.stable_rank", [spectra.stable_rank(row) for row in values])
        per_head(f"{circuit}.norm", [float(np.linalg.norm(row)) for row in values])
    if "ov.eigenvalues" in found:
        parts = found["ov.eigenvalues"]
        arrays["ov.eigenvalues"] = described(parts.reshape(*grid, -1, 2), "layer", "head", "index", "part")
        per_head("ov.trace", [float(row[:, 0].sum()) for row in parts])
        per_head("ov.positivity", [spectra.positivity(row[:, 0] + 1j * row[:, 1]) for row in parts])
    if "composition" in found:
        arrays["composition"] = described(found["composition"], "earlier", "later", "kind")
    return arrays
