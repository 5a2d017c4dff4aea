"""Batch-invariant torch operations: the bits of a row do not depend on the number of rows, on any device, in any dtype.

Libraries of matrix products choose a kernel, and with it the order of the sums, by the shape of the product. Therefore
every product here has a fixed shape: rows, heads and columns are divided into tiles of a fixed size, padded with zeros.
All rows have the same alignment, as some kernels compute the numbers before an aligned address separately. Sums over
several tiles are added tile after tile, so that additional tiles of zeros change nothing. Other operations (+, -, *, /,
maximum) are correctly rounded at any place.

The assumption: for one shape, dtype, layout and alignment, a library always runs the same kernel with the same number
of threads, and this kernel sums every row, and every matrix of a batch, in the same order. Tests check it.

Axes: rows, in, out of a layer; heads, rows, inner, columns of a product.
"""

from collections.abc import Callable
from itertools import product as combinations

import torch
import torch.nn.functional as F
from torch import Tensor

LINEAR_ROWS = 64
"""Rows of a product with a layer's weight. On a GPU this number takes as long as one row: both wait for the weight."""

HEADS, ROWS, KEYS = 8, 32, 128
"""Sizes of a product within attention: heads, query rows, and keys. KEYS is a power of two."""

_ALIGNED = 16
"""Row lengths are multiples of this: 64 bytes of float32. Otherwise the order of MKL's sums on AMD depends on the place
of the row.
"""

_PIECE, _VECTOR = 1 << 14, 64
"""Numbers computed by one thread of torch (less than its grain of 32768), and a multiple of every CPU's loop length
(two vectors of 32 float16).
"""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b: x [rows, in], weight [out, in], bias [out] -> [rows, out]."""
    tiles = _padded(x, (LINEAR_ROWS, _ALIGNED))
    if padding := tiles.shape[1] - x.shape[1]:  # F.pad copies even without padding
        weight = F.pad(weight, (0, padding))
    out = x.new_empty(len(tiles), len(weight))
    for tile in _tiles(len(x), LINEAR_ROWS):
        out[tile] = F.linear(tiles[tile], weight, bias)
    return out[: len(x)]


def product(a: Tensor, b: Tensor, inner: int, columns: int) -> Tensor:
    """Return a [heads, rows, m] times b [heads, m, n]: [heads, rows, n].

    It consists of products [HEADS, ROWS, inner] times [HEADS, inner, columns], padded to aligned rows, and added in the
    order of m.
    """
    heads, rows, m = a.shape
    n = b.shape[2]
    inner, columns = inner + -inner % _ALIGNED, columns + -columns % _ALIGNED
    a, b = _padded(a, (HEADS, ROWS, inner)), _padded(b, (HEADS, inner, columns))
    out = a.new_zeros(a.shape[0], a.shape[1], b.shape[2])
    for h, r, c in combinations(_tiles(heads, HEADS), _tiles(rows, ROWS), _tiles(n, columns)):
        for i in _tiles(m, inner):
            out[h, r, c] += torch.bmm(a[h, r, i].contiguous(), b[h, i, c].contiguous())
    return out[:heads, :rows, :n]


def softmax(scores: Tensor) -> Tensor:
    """Return the softmax over the last axis: scores [heads, rows, keys] -> the same shape.

    Additional keys at the end with the score -inf change no bits.
    """
    weights = whole_vectors(torch.exp, scores - scores.amax(-1, keepdim=True))
    return weights / row_sums(weights)


def row_sums(x: Tensor) -> Tensor:
    """Return the sum over the last axis: x [..., n] -> [..., 1]. Tiles of KEYS are summed by halves, then in order."""
    sums = F.pad(x, (0, -x.shape[-1] % KEYS)).reshape(*x.shape[:-1], -1, KEYS)  # [..., tiles, KEYS]
    while (half := sums.shape[-1] // 2) > 0:
        sums = sums[..., :half] + sums[..., half:]
    total = torch.zeros_like(sums[..., 0, :])  # [..., 1]
    for tile in range(sums.shape[-2]):
        total = total + sums[..., tile, :]
    return total


def aligned_rows(x: Tensor) -> Tensor:
    """Return x [rows, n], on a GPU padded with -inf to rows of a multiple of 16 bytes.

    torch's softmax on a GPU reads 16 bytes at once, so the order of its sums depends on the alignment of the row.
    """
    numbers = 16 // x.itemsize
    if x.device.type == "cpu" or x.shape[-1] % numbers == 0:
        return x
    return F.pad(x, (0, -x.shape[-1] % numbers), value=float("-inf"))


def whole_vectors(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return `function`, an elementwise function, of x (any shape).

    On a CPU torch uses different code, with other rounding, for whole vectors and for the remainder of each thread's
    part. Here each call has whole vectors and one thread. A GPU uses one code for all elements.
    """
    if x.device.type != "cpu":
        return function(x)
    flat = _padded(x.reshape(-1), (_VECTOR,))
    pieces = [function(piece) for piece in torch.split(flat, _PIECE)]
    return torch.cat(pieces)[: x.numel()].view(x.shape)


def _padded(x: Tensor, multiples: tuple[int, ...]) -> Tensor:
    """Return a copy of x in new, aligned memory, padded with zeros along each axis to a multiple of `multiples`."""
    out = x.new_zeros([-(-size // multiple) * multiple for size, multiple in zip(x.shape, multiples, strict=True)])
    out[tuple(slice(size) for size in x.shape)] = x
    return out


def _tiles(size: int, step: int) -> list[slice]:
    """Return slices of `step` that cover 0 .. size."""
    return [slice(first, first + step) for first in range(0, size, step)]
