"""Questions about the weights: GET /v1/models/{id}/parameters and /geometry, and POST /v1/circuits."""

from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from lightwell.model.analysis import spectra
from lightwell.model.analysis.census import take_census
from lightwell.model.analysis.census_report import as_json
from lightwell.model.analysis.matrices import NamedWeight, UnknownMatrix, find_matrix
from lightwell.model.config import ModelConfig
from lightwell.model.hooks.point_names import stack_config
from lightwell.server.dialects.inspect.inspection import (
    Asked,
    Tensors,
    asked_of_weights,
    described,
    inspection_route,
    stack_of,
)
from lightwell.server.dialects.responses import check_num_values, head_of, tensor_response
from lightwell.server.engine.messages.request import Part
from lightwell.server.generation.acceptance import accept
from lightwell.server.generation.context import AppContext
from lightwell.server.generation.interventions.selectors import every_head, resolve
from lightwell.server.generation.prompts.prompt import NOTHING
from lightwell.server.generation.served_model import ServedModel
from lightwell.server.generation.supported_routes import check_part
from lightwell.server.generation.tasks import Work, run_all
from lightwell.server.http.errors import BadRequest, NotFound, shown
from lightwell.server.http.sse import unless_disconnected
from lightwell.server.http.tensor_formats import (
    EncodingFormat,
    Format,
    NumpyArray,
    as_numpy,
    body_pieces,
    check_npy,
    negotiate,
)
from lightwell.server.http.trace_body import DescribedArray, DescribedEntry
from lightwell.server.schemas.base import AnswerModel, Index, ListAnswer, RunFields, Selector, Text
from lightwell.server.schemas.inspect.inputs import ARRAY_FORMAT, HEADS, LAYERS, DescribedArrayAnswer

MAX_SAMPLED_PAIRS = 10_000_000
MAX_COMPOSED_HEADS = 256
"""Most heads with composition scores in one request: the number of scores is its square, about 10 seconds of one core.
"""
_GEOMETRY_VALUES = 20_000
"""Upper bound of the numbers of a geometry's answer, without the singular values."""


class ComponentCount(AnswerModel):
    """All rows of one component."""

    component: str = Field(description="embedding, query, key, value, output, gate, up, down, unembedding, norms, ...")
    count: int = Field(description="How many matrices or vectors.")
    parameters: int = Field(description="Their numbers, tied ones included.")
    share: float = Field(description="Of `total`; tied ones add nothing.")
    share_of_matrices: float | None = Field(description="Of `matrices_untied`; null if it is not a matrix.")


class CensusRow(AnswerModel):
    """Matrices or vectors of one kind and one shape."""

    stack: str = Field(description="decoder or encoder; of an encoder-decoder's one token table: shared.")
    component: str = Field(description="Component of the model.")
    weight: str = Field(description='The weight that holds it, without the layer: "qkv.weight" holds q, k and v.')
    shape: list[int] = Field(description="Of one: [out, in] of matrices, [entries, width] of tables.")
    count: int = Field(description="How many: one a layer; of queries, keys and values one a head.")
    parameters: int = Field(description="count times the product of the shape.")
    share: float = Field(description="Share of `total`; 0 for tied weights.")
    share_of_matrices: float | None = Field(description="Of `matrices_untied`; null if it is not a matrix.")
    tied_to: str | None = Field(description="The weight that shares its storage; it is then not in `total`.")


class ParametersAnswer(AnswerModel):
    """Answer of GET /v1/models/{id}/parameters."""

    object: Literal["parameters"] = Field(description="Kind of answer.")
    model: str = Field(description="Name of the model.")
    architecture: str = Field(description="Its class.")
    tied: bool = Field(description="Whether the unembedding shares the token table's storage.")
    total: int = Field(description="Every parameter that is loaded, shared storage counted once.")
    matrices_untied: int = Field(
        description="Matrices only, with the unembedding as a separate one: no biases, norms, positions, token types."
    )
    num_matrices: int = Field(description="How many matrices that are.")
    components: list[ComponentCount] = Field(description="Sums of the rows.")
    rows: list[CensusRow] = Field(description="Each kind and shape.")


class GeometryQuery(BaseModel):
    """Query of GET /v1/models/{id}/geometry."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    matrix: Text = Field(
        description='TransformerLens\'s name: "W_E", "W_U", "W_pos", "blocks.0.attn.W_Q", or short with `layer`: '
        '"W_Q", "mlp.W_in", "cross_attn.W_V". Of an encoder-decoder they are the decoder\'s unless "encoder." precedes '
        "them. Axes are [in, out]; heads are side by side.",
        min_length=1,
        max_length=128,
    )
    axis: Literal["rows", "columns"] = Field(
        "rows", description="Which vectors are compared: of W_E [d_vocab, d_model] rows are the tokens' vectors."
    )
    layer: Index | None = Field(None, description="Of a short name; negative counts from the end.")
    head: Index | None = Field(
        None, description="One head's part of an attention matrix (key head of W_K and W_V); null is all side by side."
    )
    pairs: Annotated[int, Field(ge=1, le=MAX_SAMPLED_PAIRS)] | Literal["all"] | None = Field(
        None,
        description='Compare this number of pairs, drawn with replacement, if there are more. "all" compares '
        "every pair: only then max_deviation_from_identity is the matrix's own; a large token table takes minutes. "
        "Null compares all if that takes seconds, otherwise 200,000.",
    )
    seed: int = Field(0, ge=0, le=2**63 - 1, description="Of the drawing.")
    spectrum: bool = Field(True, description="Also the singular values and statistics of them.")
    encoding_format: EncodingFormat = Field("float", description="Arrays in JSON.")


class Baseline(AnswerModel):
    """Cosines of random directions, and the lower bound for any set of vectors."""

    mean: float = Field(description="Of the cosine of random directions: 0.")
    std: float = Field(description="1 / sqrt(d).")
    largest: float = Field(description="The largest |cosine| of random pairs is about sqrt(2 ln(pairs) / d).")
    welch_bound: float | None = Field(
        description="sqrt((n - d) / (d (n - 1))): some |cosine| of n vectors is at least that; null for n <= d."
    )


class Cosines(AnswerModel):
    """The cosines of the pairs that were compared."""

    mean: float | None = Field(description="Their mean; null when there is no pair.")
    std: float | None = Field(description="Standard deviation.")
    smallest: float | None = Field(description="The most opposed pair's.")
    largest: float | None = Field(description="The most alike pair's.")
    quantiles: dict[str, float] = Field(description='To within 0.0005: {"0.5": median}.')


class Spectrum(AnswerModel):
    """Figures of the singular values."""

    effective_rank: float = Field(description="exp of the entropy of the singular values (Roy and Vetterli 2007).")
    stable_rank: float = Field(description="||W||_F^2 / ||W||_2^2.")
    largest_singular_value: float = Field(description="||W||_2.")
    frobenius_norm: float = Field(description="||W||_F.")


class GeometryEntry(AnswerModel):
    """How the rows or columns of one matrix are arranged relative to each other.

    Arrays: histogram [bin] of the cosines over [-1, 1], closest [pair] the largest |cosine| of those compared, signed,
    and closest_pairs [pair, 2] the rows or columns they belong to; with the spectrum singular_values [index], largest
    first.
    """

    object: Literal["geometry"] = Field(description="Kind of entry.")
    index: int = Field(description="0.")
    matrix: str = Field(description="Full name.")
    axes: list[str] = Field(description="Of the whole matrix.")
    shape: list[int] = Field(description="Shape of the analysed matrix, or of one head's part.")
    axis: Literal["rows", "columns"] = Field(description="Which vectors were compared.")
    head: int | None = Field(description="The head, if one was requested.")
    num_vectors: int = Field(description="n.")
    dimension: int = Field(description="d.")
    num_zero_vectors: int = Field(description="Vectors of length 0, which have no direction and are in no pair.")
    num_pairs: int = Field(description="Pairs that there are.")
    num_compared: int = Field(description="Pairs that were compared.")
    sampled: bool = Field(description="Whether those are a drawn sample; else they are all.")
    seed: int | None = Field(description="Of the sample.")
    norms: dict[str, float] = Field(description="Smallest, mean and largest length of the vectors.")
    cosines: Cosines = Field(description="How they are spread.")
    max_deviation_from_identity: float | None = Field(
        description="Of the Gram matrix of the vectors scaled to length 1: the largest |cosine| of those compared."
    )
    baseline: Baseline = Field(description="To read them against.")
    spectrum: Spectrum | None = Field(description="Null when not asked for, or when the smaller side is over 8192.")
    arrays: dict[str, DescribedArrayAnswer] = Field(description="By name.")


class CircuitsRequest(RunFields):
    """Body of POST /v1/circuits."""

    part: Part | None = Field(
        None, description="Kind of attention: encoder, decoder or cross; null is the model's own."
    )
    layers: Selector = LAYERS
    heads: Selector = HEADS
    compose: bool = Field(
        False, description="Also the composition scores of every head with every head of a later layer (not of cross)."
    )
    encoding_format: EncodingFormat = ARRAY_FORMAT


class CircuitsEntry(AnswerModel):
    """The OV and QK circuits of heads (Elhage et al. 2021), from the weights only: gains of norms are not included,
    and rotary QK is computed for distance 0.

    Arrays: ov.singular_values and qk.singular_values [layer, head, d_head]; of each, [layer, head]: .effective_rank,
    .stable_rank, .norm (Frobenius); ov.eigenvalues [layer, head, d_head, 2] (real, imaginary), ov.trace and
    ov.positivity (sum of the real parts over the sum of sizes: 1 copies, -1 inverts), but for cross attention between
    stacks of different width; with compose composition [earlier, later, 3] (of Q, K, V; heads as in `pairs`).
    """

    object: Literal["circuits"] = Field(description="Kind of entry.")
    index: int = Field(description="0.")
    part: Part = Field(description="Which attention.")
    layers: list[int] = Field(description="Layers of the first axis.")
    heads: list[int] = Field(description="Heads of the second axis.")
    kv_heads: list[int] = Field(description="The key head that each of them shares.")
    pairs: list[list[int]] | None = Field(None, description="[layer, head] of the axes of composition.")
    composition_baseline: float | None = Field(
        None, description="The score of random matrices: about 1 / sqrt(d_model)."
    )
    arrays: dict[str, DescribedArrayAnswer] = Field(description="By name.")


def add_routes(router: APIRouter, context: AppContext) -> None:
    """Add the routes to the router, before the route of one model: its id may contain slashes."""
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
        model = await find_weights(context, model_id)
        head = {"object": "parameters", "model": model.id, "architecture": model.config.architecture}
        return {**head, **as_json(take_census(model.config))}


def _add_geometry(router: APIRouter, context: AppContext) -> None:
    @inspection_route(
        router.get,
        "/v1/models/{model_id:path}/geometry",
        "Cosines between the rows or columns of a weight matrix",
        GeometryEntry,
        "One entry.",
        ListAnswer,
    )
    async def geometry(request: Request, model_id: str, query: Annotated[GeometryQuery, Query()]) -> Response:
        """Return the cosines of all pairs of rows or columns, compared with random directions, and the
        singular values. They are computed next to the running requests, at low priority: a large matrix takes
        seconds to minutes.
        """
        model = await find_weights(context, model_id)
        check_once(request)
        wanted = negotiate(request.headers.get("accept"))
        place, head = _locate(model, query)
        if wanted is Format.NPY:
            check_npy(4 if query.spectrum else 3)
        check_num_values(
            model, _GEOMETRY_VALUES + min(place.matrix_shape), wanted, query.encoding_format, "spectrum=false"
        )
        options = {"matrix": place.name, "axis": query.axis, "head": head, "max_pairs": query.pairs, "seed": query.seed}
        question = asked_of_weights("geometry", _GEOMETRY_VALUES, **options, spectrum=int(query.spectrum))
        found = await ask_about_weights(model, request, question)
        entry = _geometry_entry(place, head, query, found)
        return await answer_about_weights(model, wanted, entry, query.encoding_format)


def _add_circuits(router: APIRouter, context: AppContext) -> None:
    @inspection_route(
        router.post,
        "/v1/circuits",
        "OV and QK circuits of heads: spectra of W_V W_O and W_Q W_K^T",
        CircuitsEntry,
        "One entry.",
        ListAnswer,
    )
    async def circuits(request: Request, body: CircuitsRequest) -> Response:
        """Return the low-rank matrices of heads, from the weights only: singular values, effective rank,
        eigenvalues of OV, and the part of each head's output that later heads read.
        """
        model = await accept(context, body, "/v1/circuits")
        wanted = negotiate(request.headers.get("accept"))
        part = check_part(model, body.part)
        own = stack_config(model.config, stack_of(part))
        chosen = every_head(body.layers, body.heads, own)
        pairs, alike = chosen.pairs, _alike(own, chosen.layers)
        _check_composition(body, part, len(pairs))
        if wanted is Format.NPY:
            check_npy(8)
        composed = 3 * len(pairs) ** 2 if body.compose else 0
        num_values = len(pairs) * (4 * alike.head_dim + 10) + composed
        check_num_values(model, num_values, wanted, body.encoding_format, "fewer layers or heads")
        question = asked_of_weights("circuits", 2 * num_values, part=part, pairs=pairs, compose=int(body.compose))
        found = await ask_about_weights(model, request, question)
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
        entry = DescribedEntry(0, fields, _circuit_arrays(found, chosen.shape), key="arrays")
        return await answer_about_weights(model, wanted, entry, body.encoding_format)


def _alike(own: ModelConfig, layers: tuple[int, ...]) -> ModelConfig:
    """Return the configuration with the sizes of heads of these layers. Raises BadRequest if they differ."""
    found = {(each.head_dim, each.num_kv_heads): each for each in map(own.at, layers)}
    if len(found) > 1:
        firsts = [layer for layer in layers if own.at(layer).head_dim == own.at(layers[0]).head_dim]
        raise BadRequest(
            "layers: the heads of these layers have different sizes; layers with heads of one size are accepted, "
            f"such as {shown(firsts)}.",
            param="layers",
        )
    return next(iter(found.values()))


async def find_weights(context: AppContext, name: str) -> ServedModel:
    """Return the model with this name. Raises NotFound, also for a LoRA adapter: it has no weights of its own."""
    model, adapter = await context.models.find(name)
    if adapter is not None:
        message = f"The model {shown(name)} is a LoRA adapter; the weights of {model.id!r} can be read."
        raise NotFound(message, param="model", code="model_not_found")
    return model


async def ask_about_weights(model: ServedModel, request: Request, asked: Asked) -> Tensors:
    """Return the worker's answer to a question about the weights."""
    task, num_bytes = asked
    work = Work(task, NOTHING, num_bytes)
    (result,) = await unless_disconnected(request, run_all(model, [work]))
    return {name: as_numpy(tensor) for name, tensor in result.tensors.items()}


async def answer_about_weights(
    model: ServedModel, wanted: Format, entry: DescribedEntry, encoding_format: EncodingFormat
) -> Response:
    pieces = body_pieces(wanted, head_of(model), [entry], encoding_format)
    return await tensor_response(wanted, pieces, (point.value for point in entry.points.values()))


# ---- geometry


def check_once(request: Request) -> None:
    """Raise BadRequest for a repeated name in the query."""
    for name in request.query_params:
        values = request.query_params.getlist(name)
        if len(values) > 1:
            raise BadRequest(f"{name}: given {len(values)} times, {shown(values)}; once is accepted.", param=name)


def layer_of(model: ServedModel, name: str, layer: int | None) -> int | None:
    """Return the layer of a query, counted from the start. Raises BadRequest."""
    if layer is None:
        return None
    stack = "encoder" if name.startswith("encoder.") else stack_of(check_part(model, None))
    return resolve(layer, stack_config(model.config, stack).num_layers, "layer", "layer")[0]


def _locate(model: ServedModel, query: GeometryQuery) -> tuple[NamedWeight, int | None]:
    """Return the requested matrix and head. Raises BadRequest, which names the accepted values."""
    try:
        place = find_matrix(model.config, query.matrix, layer_of(model, query.matrix, query.layer))
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
    place: NamedWeight, head: int | None, query: GeometryQuery, found: dict[str, NumpyArray]
) -> DescribedEntry:
    count, dimension, num_zero, num_pairs, num_compared, is_drawn = (int(n) for n in found["counts"])
    moments = [float(x) if num_compared else None for x in found["moments"]]
    closest = found["closest"]
    reported = zip(spectra.QUANTILES, found["quantiles"], strict=True) if num_compared else ()
    fields = {
        "object": "geometry",
        "index": 0,
        "matrix": place.name,
        "axes": place.matrix_axes,
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
            "compose: a norm separates the heads of the encoder from the decoder; compose is accepted for part "
            "'encoder' and 'decoder'.",
            param="compose",
        )
    if num_heads > MAX_COMPOSED_HEADS:
        raise BadRequest(
            f"compose: {num_heads} heads are more than {MAX_COMPOSED_HEADS}, the largest accepted number; select "
            "layers and heads.",
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
