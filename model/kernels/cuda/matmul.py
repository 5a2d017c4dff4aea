"""Products x W^T + bias on a GPU. The bits of a row are the same in batches of any size.

Each number is a sum over K in one order, independent of the tile that computes it. The division of K into pieces
depends only on N and K. A piece is summed from its first product to its last: 16 products by each instruction of the
tensor cores, always the same instruction, or one product at a time in float32. Then the pieces are added in order. Few
rows have too few tiles to fill a GPU, so each piece has separate programs, and `join_kernel` adds the pieces; with many
rows one program sums all pieces of its tile.

A tile multiplies 16 or 32 rows at once. From 64 rows, newer GPUs would use an instruction that sums in another order.

Axes: R rows, K inputs, N outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from lightwell.model.kernels.cuda.interpreter import IS_INTERPRETED
from lightwell.model.kernels.cuda.rounding import rounded
from lightwell.model.kernels.cuda.tensors import DTYPES, aligned, aligned_rows, check_tensor

FILL = 96
"""Programs that use most of a GPU's bandwidth: nearly one for each multiprocessor."""
FEW_ROWS = 256
"""Most rows for which each piece of K has separate programs."""
LEAST_PIECE = 512
"""The least average length of the pieces of K."""
GROUP = 8
"""Neighbouring tiles of rows that run together, so that their part of the weight is read once."""
JOINED, JOIN_WARPS = 1024, 4
"""Numbers and warps of a program of `join_kernel`."""
_MULTIPLE = 128
"""Pieces, and every step of every tile over K, begin at multiples of this."""
INTERPRETED_INNER = 64
"""Inputs of a step in the interpreter, the same for all tiles: it sums the products of a step before it adds them."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One program's part of a product: `chunks` * `rows` rows and `columns` outputs, in steps of `inner` over K."""

    rows: int
    chunks: int
    columns: int
    inner: int
    num_warps: int
    num_stages: int
    sums_pieces: bool = True
    """Whether a program has the registers for two sums of each number, which it needs to add several pieces of K."""

    @property
    def height(self) -> int:
        """Return the number of rows."""
        return self.rows * self.chunks

    def count(self, num_rows: int, num_outputs: int) -> int:
        """Return the number of tiles that cover a product [R, N]."""
        return -(-num_rows // self.height) * -(-num_outputs // self.columns)


TILES = (
    Tile(32, 4, 128, 64, num_warps=8, num_stages=3, sums_pieces=False),
    Tile(32, 4, 64, 64, num_warps=8, num_stages=4),
    Tile(32, 2, 64, 64, num_warps=4, num_stages=4, sums_pieces=False),
    Tile(32, 2, 32, 128, num_warps=4, num_stages=3, sums_pieces=False),
    Tile(32, 1, 64, 128, num_warps=4, num_stages=4),
    Tile(32, 1, 32, 128, num_warps=4, num_stages=4),
    Tile(16, 1, 64, 128, num_warps=4, num_stages=4),
    Tile(16, 1, 32, 128, num_warps=4, num_stages=5),
)
"""The tiles of 16-bit numbers, from the largest."""
WIDE_TILES = (
    Tile(32, 2, 64, 32, num_warps=8, num_stages=3),
    Tile(32, 1, 32, 32, num_warps=4, num_stages=4),
    Tile(16, 1, 32, 32, num_warps=4, num_stages=4),
)
"""The tiles of float32, from the largest."""


@triton.jit
def _place(program, R, N, HEIGHT: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    """Return a program's first row and first output: GROUP tiles of rows come first, then the next outputs."""
    row_tiles = tl.cdiv(R, HEIGHT)
    of_group = GROUP * tl.cdiv(N, COLUMNS)
    first = program // of_group * GROUP
    num_tiles = tl.minimum(row_tiles - first, GROUP)
    within = program % of_group
    return (first + within % num_tiles) * HEIGHT, within // num_tiles * COLUMNS


@triton.jit
def none():
    """Return an empty tuple, to which each chunk is added."""
    return ()


@triton.jit
def sum_piece(
    rows, weights, begin, end, K, ROWS: tl.constexpr, CHUNKS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
    IS_WHOLE: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Return the sums over inputs begin .. end, float32 [ROWS, COLUMNS] for each chunk. `rows` and `weights`: the
    addresses of the first INNER inputs.
    """
    sums = none()
    for _ in tl.static_range(CHUNKS):
        sums += (tl.zeros([ROWS, COLUMNS], tl.float32),)
    inner = tl.arange(0, INNER)
    for k in range(begin, end, INNER):
        is_in = inner < K - k
        b = tl.load(weights + k) if IS_WHOLE else tl.load(weights + k, mask=is_in[:, None], other=0.0)
        if WIDEN:
            b = b.to(tl.float32)
        following = none()
        for i in tl.static_range(CHUNKS):
            a = tl.load(rows[i] + k) if IS_WHOLE else tl.load(rows[i] + k, mask=is_in[None, :], other=0.0)
            if WIDEN:
                a = a.to(tl.float32)
            following += (tl.dot(a, b, sums[i], input_precision="ieee"),)
        sums = following
    return sums


@triton.jit(do_not_specialize=["R"])
def matmul_kernel(
    x, w, bias, out, x_distance, R, N, K, piece,
    ROWS: tl.constexpr, CHUNKS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr,
    IS_WHOLE: tl.constexpr, PIECES: tl.constexpr, IS_PART: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Compute a tile of all pieces of K, or (IS_PART) of one: grid (tiles, 1 or pieces).

    piece: its length. IS_WHOLE: whether K is a multiple of INNER. out: [R, N], or float32 [pieces, R, N].
    """
    first_row, first_column = _place(tl.program_id(0), R, N, ROWS * CHUNKS, COLUMNS, GROUP)
    row, column = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
    inner = tl.arange(0, INNER)
    # Rows and outputs after the last are copies of the last, and are not stored.
    weights = w + tl.minimum(column, N - 1).to(tl.int64)[None, :] * K + inner[:, None]
    rows = none()
    for i in tl.static_range(CHUNKS):
        rows += (x + tl.minimum(row + i * ROWS, R - 1).to(tl.int64)[:, None] * x_distance + inner[None, :],)
    begin = tl.program_id(1) * piece
    end = tl.minimum(begin + piece, K)
    sums = sum_piece(rows, weights, begin, end, K, ROWS, CHUNKS, COLUMNS, INNER, IS_WHOLE, WIDEN)
    if PIECES > 1 and not IS_PART:
        for i in range(1, PIECES):
            begin = i * piece
            end = tl.minimum(begin + piece, K)
            more = sum_piece(rows, weights, begin, end, K, ROWS, CHUNKS, COLUMNS, INNER, IS_WHOLE, WIDEN)
            following = none()
            for chunk in tl.static_range(CHUNKS):
                following += (sums[chunk] + more[chunk],)
            sums = following
    is_out = (column < N)[None, :]
    added = 0.0
    if bias is not None:
        added = tl.load(bias + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
    dtype: tl.constexpr = out.dtype.element_ty
    for i in tl.static_range(CHUNKS):
        at = row + i * ROWS
        to = out + (tl.program_id(1).to(tl.int64) * R + at)[:, None] * N + column[None, :]
        y = sums[i] if bias is None else sums[i] + added
        tl.store(to, rounded(y, dtype).to(dtype), mask=(at < R)[:, None] & is_out)


@triton.jit(do_not_specialize=["R"])
def join_kernel(parts, bias, out, R, N, PIECES: tl.constexpr, BLOCK: tl.constexpr):
    """Add the pieces of BLOCK numbers of a row, in their order: grid (R, blocks)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(parts + row * N + column, mask=column < N, other=0.0)
    for i in tl.static_range(1, PIECES):
        y = y + tl.load(parts + (i * R + row) * N + column, mask=column < N, other=0.0)
    if bias is not None:
        y = y + tl.load(bias + column, mask=column < N, other=0.0).to(tl.float32)
    dtype: tl.constexpr = out.dtype.element_ty
    tl.store(out + row * N + column, rounded(y, dtype).to(dtype), mask=column < N)


def piece_length(num_outputs: int, num_inputs: int) -> int:
    """Return the length of the pieces of K: all of K if N gives enough programs."""
    tiles = -(-num_outputs // TILES[-1].columns)
    pieces = max(1, min(-(-FILL // tiles), num_inputs // LEAST_PIECE))
    length = -(-num_inputs // pieces)
    return length + -length % _MULTIPLE


def choose_tile(
    num_rows: int, num_outputs: int, num_pieces: int, dtype: torch.dtype, tiles: Sequence[Tile] | None = None
) -> Tile:
    """Return the largest tile that fills a GPU, unless half its rows are enough, or else the smallest tile. tiles:
    instead of the tiles of the dtype.
    """
    tiles = tiles or (WIDE_TILES if dtype == torch.float32 else TILES)
    is_split = num_pieces > 1 and num_rows <= FEW_ROWS
    for tile in tiles:
        is_needed = tile.height < 2 * num_rows or tile.height == tiles[-1].height
        programs = tile.count(num_rows, num_outputs) * (num_pieces if is_split else 1)
        if is_needed and programs >= FILL and (num_pieces == 1 or is_split or tile.sums_pieces):
            return tile
    return tiles[-1]


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + bias: x [R, K], weight [N, K], contiguous, and bias [N], of one dtype -> [R, N].

    The sum and the bias are added in float32 and rounded once. Rows may be slices of wider rows.

    Raises ValueError for shapes and dtypes that do not fit.
    """
    check_tensor("x", x, DTYPES, (None, None))
    num_rows, num_inputs = x.shape
    check_tensor("weight", weight, (x.dtype,), (None, num_inputs))
    num_outputs = len(weight)
    if bias is not None:
        check_tensor("bias", bias, (x.dtype,), (num_outputs,))
        bias = aligned(bias)
    out = torch.empty(num_rows, num_outputs, dtype=x.dtype, device=x.device)
    if not num_inputs:
        return out.zero_() if bias is None else out.copy_(bias)
    if not out.numel():
        return out
    x, distance = aligned_rows(x)
    length = piece_length(num_outputs, num_inputs)
    pieces = -(-num_inputs // length)
    tile = choose_tile(num_rows, num_outputs, pieces, x.dtype)
    is_split = pieces > 1 and num_rows <= FEW_ROWS
    sums = torch.empty(pieces, num_rows, num_outputs, dtype=torch.float32, device=x.device) if is_split else out
    inner = INTERPRETED_INNER if IS_INTERPRETED else tile.inner
    matmul_kernel[(tile.count(num_rows, num_outputs), pieces if is_split else 1)](
        x, aligned(weight), None if is_split else bias, sums, distance, num_rows, num_outputs, num_inputs, length,
        ROWS=tile.rows, CHUNKS=tile.chunks, COLUMNS=tile.columns, INNER=inner, GROUP=GROUP,
        IS_WHOLE=num_inputs % inner == 0, PIECES=pieces, IS_PART=is_split, WIDEN=IS_INTERPRETED,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    if is_split:
        join_kernel[(num_rows, triton.cdiv(num_outputs, JOINED))](
            sums, bias, out, num_rows, num_outputs, PIECES=pieces, BLOCK=JOINED, num_warps=JOIN_WARPS
        )
    return out
