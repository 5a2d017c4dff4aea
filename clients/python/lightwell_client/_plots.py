"""Draws pictures with matplotlib. It knows arrays and labels, and nothing of the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightwell_client._arrays import require_numpy
from lightwell_client._exceptions import MissingDependency
from lightwell_client._heatmap import shrunk

if TYPE_CHECKING:
    from lightwell_client._arrays import Array

_INCHES = 0.24
"""Room of a token at an axis."""
_MOST_TOKENS = 64
"""Tokens for which a new picture grows."""
_SIDE = 64
"""Most pixels of a side of one map among many."""


def axes_for(ax: Any, **size: Any) -> Any:
    """Return `ax`, or the axes of a new figure.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot  # optional
    except ImportError as error:
        raise MissingDependency("plot() needs matplotlib: pip install 'lightwell-client[plot]'") from error
    return pyplot.subplots(layout="constrained", **size)[1]  # or a saved picture would cut long labels


def visible(text: str) -> str:
    """Return a token as a label that shows its spaces and line ends."""
    return repr(text)[1:-1]


def heat_map(
    matrix: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    names: Sequence[str],
    label: str,
    title: str | None = None,
    ax: Any = None,
) -> Any:
    """Draw a matrix [row, column] with names at both sides; blue for numbers from 0, blue to red if they have signs.

    title: `label` if it is None.
    """
    axes = axes_for(ax, figsize=(_inches(columns, 6.4), _inches(rows, 4.8)))
    _image(axes, matrix, matrix, names, label, label if title is None else title)
    _ticks(axes, "x", range(len(columns)), columns)
    _ticks(axes, "y", range(len(rows)), rows)
    return axes


def many_maps(
    maps: Array, rows: Sequence[str], columns: Sequence[str], *, names: Sequence[str], label: str, title: str, ax: Any
) -> Any:
    """Draw maps [row, column, y, x] side by side in one picture, with one scale of colours."""
    np = require_numpy("plot()")
    signed = _limits(maps)[0] < 0
    small = [[shrunk(each.astype(np.float64), signed, _SIDE) for each in row] for row in maps]
    height, width = small[0][0].shape
    gap = 1 + max(height, width) // 16
    canvas = np.full((len(rows) * (height + gap) - gap, len(columns) * (width + gap) - gap), np.nan)
    for i, row in enumerate(small):
        for j, each in enumerate(row):
            canvas[i * (height + gap) :, j * (width + gap) :][:height, :width] = each
    axes = axes_for(ax, figsize=(min(16.0, 2.4 + 0.5 * len(columns)), min(16.0, 1.6 + 0.5 * len(rows))))
    _image(axes, canvas, maps, names, label, title)
    _ticks(axes, "x", [j * (width + gap) + (width - 1) / 2 for j in range(len(columns))], columns)
    _ticks(axes, "y", [i * (height + gap) + (height - 1) / 2 for i in range(len(rows))], rows)
    return axes


def _image(axes: Any, matrix: Array, numbers: Array, names: Sequence[str], label: str, title: str) -> None:
    """Draw a matrix in the colours of `numbers`."""
    low, high = _limits(numbers)
    limits = {"cmap": "RdBu_r", "vmin": -high, "vmax": high} if low < 0 else {"cmap": "Blues", "vmin": 0, "vmax": high}
    image = axes.imshow(matrix, aspect="auto", interpolation="nearest", **limits)
    axes.set_ylabel(names[0])
    axes.set_xlabel(names[1])
    axes.set_title(title, fontsize="medium", wrap=True)
    axes.figure.colorbar(image, ax=axes, label=label)


def _limits(numbers: Array) -> tuple[float, float]:
    """Return the smallest finite number, and the largest absolute value, 1 if it is 0."""
    finite = numbers[require_numpy("plot()").isfinite(numbers)]
    return (float(finite.min()), float(abs(finite.astype(float)).max()) or 1.0) if finite.size else (0.0, 1.0)


def _inches(labels: Sequence[str], least: float) -> float:
    """Return the length of an axis with room for its tokens; numbers are thinned out."""
    if all(label.lstrip("-").isdigit() for label in labels):
        return least
    return max(least, 2.5 + _INCHES * min(len(labels), _MOST_TOKENS))


def _ticks(axes: Any, side: str, places: Sequence[float], labels: Sequence[str]) -> None:
    """Name the places of an axis: every one, or every second, third ... if there is no room for more."""
    box, (width, height) = axes.get_position(), axes.figure.get_size_inches()
    points = 72 * 0.85 * (box.width * width if side == "x" else box.height * height)
    text = axes.xaxis.get_ticklabels()[:1] if side == "x" else axes.yaxis.get_ticklabels()[:1]
    size = 1.3 * (text[0].get_fontsize() if text else 10.0)
    step = max(1, -(-int(len(labels) * size) // max(1, int(points))))
    named = [visible(label) for label in labels[::step]]
    if side == "x":
        axes.set_xticks(places[::step], named, rotation=90 if max(map(len, named), default=0) > 2 else 0)
    else:
        axes.set_yticks(places[::step], named)


def write_cells(axes: Any, texts: Sequence[Sequence[str]], dark: Array) -> None:
    """Write a text in each cell of a heat map, white where `dark` [row, column]."""
    for i, row in enumerate(texts):
        for j, text in enumerate(row):
            colour = "white" if dark[i, j] else "black"
            axes.text(j, i, visible(text), ha="center", va="center", fontsize=7, color=colour)


def bars(values: Sequence[tuple[str, float]], *, label: str, title: str | None = None, ax: Any = None) -> Any:
    """Draw horizontal bars, the first at the top; a name may occur twice. title: `label` if it is None."""
    axes = axes_for(ax, figsize=(6.4, _inches([name for name, _ in values], 4.8)))
    places = range(len(values))
    axes.barh(places, [value for _, value in values], color=["C0" if value >= 0 else "C3" for _, value in values])
    axes.invert_yaxis()
    _ticks(axes, "y", places, [name for name, _ in values])
    axes.set_xlabel(label)
    axes.set_title(label if title is None else title, fontsize="medium", wrap=True)
    return axes
