"""Weights: parameters by component, cosines of a matrix's vectors, heads' circuits; and correlations of a point's
numbers over a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote, urlencode

from pydantic import Field

from lightwell_client._arrays import require_numpy
from lightwell_client._calls import check_names, reader_of
from lightwell_client._inspection import ACCEPT, Inspection
from lightwell_client._inspection_result import InspectionResult, parse_inspections
from lightwell_client._notebook import NotebookView, table
from lightwell_client._options import AnyPart, InspectionOptions, ModelOptions, Options, Selection
from lightwell_client._plots import axes_for, bars, heat_map
from lightwell_client._result import Result
from lightwell_client._signatures import Argument
from lightwell_client._wire import Call

if TYPE_CHECKING:
    from lightwell_client._arrays import Array


class ComponentCount(Result):
    """All rows of one component, e.g. "query" or "norms"."""

    component: str
    count: int
    """The number of matrices or vectors."""
    parameters: int
    share: float
    """Its share of the total; tied weights add nothing."""
    share_of_matrices: float | None = None
    """Its share of all matrices, with the unembedding as a separate one, or None if it is not a matrix."""


class CensusRow(Result):
    """Matrices or vectors of one kind and one shape."""

    stack: str
    component: str
    weight: str
    shape: tuple[int, ...]
    count: int
    parameters: int
    share: float
    share_of_matrices: float | None = None
    """Its share of all matrices, with the unembedding as a separate one, or None if it is not a matrix."""
    tied_to: str | None = None
    """The weight that shares its storage."""


class Parameters(Result, NotebookView):
    """Number of parameters by component."""

    model: str = ""
    architecture: str
    tied: bool
    """Whether the unembedding shares the token table's storage."""
    total: int
    """The number of all parameters, shared storage counted once."""
    matrices_untied: int
    """The number of parameters in matrices only, with the unembedding as a separate one: no biases, norms, positions.
    """
    num_matrices: int
    components: tuple[ComponentCount, ...]
    rows: tuple[CensusRow, ...] = Field(repr=False)

    def _repr_html_(self) -> str:
        """Return the notebook view: the components as a table."""
        heads = ["component", "count", "parameters", "share", "of matrices"]
        rows = [[one.component, one.count, one.parameters, one.share, one.share_of_matrices] for one in self.components]
        return table(f"{self.architecture}, {self.total:,} parameters", heads, rows)

    def plot(self, ax: Any = None) -> Any:
        """Draw the components as bars.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        title = f"{self.architecture}, {self.total:,} parameters"
        return bars(
            [(one.component, float(one.parameters)) for one in self.components], label="parameters", title=title, ax=ax
        )


class Baseline(Result):
    """Values for random vectors, and the bound for any arrangement."""

    mean: float
    std: float
    largest: float
    welch_bound: float | None = None


class Cosines(Result):
    """The cosines of the pairs that were compared."""

    mean: float | None = None
    std: float | None = None
    smallest: float | None = None
    largest: float | None = None
    quantiles: dict[str, float] = Field(default_factory=dict)


class Spectrum(Result):
    """Statistics of the singular values."""

    effective_rank: float
    stable_rank: float
    largest_singular_value: float
    frobenius_norm: float


class GeometryOptions(ModelOptions, total=False):
    """The options of `geometry`."""

    axis: Annotated[Literal["rows", "columns"], Argument("Which vectors are compared.", "rows")]
    layer: Annotated[int, Argument("Of a name without one; negative counts from the end.")]
    head: Annotated[int, Argument("One head's part of an attention matrix; left out, all side by side.")]
    pairs: Annotated[
        int | Literal["all"],
        Argument('Number of random pairs to compare; "all" takes minutes. Left out, all where quick, else 200,000.'),
    ]
    seed: Annotated[int, Argument("Of the drawing.", 0)]
    spectrum: Annotated[bool, Argument("Also the singular values and statistics of them.", True)]


class Geometry(InspectionResult):
    """How the rows or columns of one matrix are arranged relative to each other. Arrays: histogram [bin] of the
    cosines over [-1, 1], closest [pair] and closest_pairs [pair, 2], and singular_values [index], largest first.
    """

    matrix: str
    axis: str
    head: int | None = None
    num_vectors: int
    dimension: int
    num_pairs: int
    num_compared: int
    sampled: bool
    """Whether the compared pairs are a random sample; otherwise they are all pairs."""
    norms: dict[str, float] = Field(default_factory=dict, repr=False)
    cosines: Cosines
    max_deviation_from_identity: float | None = None
    baseline: Baseline
    spectrum: Spectrum | None = None

    def plot(self, ax: Any = None) -> Any:
        """Draw the cosines' histogram, with three standard deviations of random directions shaded.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        axes = _histogram(self["histogram"], ax)
        axes.axvspan(-3 * self.baseline.std, 3 * self.baseline.std, alpha=0.15, color="C1", label="random, 3 std")
        axes.set_xlabel("cosine")
        axes.set_title(f"cosines of the {self.axis} of {self.matrix}")
        axes.legend()
        return axes


class CircuitsOptions(ModelOptions, total=False):
    """The options of `circuits`."""

    part: AnyPart
    layers: Annotated[Selection, Argument('"all", a layer, or several; negative counts from the end.', "all")]
    heads: Annotated[Selection, Argument('"all", a head, or several; negative counts from the end.', "all")]
    compose: Annotated[bool, Argument("Also the composition of heads of later layers with earlier ones.", False)]


class Circuits(InspectionResult):
    """The OV and QK circuits of heads (Elhage et al. 2021).

    Arrays: ov.singular_values and qk.singular_values [layer, head, d_head]; of each, [layer, head]: .effective_rank,
    .stable_rank, .norm; ov.positivity, ov.trace, ov.eigenvalues; with compose=True composition [earlier, later, 3] (of
    Q, K, V).
    """

    part: str
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...] = Field(default=(), repr=False)
    pairs: tuple[tuple[int, int], ...] | None = Field(default=None, repr=False)
    composition_baseline: float | None = None

    def plot(self, name: str = "ov.effective_rank", ax: Any = None) -> Any:
        """Draw one of the [layer, head] arrays.

        Raises:
            MissingDependency: matplotlib is not installed.
            KeyError: this answer has no such array.
        """
        rows, columns = [str(layer) for layer in self.layers], [str(head) for head in self.heads]
        return heat_map(self[name], rows, columns, names=("layer", "head"), label=name, ax=ax)


CIRCUITS = Inspection("circuits", Circuits, CircuitsOptions)


class CorrelationsOptions(InspectionOptions, total=False):
    """The options of `correlations`."""

    layer: Annotated[int, Argument("Of a name without one; negative counts from the end.")]
    heads: Annotated[Selection, Argument("Of a point with heads; negative counts from the end.", "all")]
    positions: Annotated[Selection, Argument("Of each input: the samples.", "all")]
    units: Annotated[Selection, Argument("Of the point's last axes, numbered as they lie.", "all")]
    num_strongest: Annotated[int, Argument("Pairs that are named.", 32)]


class Correlations(InspectionResult):
    """How a point's units correlate over the positions of all inputs.

    Arrays: histogram of the correlations, equal bins over [-1, 1]; strongest_pairs [pair, 2] of units,
    strongest_correlations [pair], strongest_information [pair] in nats.
    """

    point: str
    heads: tuple[int, ...] | None = None
    num_samples: int
    num_units: int
    num_constant_units: int
    num_pairs: int
    mean_correlation: float | None
    """The mean correlation. This and the next two are None when there is no pair of units that vary."""
    root_mean_square_correlation: float | None
    mean_information: float | None
    """Mean of -1/2 ln(1 - rho^2), in nats."""
    baseline: dict[str, float] = Field(default_factory=dict, repr=False)
    """Expected values for independent normal units with the same number of samples."""

    def plot(self, ax: Any = None) -> Any:
        """Draw the correlations' histogram.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        axes = _histogram(self["histogram"], ax)
        axes.set_xlabel("correlation")
        axes.set_title(f"correlations of the units of {self.point}")
        return axes


CORRELATIONS = Inspection("geometry", Correlations, CorrelationsOptions, is_joint=True)


def _histogram(counts: Array, ax: Any) -> Any:
    """Draw the counts of equal bins over [-1, 1]."""
    axes = axes_for(ax)
    width = 2 / len(counts)
    axes.bar([-1 + (i + 0.5) * width for i in range(len(counts))], counts, width)
    axes.set_ylabel("pairs")
    return axes


_GEOMETRY_QUERY = ("axis", "layer", "head", "pairs", "seed", "spectrum")


def parameters(model: str, options: Mapping[str, Any]) -> Call[Parameters]:
    check_names(options, Options)
    return Call("GET", f"/v1/models/{quote(model)}/parameters", reader_of(Parameters), options=options)


def geometry(model: str, matrix: str, options: Mapping[str, Any]) -> Call[list[Geometry]]:
    """Return the call for `geometry`. Raises MissingDependency when numpy is not installed."""
    require_numpy("geometry()")
    check_names(options, GeometryOptions)
    query = {"matrix": matrix} | {name: options[name] for name in _GEOMETRY_QUERY if options.get(name) is not None}
    if "spectrum" in query:
        query["spectrum"] = str(query["spectrum"]).lower()
    path = f"/v1/models/{quote(model)}/geometry?{urlencode(query)}"
    return Call("GET", path, lambda answer: parse_inspections(answer, Geometry, 1), None, ACCEPT, options)
