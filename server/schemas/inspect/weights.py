"""Defines questions and answers about the weights, one by one and together, and about how a point's numbers correlate
over a text.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from server.engine.request import Part
from server.schemas.base import (
    AnswerModel,
    Index,
    InspectionAnswer,
    ListAnswer,
    RunFields,
    Selector,
    Text,
)
from server.schemas.inspect.interventions import PointName
from server.schemas.inspect.predictions import DescribedArrayAnswer, InspectionRequest

MAX_SAMPLED_PAIRS = 10_000_000
MAX_STRONGEST = 10_000


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
        "Null compares all if that takes seconds, otherwise a million.",
    )
    seed: int = Field(0, ge=0, le=2**63 - 1, description="Of the drawing.")
    spectrum: bool = Field(True, description="Also the singular values and statistics of them.")
    encoding_format: Literal["float", "base64"] = Field("float", description="Arrays in JSON.")


class Baseline(AnswerModel):
    """What chance gives, and what no arrangement can beat."""

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
    """What the singular values show."""

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


class GeometryAnswer(ListAnswer):
    """Answer of GET /v1/models/{id}/geometry as JSON."""

    data: list[GeometryEntry] = Field(description="One entry.")


class CircuitsRequest(RunFields):
    """Body of POST /v1/circuits."""

    part: Part | None = Field(
        None, description="Kind of attention: encoder, decoder or cross; null is the model's own."
    )
    layers: Selector = Field("all", description='"all", a layer, or a list; negative counts from the end.')
    heads: Selector = Field("all", description='"all", a query head, or a list; negative counts from the end.')
    compose: bool = Field(
        False, description="Also the composition scores of every head with every head of a later layer (not of cross)."
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="Arrays in JSON: nested lists, or base64 of the little-endian bytes."
    )


class CircuitsEntry(AnswerModel):
    """The OV and QK circuits of heads (Elhage et al. 2021), from the weights alone: gains of norms are not folded in,
    and rotary QK is that of distance 0.

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


class CircuitsAnswer(ListAnswer):
    """Answer of POST /v1/circuits as JSON."""

    data: list[CircuitsEntry] = Field(description="One entry.")


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
    [pair] and strongest_information [pair], -1/2 ln(1 - rho^2) in nats: what jointly normal numbers of that correlation
    share (at most 17.3, by rounding).
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


class CorrelationsAnswer(InspectionAnswer):
    """Answer of POST /v1/geometry as JSON."""

    data: list[CorrelationsEntry] = Field(description="One entry.")


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
    encoding_format: Literal["float", "base64"] = Field("float", description="The array in JSON.")


class WeightsEntry(AnswerModel):
    """The numbers of a weight, or of a part of it, as the network uses them: dequantised, whole where processes share
    it, and without LoRA adapters. Gains of norms include what is added to them (Gemma's 1).

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


class WeightsAnswer(ListAnswer):
    """Answer of GET /v1/models/{id}/weights/{name} as JSON."""

    data: list[WeightsEntry] = Field(description="One entry.")
