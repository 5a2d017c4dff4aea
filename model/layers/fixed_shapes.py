"""Torch operations whose answer for a row does not depend on how many rows there are, on any device, in any dtype.

Libraries of matrix products choose a kernel, and with it the order of the sums, by the shape of the product. So every
product here has one shape, whatever is asked: rows, heads and columns come in tiles of a fixed size, padded with zeros;
and all rows have the same alignment, as some kernels treat what comes before a boundary separately. What is summed over
several tiles is added up one tile after the other, so that a tile of zeros more or less changes nothing. Everything
else (+, -, *, /, the largest of several numbers) is rounded correctly at any place.

The assumption is that for one shape, dtype, layout and alignment a library runs the same kernel with the same number of
threads each time, and that this kernel sums every row, and every matrix of several, in the same order. Tests check it.

Axes: rows, in, out of a layer; heads, rows, inner, columns of a product.
"""

from collections.abc import Callable
from itertools import product as combinations

import torch
import torch.nn.functional as F
from torch import Tensor

LINEAR_ROWS = 64
"""Rows of a product with a layer's weight. On a GPU so many take as long as one: both wait for the weight."""

HEADS, ROWS, KEYS = 8, 32, 128
"""Sizes of a product within attention: heads, query rows, and keys. KEYS is a power of two."""

_ALIGNED = 16
"""The number of elements that a row's length is a multiple of: 64 bytes of float32. Otherwise MKL on AMD sums a row in
an order that depends on its place.
"""

_PIECE, _VECTOR = 1 << 14, 64
"""Numbers that torch computes in one thread (under its grain of 32768), and a multiple of what any CPU's loop takes at
once (two vectors of 32 float16).
"""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b: x [rows, in], weight [out, in], bias [out] -> [rows, out]."""
    tiles = _filled_up(x, (LINEAR_ROWS, _ALIGNED))
    if filling := tiles.shape[1] - x.shape[1]:  # or it would be copied for nothing
        weight = F.pad(weight, (0, filling))
    out = x.new_empty(len(tiles), len(weight))
    for tile in _tiles(len(x), LINEAR_ROWS):
        out[tile] = F.linear(tiles[tile], weight, bias)
    return out[: len(x)]


def product(a: Tensor, b: Tensor, inner: int, columns: int) -> Tensor:
    """Return a [heads, rows, m] times b [heads, m, n]: [heads, rows, n].

    It is made of products [HEADS, ROWS, inner] times [HEADS, inner, columns], both padded to whole rows that are
    aligned; these are added up in the order of m.
    """
    heads, rows, m = a.shape
    n = b.shape[2]
    inner, columns = inner + -inner % _ALIGNED, columns + -columns % _ALIGNED
    a, b = _filled_up(a, (HEADS, ROWS, inner)), _filled_up(b, (HEADS, inner, columns))
    out = a.new_zeros(a.shape[0], a.shape[1], b.shape[2])
    for h, r, c in combinations(_tiles(heads, HEADS), _tiles(rows, ROWS), _tiles(n, columns)):
        for i in _tiles(m, inner):
            out[h, r, c] += torch.bmm(a[h, r, i].contiguous(), b[h, i, c].contiguous())
    return out[:heads, :rows, :n]


def softmax(scores: Tensor) -> Tensor:
    """Return exp(score - largest) / sum over the last axis: scores [heads, rows, keys] -> the same shape.

    Keys of score -inf at the end change nothing.
    """
    weights = whole_vectors(torch.exp, scores - scores.amax(-1, keepdim=True))
    return weights / row_sums(weights)


def row_sums(x: Tensor) -> Tensor:
    """Return the sum over the last axis: x [..., n] -> [..., 1]. A tile of KEYS is summed in halves, then tile after
    tile.
    """
    sums = F.pad(x, (0, -x.shape[-1] % KEYS)).reshape(*x.shape[:-1], -1, KEYS)  # [..., tiles, KEYS]
    while (half := sums.shape[-1] // 2) > 0:
        sums = sums[..., :half] + sums[..., half:]
    total = torch.zeros_like(sums[..., 0, :])  # [..., 1]
    for tile in range(sums.shape[-2]):
        total = total + sums[..., tile, :]
    return total


def aligned_rows(x: Tensor) -> Tensor:
    """Return x [rows, n], on a GPU with -inf after each row so that all of them begin at a multiple of 16 bytes.

    There torch's softmax reads 16 bytes at a time, and so sums a row that begins elsewhere in another order.
    """
    numbers = 16 // x.itemsize
    if x.device.type == "cpu" or x.shape[-1] % numbers == 0:
        return x
    return F.pad(x, (0, -x.shape[-1] % numbers), value=float("-inf"))


def whole_vectors(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return a function of single numbers, applied to each number of x.

    On a CPU torch computes whole vectors and the last few numbers of each thread's share with different code, which may
    round differently: so there are none left over here, and no shares. A GPU has one code for all.
    """
    if x.device.type != "cpu":
        return function(x)
    flat = _filled_up(x.reshape(-1), (_VECTOR,))
    pieces = [function(piece) for piece in torch.split(flat, _PIECE)]
    return torch.cat(pieces)[: x.numel()].view(x.shape)


def _filled_up(x: Tensor, multiples: tuple[int, ...]) -> Tensor:
    """Return a copy of x, padded with zeros along every axis to a multiple of these; in new memory, which is
    aligned.
    """
    out = x.new_zeros([-(-size // multiple) * multiple for size, multiple in zip(x.shape, multiples, strict=True)])
    out[tuple(slice(size) for size in x.shape)] = x
    return out


def _tiles(size: int, step: int) -> list[slice]:
    """Return slices of `step` that cover 0 .. size."""
    return [slice(first, first + step) for first in range(0, size, step)]
