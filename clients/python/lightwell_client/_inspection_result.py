"""Reads the answers of the inspection routes: for each input its tokens, some fields, and arrays with named axes.

These answers share one form, as safetensors or JSON; each result documents its arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pydantic import Field, InstanceOf, ValidationError

from lightwell_client._arrays import array_from_json, array_of
from lightwell_client._exceptions import InvalidResponse
from lightwell_client._mapping import ArrayMapping, NamedArray
from lightwell_client._notebook import described, listed, maps, num_maps, page
from lightwell_client._result import Result
from lightwell_client._results import Usage
from lightwell_client._safetensors import read_safetensors
from lightwell_client._wire import JSON, Answer

if TYPE_CHECKING:
    from lightwell_client._arrays import Array

_HOLDERS = ("points", "arrays")
"""Names of the arrays of an entry: the points of a trace, or the arrays of the other routes."""


class InspectionResult(Result, ArrayMapping):
    """The answer for one input, a mapping: `result["name"]` is an array, and `result.arrays["name"].axes` names its
    axes.
    """

    index: int
    tokens: tuple[str, ...] = Field(default=(), repr=False)
    """The decoded tokens; for an encoder-decoder, the decoder's."""
    token_ids: tuple[int, ...] = Field(default=(), repr=False)
    offsets: tuple[tuple[int, int], ...] | None = Field(default=None, repr=False)
    """The span of characters of each token in the input."""
    encoder_tokens: tuple[str, ...] | None = Field(default=None, repr=False)
    encoder_token_ids: tuple[int, ...] | None = Field(default=None, repr=False)
    arrays: dict[str, InstanceOf[NamedArray]] = Field(default_factory=dict, repr=False)
    model: str = ""
    compute_dtype: str | None = None
    """The dtype in which the network computed these numbers, whatever they were sent in."""
    stacks: dict[str, dict[str, int]] = Field(default_factory=dict, repr=False)
    """How many layers and heads the model has: {"decoder": {"num_layers", "num_heads", "num_kv_heads"}}."""
    usage: Usage | None = Field(default=None, repr=False)

    def asked_for(self, body: Mapping[str, Any]) -> Self:
        """Store the parts of the request that are needed to read its answer; most answers need none."""
        return self

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]  # of a mapping; pydantic's has pairs of fields
        return iter(self.arrays)

    def __repr__(self) -> str:
        """Return the fields in a line, then a line for each array: its name, axes and dtype."""
        lines = [
            f"{name}: {described(named.axes, named.shape, named.array.dtype)}" for name, named in self.arrays.items()
        ]
        return listed(super().__repr__(), lines)

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """Return the notebook view: the text of print, and the arrays as heat maps, the smallest arrays first, 64 maps
        in all.
        """
        pictures = (
            picture
            for name, named in sorted(self.arrays.items(), key=lambda item: num_maps(item[1].array, item[1].axes))
            for picture in maps(name, named.array, named.axes, partial(self._names, named))
        )
        count = sum(num_maps(named.array, named.axes) for named in self.arrays.values())
        return page(repr(self), self._tables(), pictures, count)

    def _tables(self) -> list[str]:
        """Return the additional HTML of the notebook view."""
        return []

    def _names(self, named: NamedArray, axis: str, length: int) -> list[str]:
        """Return the tokens along an axis of positions (numbers if the answer has two texts), else the model's own
        numbers.
        """
        numbers = self._numbers(named, axis, length)
        is_known = not isinstance(numbers, range) or length == len(self.tokens)
        if axis in ("position", "query", "key") and not self.encoder_tokens and is_known:
            return [self.tokens[number] for number in numbers]
        return [str(number) for number in numbers]


L = TypeVar("L", bound=InspectionResult)


def parse_inspections(answer: Answer, kind: type[L], count: int) -> list[L]:
    """Return one result for each of `count` inputs, in their order.

    Raises:
        InvalidResponse: the body is not safetensors or JSON of that form, or a field is missing or does not fit the
        numbers.
    """
    read = _from_json if answer.media_type == JSON else _from_file
    try:
        results = sorted(map(kind.model_validate, read(answer)), key=lambda result: result.index)
    except (AttributeError, IndexError, KeyError, TypeError, ValidationError, ValueError) as error:
        raise InvalidResponse(f"not a {kind.__name__}: {type(error).__name__}: {error}") from error
    if [result.index for result in results] != list(range(count)):
        raise InvalidResponse(f"answers to {count} inputs were requested; {[r.index for r in results]} came")
    return results


def _from_json(answer: Answer) -> Iterator[dict[str, Any]]:
    body = answer.json()
    for entry in body["data"]:
        holder = _holder(entry)
        arrays = {
            name: _named(array_from_json(about.pop("data"), about["dtype"], tuple(about["shape"])), about)
            for name, about in entry[holder].items()
        }
        yield _entry(entry, holder, arrays, body)


def _from_file(answer: Answer) -> Iterator[dict[str, Any]]:
    file = read_safetensors(answer.content)
    common = file.fields
    for entry in list(common.values()):
        if isinstance(entry, dict) and "index" in entry:
            holder = _holder(entry)
            arrays = {
                name: _named(array_of(file.tensors[f"{entry['index']}/{name}"]), about)
                for name, about in entry[holder].items()
            }
            yield _entry(entry, holder, arrays, common)


def _holder(entry: dict[str, Any]) -> str:
    return next(name for name in _HOLDERS if name in entry)


def _entry(entry: dict[str, Any], holder: str, arrays: dict[str, NamedArray], common: dict[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in entry.items() if name != holder}
    return {
        **fields,
        "arrays": arrays,
        "model": str(common.get("model", "")),
        "compute_dtype": common.get("compute_dtype"),
        "stacks": common.get("stacks") or {},
        "usage": common.get("usage"),
    }


def _named(array: Array, about: dict[str, Any]) -> NamedArray:
    axes = tuple(map(str, about["axes"]))
    if array.ndim != len(axes) or tuple(array.shape) != tuple(about["shape"]):
        raise InvalidResponse(f"an array of shape {array.shape} was announced as {about['shape']} with axes {axes}")
    return NamedArray(array, axes, {name: value for name, value in about.items() if name not in ("axes", "shape")})
