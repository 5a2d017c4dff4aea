"""Attention patterns with their tokens and axes attached.

It knows what the numbers mean; _attention_wire reads them from the wire, and _heatmap draws them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lightwell_client._arrays import require_numpy
from lightwell_client._heatmap import heat_map_html, heat_map_png
from lightwell_client._notebook import described, listed
from lightwell_client._places import Stacks, own_number, place_of, total_of
from lightwell_client._plots import picture
from lightwell_client._results import Usage

if TYPE_CHECKING:
    from lightwell_client._arrays import Array

MAX_NOTEBOOK_MAPS = 64


@dataclass(frozen=True, eq=False)
class AttentionResult:
    """The attention of one input.

    `attention` has the axes that `axes` names, by default [layer, head, query, key]: row = query = the position that
    attends, column = key = the position attended to. Under `pairs` the first axis is "pair"; `reduce` leaves the head
    axis out; `orientation="columns"` puts key before query; `top_k` keeps k keys per row, whose positions are in
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

    def __repr__(self) -> str:
        """Return the fields in a line, then the axes and dtype of each array."""
        about = f"AttentionResult(index={self.index}, kind={self.kind!r}, model={self.model!r}"
        about += f", compute_dtype={self.compute_dtype!r}, layers={self.layers}, heads={self.heads})"
        arrays = {"attention": self.attention, "indices": self.indices}
        lines = [
            f"{name}: {described(self.axes, array.shape, array.dtype)}"
            for name, array in arrays.items()
            if array is not None
        ]
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
        """Draw one map with matplotlib and return its axes; `layer` and `head` as for `matrix`.

        Raises:
            MissingDependency: matplotlib is not installed.
            ValueError: as `matrix`.
        """
        matrix = self.matrix(layer, head)
        rows, columns = self._row_and_column_labels(matrix)
        return picture(matrix, rows, columns, names=self.axes[-2:], label=self.kind, ax=ax, cmap="Blues")

    def png(self, layer: int | None = None, head: int | None = None) -> bytes:
        """Return one map as a PNG, one pixel per cell; this needs no matplotlib."""
        return heat_map_png(self.matrix(layer, head))

    def _repr_html_(self) -> str:
        """Return what a notebook shows: every map of the answer, the first 64 if there are more."""
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

    def _row_and_column_labels(self, matrix: Array) -> tuple[list[str], list[str]]:
        """Return tokens, or plain numbers if the map was resized and its cells belong to no single token."""
        labels = [self.query_labels, self.key_labels]
        if self.axes[-2:] == ("key", "query"):
            labels.reverse()
        rows, columns = (
            names if len(names) == size else [str(i) for i in range(size)]
            for names, size in zip(labels, matrix.shape, strict=True)
        )
        return rows, columns

    def _pair_index(self, layer: int | None, head: int | None) -> int:
        pairs = self.pairs or ()
        layer = None if layer is None else own_number("layer", layer, self._total("layer"))
        head = None if head is None else own_number("head", head, self._total("head"))
        found = [i for i, pair in enumerate(pairs) if layer in (None, pair[0]) and head in (None, pair[1])]
        if len(found) != 1:
            raise ValueError(f"layer {layer}, head {head} choose {len(found)} of the pairs {list(pairs)}; choose one")
        return found[0]

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
