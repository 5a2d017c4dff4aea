"""Draws pictures with matplotlib. It knows arrays and labels, and nothing of the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lightwell_client._exceptions import MissingDependency

if TYPE_CHECKING:
    from lightwell_client._arrays import Array

MAX_LABELS = 64
"""Most names on an axis: with more of them they would overlap; matplotlib then numbers the ticks."""


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
    matrix: Array, rows: Sequence[str], columns: Sequence[str], *, names: tuple[str, str], label: str, ax: Any = None
) -> Any:
    """Draw a matrix [row, column] with names at both sides; blue for numbers from 0, blue to red if they have signs."""
    signed = float(matrix.min()) < 0
    reach = float(abs(matrix).max()) or 1.0
    limits = {"cmap": "RdBu_r", "vmin": -reach, "vmax": reach} if signed else {"cmap": "Blues"}
    return picture(matrix, rows, columns, names=names, label=label, ax=ax, **limits)


def picture(
    matrix: Array, rows: Sequence[str], columns: Sequence[str], *, names: Sequence[str], label: str, ax: Any, **how: Any
) -> Any:
    """Draw a matrix [row, column] with names at both sides, if there is room for them; `how` is imshow's."""
    axes = axes_for(ax)
    image = axes.imshow(matrix, aspect="auto", interpolation="nearest", **how)
    if len(columns) <= MAX_LABELS:
        axes.set_xticks(range(len(columns)), [visible(text) for text in columns], rotation=90)
    if len(rows) <= MAX_LABELS:
        axes.set_yticks(range(len(rows)), [visible(text) for text in rows])
    axes.set_ylabel(names[0])
    axes.set_xlabel(names[1])
    axes.figure.colorbar(image, ax=axes, label=label)
    return axes


def write_cells(axes: Any, texts: Sequence[Sequence[str]], dark: Array) -> None:
    """Write a text in each cell of a heat map, white where `dark` [row, column]."""
    for i, row in enumerate(texts):
        for j, text in enumerate(row):
            colour = "white" if dark[i, j] else "black"
            axes.text(j, i, visible(text), ha="center", va="center", fontsize=7, color=colour)


def bars(values: Mapping[str, float] | Sequence[tuple[str, float]], *, label: str, ax: Any = None) -> Any:
    """Draw horizontal bars, the first at the top; a name may occur twice."""
    pairs = list(values.items()) if isinstance(values, Mapping) else list(values)
    axes = axes_for(ax)
    places = range(len(pairs))
    axes.barh(places, [value for _, value in pairs], color=["C0" if value >= 0 else "C3" for _, value in pairs])
    axes.set_yticks(places, [visible(name) for name, _ in pairs])
    axes.invert_yaxis()
    axes.set_xlabel(label)
    return axes
