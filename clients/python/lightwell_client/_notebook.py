"""Writes results as they look when they are printed, and in a notebook: names, shapes and dtypes; tables and heat maps.

It shows arrays with named axes, independent of their meaning.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, product
from typing import TYPE_CHECKING, Any

from lightwell_client._arrays import require_numpy
from lightwell_client._heatmap import heat_map_html, signed_colours

if TYPE_CHECKING:
    from lightwell_client._arrays import Array

MAX_MAPS = 64
MAX_LISTED = 64
_BESIDE = ("kind", "measure", "temperature", "k", "kv_head", "head", "layer")
"""Axes with a picture for each index, the first of them first; two axes are left for the picture."""


class NotebookView:
    """A result that a notebook shows as HTML."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        raise NotImplementedError

    def to_html(self) -> str:
        """Return the view that a notebook shows, as a whole HTML page."""
        shown = self._repr_html_() or f"<pre>{html.escape(repr(self))}</pre>"
        return f"<!doctype html><meta charset=utf-8><title>{type(self).__name__}</title>{shown}\n"


def coloured(pieces: Iterable[tuple[str, str, float]]) -> str:
    """Return a text as a line of HTML, each piece on the colour of its share, from -1 to 1.

    pieces: the texts, the titles that a mouse shows, and the shares.
    """
    spans = []
    for text, title, share in pieces:
        ground, ink = signed_colours(share)
        shown = html.escape(text.replace("\n", "⏎").replace("\t", "⇥"))
        spans.append(
            f'<span title="{html.escape(title)}" style="background:{ground};color:{ink};'
            f'display:inline-block;min-width:.5em;padding:0 1px;white-space:pre">{shown}</span>'
        )
    return f'<p style="font:14px/1.7 monospace;margin:4px 0">{"".join(spans)}</p>'


def described(axes: Sequence[str], shape: Sequence[int], dtype: object) -> str:
    """Return an array's axes, lengths and dtype: "[layer 6, head 8] float32"."""
    lengths = ", ".join(f"{axis} {length}" for axis, length in zip(axes, shape, strict=True))
    return f"[{lengths}] {dtype}"


def listed(head: str, lines: Sequence[str]) -> str:
    """Return a line about the whole, and an indented one for each part, the first 64 if there are more."""
    more = [f"... and {len(lines) - MAX_LISTED} more"] if len(lines) > MAX_LISTED else []
    return "\n  ".join([head, *lines[:MAX_LISTED], *more])


def page(text: str, tables: Sequence[str], maps: Iterator[str], num_maps: int) -> str:
    """Return the notebook view of a result: the text of print, then tables, then at most 64 maps."""
    pictures = "".join(islice(maps, MAX_MAPS))
    more = f"<p>{MAX_MAPS} of {num_maps} maps</p>" if num_maps > MAX_MAPS else ""
    return f"<div><pre style='white-space:pre-wrap'>{html.escape(text)}</pre>{''.join(tables)}{pictures}{more}</div>"


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return an HTML table; floats have four digits, and texts show their spaces."""
    cells = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
    names = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    return (
        f"<table><caption>{html.escape(title)}</caption><thead><tr>{names}</tr></thead><tbody>{cells}</tbody></table>"
    )


def num_maps(array: Array, axes: Sequence[str]) -> int:
    """Return how many maps `maps` gives."""
    count = 1
    for place in _beside(array, axes):
        count *= array.shape[place]
    return count if _can_be_drawn(array) else 0


def maps(title: str, array: Array, axes: Sequence[str], names: Callable[[str, int], list[str]]) -> Iterator[str]:
    """Yield heat maps of two axes each, one for each index on the others; arrays of whole numbers give none, as they
    are indices themselves.

    names: the names along an axis of that length.
    """
    if not _can_be_drawn(array):
        return
    np = require_numpy("a heat map")
    finite = array[np.isfinite(array)]
    signed = bool(finite.size) and float(finite.min()) < 0
    called = [names(axis, length) for axis, length in zip(axes, array.shape, strict=True)]
    if array.ndim == 1:
        array, axes, called = array[None], ["", *axes], [[""], *called]
    beside = _beside(array, axes)
    rows, columns = (i for i in range(array.ndim) if i not in beside)
    ordered = np.transpose(array, [*beside, rows, columns])
    for places in product(*(range(array.shape[i]) for i in beside)):
        where = [f"{axes[i]} {called[i][place]}" for i, place in zip(beside, places, strict=True)]
        label = ", ".join([title, *reversed(where)])
        yield heat_map_html(ordered[places], called[rows], called[columns], label, signed=signed)


def _can_be_drawn(array: Array) -> bool:
    return array.dtype.kind == "f" and array.size > 0 and array.ndim > 0


def _beside(array: Array, axes: Sequence[str]) -> list[int]:
    """Return the axes that have a map for each index, so that two are left: heads before layers, then the first
    ones.
    """
    order = sorted(range(array.ndim), key=lambda i: (_BESIDE.index(axes[i]) if axes[i] in _BESIDE else len(_BESIDE), i))
    return order[: max(0, array.ndim - 2)]


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return f"<code style='white-space:pre'>{html.escape(repr(value)[1:-1])}</code>"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else "&ndash;"
