"""The weights themselves: every name, and the numbers of one weight or of some of its rows and columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlencode

from pydantic import Field, TypeAdapter, ValidationError

from lightwell_client._arrays import require_numpy
from lightwell_client._calls import check_names
from lightwell_client._exceptions import InvalidResponse
from lightwell_client._inspection import ACCEPT
from lightwell_client._inspection_result import InspectionResult, parse_inspections
from lightwell_client._options import ModelOptions
from lightwell_client._plots import heat_map, many_maps
from lightwell_client._result import Result
from lightwell_client._signatures import Argument
from lightwell_client._wire import Answer, Call, plain

if TYPE_CHECKING:
    from lightwell_client._arrays import Array


class WeightName(Result):
    """A weight of the network: TransformerLens's name of it, its axes and shape."""

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    stored: str | None = None
    """The format in which the served model stores it: a dtype, or the kind of quantisation."""
    tied_to: str | None = None
    """The weight that shares its storage."""


class WeightsOptions(ModelOptions, total=False):
    """The options of `weights`."""

    layer: Annotated[int, Argument("Of a name without one; negative counts from the end.")]
    head: Annotated[int, Argument("One head of an attention weight (key head of W_K and W_V); left out, all of them.")]
    rows: Annotated[
        int | str | Sequence[int] | slice, Argument('"all", an index, several, a slice, or "0:64,-1".', "all")
    ]
    columns: Annotated[
        int | str | Sequence[int] | slice, Argument("Of a matrix's second axis, in the same way.", "all")
    ]


class Weights(InspectionResult):
    """The numbers of a weight, or of a part of it, as the network uses them: dequantised, without LoRA adapters.

    Array: weights, which `result.array` gives too.
    """

    name: str
    head: int | None = None
    rows: tuple[int, ...] | None = Field(default=None, repr=False)
    """The rows, in the order of the array, or None for all."""
    columns: tuple[int, ...] | None = Field(default=None, repr=False)
    whole_shape: tuple[int, ...] = ()
    tied_to: str | None = None

    @property
    def array(self) -> Array:
        """Return the numbers."""
        return self["weights"]

    def plot(self, ax: Any = None) -> Any:
        """Draw a matrix; a vector as one row; the matrices of several heads side by side.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        array, axes = self.array, self.arrays["weights"].axes
        if array.ndim > 2:
            heads = [str(head) for head in range(len(array))]
            title = f"{self.name}: {len(heads)} heads"
            return many_maps(array[None], [""], heads, names=("", axes[0]), label=self.name, title=title, ax=ax)
        matrix = array if array.ndim == 2 else array[None]
        rows = [str(row) for row in self.rows or range(len(matrix))] if array.ndim == 2 else [axes[0]]
        columns = [str(i) for i in (self.columns if array.ndim == 2 else self.rows) or range(matrix.shape[1])]
        names = (axes[0] if array.ndim == 2 else "", axes[-1])
        return heat_map(matrix, rows, columns, names=names, label=self.name, ax=ax)


def weight_names(model: str, options: Mapping[str, Any]) -> Call[list[WeightName]]:
    check_names(options, ModelOptions)
    return Call("GET", f"/v1/models/{quote(model)}/weights", _read_names, options=options)


def weights(model: str, name: str, options: Mapping[str, Any]) -> Call[list[Weights]]:
    """Return the call for `weights`. Raises MissingDependency when numpy is not installed."""
    require_numpy("weights()")
    check_names(options, WeightsOptions)
    query = {key: options[key] for key in ("layer", "head") if options.get(key) is not None}
    query |= {key: _indices(options[key]) for key in ("rows", "columns") if options.get(key) is not None}
    path = f"/v1/models/{quote(model)}/weights/{quote(name, safe='')}" + (f"?{urlencode(query)}" if query else "")
    return Call("GET", path, lambda answer: parse_inspections(answer, Weights, 1), None, ACCEPT, options)


def _indices(chosen: Any) -> str:
    """Return rows or columns as a query has them. Raises TypeError for a slice with steps."""
    chosen = plain(chosen)
    return ",".join(str(int(index)) for index in chosen) if isinstance(chosen, list) else str(chosen)


def _read_names(answer: Answer) -> list[WeightName]:
    body = answer.json()
    try:
        return TypeAdapter(list[WeightName]).validate_python(body.get("data") if isinstance(body, dict) else body)
    except ValidationError as error:
        raise InvalidResponse(f"not a list of weights: {error}") from error
