"""Attention patterns with their tokens and axes attached.

_attention_wire reads the numbers from the wire, and _heatmap draws them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from lightwell_client._arrays import require_numpy
from lightwell_client._heatmap import heat_map_html, heat_map_png
from lightwell_client._mapping import ArrayMapping, NamedArray
from lightwell_client._notebook import described, listed
from lightwell_client._places import Stacks, own_number, place_of, places_of, total_of
from lightwell_client._plots import heat_map, many_maps
from lightwell_client._results import Usage

if TYPE_CHECKING:
    from lightwell_client._arrays import Array

MAX_NOTEBOOK_MAPS = 64


@dataclass(frozen=True, eq=False)
class AttentionResult(ArrayMapping):
    """The attention of one input: a mapping with the array "attention".

    `attention` has the axes that `axes` names, by default [layer, head, query, key]: row = query = the position that
    attends, column = key = the position attended to. Under `pairs` the first axis is "pair"; `reduce` leaves the head
    axis out; `orientation="columns"` puts key before query; `top_k` keeps k keys per row, with their positions in
    `indices`.
    """

    index: int
    attention: Array = field(repr=False)
    axes: tuple[str, ...]
    tokens: tuple[str, ...] = field(repr=False)
    """The decoded tokens of input and completion, whatever positions were selected."""
    token_ids: tuple[int, ...] = field(repr=False)
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    query_positions: tuple[int, ...] = field(repr=False)
    key_positions: tuple[int, ...] = field(repr=False)
    offsets: tuple[tuple[int, int], ...] | None = field(default=None, repr=False)
    """The span of characters of each token in the input."""
    pairs: tuple[tuple[int, int], ...] | None = field(default=None, repr=False)
    indices: Array | None = field(default=None, repr=False)
    """The key positions of the values under `top_k`, -1 if a row has fewer."""
    key_tokens: tuple[str, ...] | None = field(default=None, repr=False)
    """The tokens of the keys, if they are not the queries' (cross attention)."""
    key_token_ids: tuple[int, ...] | None = field(default=None, repr=False)
    kind: str = "pattern"
    model: str = ""
    compute_dtype: str | None = None
    """The dtype in which the network computed these numbers, whatever they were sent in."""
    part: str = ""
    """Which attention it is: "decoder", "encoder" or "cross"."""
    stacks: Stacks = field(default_factory=dict, repr=False)
    """How many layers and heads the model has."""
    usage: Usage | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.attention.shape)

    @property
    def arrays(self) -> dict[str, NamedArray]:
        """Return "attention", and under `top_k` "indices", with the names of their axes."""
        found = {"attention": self.attention, "indices": self.indices}
        return {name: NamedArray(array, self.axes) for name, array in found.items() if array is not None}

    def __repr__(self) -> str:
        """Return the fields in a line, then the axes and dtype of each array."""
        about = f"AttentionResult(index={self.index}, kind={self.kind!r}, model={self.model!r}"
        about += f", compute_dtype={self.compute_dtype!r}, layers={self.layers}, heads={self.heads})"
        lines = [f"{name}: {described(self.axes, array.shape, array.dtype)}" for name, array in self.items()]
        return listed(about, lines)

    @property
    def query_labels(self) -> list[str]:
        """Return the token at each query position, in the order of that axis."""
        return [self.tokens[position] for position in self.query_positions]

    @property
    def key_labels(self) -> list[str]:
        """Return the token at each key position, in the order of that axis."""
        tokens = self.tokens if self.key_tokens is None else self.key_tokens
        return [tokens[position] for position in self.key_positions]

    def matrix(self, layer: int | None = None, head: int | None = None) -> Array:
        """Return one map, [query, key] (or [key, query] under columns), by the model's own layer and head numbers.

        Negative numbers count from the model's end. Either may be left out if the answer holds only one (or, after
        `reduce`, no heads).

        Raises:
            ValueError: not in this answer, or left out where there are several.
        """
        if "pair" in self.axes:
            one: Array = self._dense()[self._pair_index(layer, head)]
            return one
        place = [place_of("layer", layer, self.layers, self._total("layer"))]
        if "head" in self.axes:
            place.append(place_of("head", head, self.heads, self._total("head")))
        elif head is not None:
            raise ValueError(f"head is {head}, and this answer is reduced over heads")
        chosen: Array = self._dense()[tuple(place)]
        return chosen

    def plot(self, layer: int | None = None, head: int | None = None, ax: Any = None) -> Any:
        """Draw the maps of this answer with matplotlib and return the axes: one map with its tokens, or several side by
        side, layers down and heads across. `layer` and `head` choose some of them, as for `matrix`.

        Raises:
            MissingDependency: matplotlib is not installed.
            ValueError: this answer does not have that layer or head.
        """
        maps = self._dense()
        if "pair" in self.axes:
            chosen = self._pair_indices(layer, head) or [self._pair_index(layer, head)]
            rows, columns = [f"{one}.{other}" for one, other in map((self.pairs or ()).__getitem__, chosen)], [""]
            maps, names = maps[chosen][:, None], ("layer.head", "")
        else:
            places = places_of("layer", layer, self.layers, self._total("layer"))
            rows, columns, names = [str(self.layers[place]) for place in places], [""], ("layer", "")
            maps = maps[places][:, None] if "head" not in self.axes else maps[places]
            if "head" in self.axes:
                places = places_of("head", head, self.heads, self._total("head"))
                maps, columns, names = maps[:, places], [str(self.heads[place]) for place in places], ("layer", "head")
            elif head is not None:
                self.matrix(self.layers[0], head)  # which raises
        title = f"{self.kind}: layer {', '.join(rows)}" + (f", head {', '.join(columns)}" if columns[0] else "")
        if maps.shape[:2] == (1, 1):
            labels = self._row_and_column_labels(maps[0, 0])
            return heat_map(maps[0, 0], *labels, names=self.axes[-2:], label=self.kind, title=title, ax=ax)
        title = f"{self.kind}: {maps.shape[0] * maps.shape[1]} maps"
        return many_maps(maps, rows, columns, names=names, label=self.kind, title=title, ax=ax)

    def png(self, layer: int | None = None, head: int | None = None) -> bytes:
        """Return one map as a PNG, one pixel per cell; this needs no matplotlib."""
        return heat_map_png(self.matrix(layer, head))

    def _repr_html_(self) -> str:
        """Return the notebook view: the maps of the answer, at most 64."""
        maps = self._maps()
        figures = []
        for title, place in maps[:MAX_NOTEBOOK_MAPS]:
            matrix = self._dense()[place]
            figures.append(heat_map_html(matrix, *self._row_and_column_labels(matrix), title))
        more = f"<p>{MAX_NOTEBOOK_MAPS} of {len(maps)} maps</p>" if len(maps) > MAX_NOTEBOOK_MAPS else ""
        return f"<div>{''.join(figures)}{more}</div>"

    def _maps(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return a title and an index on the leading axes for each map."""
        if "pair" in self.axes:
            return [(f"layer {layer}, head {head}", (i,)) for i, (layer, head) in enumerate(self.pairs or ())]
        if "head" not in self.axes:
            return [(f"layer {layer}", (i,)) for i, layer in enumerate(self.layers)]
        return [
            (f"layer {layer}, head {head}", (i, j))
            for i, layer in enumerate(self.layers)
            for j, head in enumerate(self.heads)
        ]

    def _names(self, named: NamedArray, axis: str, length: int) -> list[str]:
        if axis == "pair":
            return [f"{layer}.{head}" for layer, head in self.pairs or ()]
        labels = {"query": self.query_labels, "key": self.key_labels}.get(axis, [])
        return labels if len(labels) == length else super()._names(named, axis, length)

    def _row_and_column_labels(self, matrix: Array) -> tuple[list[str], list[str]]:
        """Return tokens, or plain numbers if the map was resized and its cells belong to no single token."""
        named = self.arrays["attention"]
        rows, columns = map(
            partial(self._names, named), ("key" if axis == "k" else axis for axis in self.axes[-2:]), matrix.shape
        )
        return rows, columns

    def _pair_index(self, layer: int | None, head: int | None) -> int:
        found = self._pair_indices(layer, head)
        if len(found) != 1:
            raise ValueError(
                f"layer {layer}, head {head} choose {len(found)} of the pairs {list(self.pairs or ())}; choose one"
            )
        return found[0]

    def _pair_indices(self, layer: int | None, head: int | None) -> list[int]:
        layer = None if layer is None else own_number("layer", layer, self._total("layer"))
        head = None if head is None else own_number("head", head, self._total("head"))
        return [i for i, pair in enumerate(self.pairs or ()) if layer in (None, pair[0]) and head in (None, pair[1])]

    def _total(self, kind: str) -> int | None:
        return total_of(self.stacks, "encoder" if self.part == "encoder" else "decoder", kind)

    def _dense(self) -> Array:
        """Return `attention`, or after `top_k` whole rows with zeros (scores: -inf) where nothing was kept."""
        if self.indices is None:
            return self.attention
        np = require_numpy("attention")
        column_of = {position: column for column, position in enumerate(self.key_positions)}
        # One column too many takes the padding (-1) and is cut off again.
        columns = np.vectorize(lambda position: column_of.get(position, len(column_of)), otypes=[int])(self.indices)
        empty = 0 if self.kind == "pattern" else -np.inf
        whole = np.full((*self.indices.shape[:-1], len(column_of) + 1), empty, dtype=self.attention.dtype)
        np.put_along_axis(whole, columns, self.attention, axis=-1)
        rows: Array = whole[..., :-1]
        return rows
