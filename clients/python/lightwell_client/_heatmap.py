"""Draws matrices as pictures, with nothing but zlib: an indexed PNG, and the HTML around it for notebooks.

Independent of attention and of servers.
"""

from __future__ import annotations

import base64
import html
import struct
import zlib
from typing import TYPE_CHECKING

from lightwell_client._arrays import require_numpy

if TYPE_CHECKING:
    from lightwell_client._arrays import Array

MAX_PIXELS = 512
"""Most pixels of a side. A longer side is drawn smaller: each pixel shows the largest value it covers, so that
single peaks stay visible.
"""
MAX_LABELS = 48
CELL_PIXELS = 16
PAPER = (255, 255, 255)
INK_STOPS = ((247, 251, 255), (107, 174, 214), (8, 48, 107))
"""Colours from light to dark, so that print and colour-blind eyes keep the order."""
SIGNED_STOPS = ((5, 48, 97), (67, 147, 195), (247, 247, 247), (214, 96, 77), (103, 0, 31))
"""Colours with blue below 0 and red above: matplotlib's RdBu_r, as plot() has it."""


def heat_map_png(matrix: Array, *, signed: bool = False) -> bytes:
    """Return a [row, column] matrix as PNG, one pixel per cell: palest is the smallest finite value (0 if none is
    negative), darkest the largest; cells that are not finite stay white. `signed`: palest is 0, blue is below it and
    red above.

    Raises:
        MissingDependency: numpy is not installed.
        ValueError: not two axes, or one of them is empty.
    """
    np = require_numpy("a heat map")
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"a heat map needs a matrix with rows and columns, not shape {matrix.shape}")
    values: Array = shrunk(np.asarray(matrix, dtype=np.float64), signed)
    finite = np.isfinite(values)
    low = min(0.0, float(values[finite].min())) if finite.any() else 0.0
    high = float(values[finite].max()) if finite.any() else 0.0
    if signed:
        high = max(-low, high)
        low = -high
    scale = (high - low) or 1.0
    levels = 1 + np.rint((np.where(finite, values, low) - low) / scale * 254)
    pixels: Array = np.where(finite, levels, 0).astype(np.uint8)
    return _indexed_png(pixels, _palette(SIGNED_STOPS if signed else INK_STOPS))


def heat_map_html(matrix: Array, rows: list[str], columns: list[str], title: str, *, signed: bool = False) -> str:
    """Return one matrix as an HTML figure, with labels at rows and columns if there is room for them."""
    picture = base64.b64encode(heat_map_png(matrix, signed=signed)).decode()
    height, width = matrix.shape
    labelled = height <= MAX_LABELS and width <= MAX_LABELS
    cell = CELL_PIXELS if labelled else max(1.0, 96 / max(height, width))
    image = (
        f'<img alt="{html.escape(title)}" src="data:image/png;base64,{picture}" style="'
        f"width:{max(width * cell, CELL_PIXELS):.0f}px;"
        f'height:{max(height * cell, CELL_PIXELS):.0f}px;image-rendering:pixelated;border:1px solid #ccc;margin:0">'
    )
    caption = f'<figcaption style="font:12px sans-serif">{html.escape(title)}</figcaption>'
    if not labelled:
        return f'<figure style="display:inline-block;margin:4px">{image}{caption}</figure>'
    line = f"font:11px/{cell}px monospace;white-space:pre"
    left = "".join(f"<div style='height:{cell}px'>{_label(text)}</div>" for text in rows)
    below = "".join(
        f"<div style='width:{cell}px;writing-mode:vertical-rl;line-height:{cell}px'>{_label(text)}</div>"
        for text in columns
    )
    return (
        f'<figure style="display:inline-grid;grid-template-columns:auto auto;margin:4px">'
        f'<div style="text-align:right;padding:1px 4px 0 0;{line}">{left}</div>{image}'
        f'<div></div><div style="display:flex;padding:4px 0 0 1px;{line}">{below}</div><div></div>{caption}</figure>'
    )


def signed_colours(share: float) -> tuple[str, str]:
    """Return the colour of a number from -1 to 1, and a readable colour for text on it."""
    ground = _blend(SIGNED_STOPS, (1 + max(-1.0, min(1.0, share))) / 2)
    red, green, blue = ((part / 255) ** 2.2 for part in ground)
    # The brightness above which black has more contrast than white (WCAG 2.2, relative luminance).
    is_light = 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179
    return f"#{bytes(ground).hex()}", "#000" if is_light else "#fff"


def _label(text: str) -> str:
    """Return a token as a visible, harmless label."""
    shown = text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "·")
    return html.escape(shown if len(shown) <= 16 else shown[:15] + "…")


def shrunk(values: Array, signed: bool, limit: int = MAX_PIXELS) -> Array:
    """Shrink a matrix to at most `limit` pixels a side. A block becomes its largest finite value, or if `signed` the
    one farthest from 0, and stays empty if it has none.
    """
    np = require_numpy("a heat map")
    steps = [-(-side // limit) for side in values.shape]
    if max(steps) == 1:
        return values
    # Not finite is carried as -inf, which loses to every number.
    values = np.where(np.isfinite(values), values, -np.inf)
    padding = [(0, -side % step) for side, step in zip(values.shape, steps, strict=True)]
    padded = np.pad(values, padding, constant_values=-np.inf)
    height, width = (side // step for side, step in zip(padded.shape, steps, strict=True))
    cells = padded.reshape(height, steps[0], width, steps[1])
    blocks: Array = cells.max(axis=(1, 3))
    if signed:
        smallest = np.where(np.isfinite(cells), cells, np.inf).min(axis=(1, 3))
        blocks = np.where(-smallest > blocks, smallest, blocks)
    return blocks


def _palette(stops: tuple[tuple[int, ...], ...]) -> bytes:
    """Return 256 colours: paper for "no value", then 255 steps through `stops`."""
    colours = bytearray(PAPER)
    for level in range(255):
        colours.extend(_blend(stops, level / 254))
    return bytes(colours)


def _blend(stops: tuple[tuple[int, ...], ...], share: float) -> tuple[int, ...]:
    """Return the colour at a share of the way through `stops`."""
    place = share * (len(stops) - 1)
    stop = min(int(place), len(stops) - 2)
    return tuple(round(a + (b - a) * (place - stop)) for a, b in zip(stops[stop], stops[stop + 1], strict=True))


def _indexed_png(pixels: Array, palette: bytes) -> bytes:
    """Return a PNG of colour type 3 (W3C PNG, 11.2): each row begins with filter byte 0."""
    height, width = pixels.shape
    raw = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
