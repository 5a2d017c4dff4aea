"""Normalises and rotates queries and keys, and writes keys and values to a paged cache, in one launch.

The bits of a row depend only on the row: a program computes some heads of one row, in an order that depends only on the
shape and the dtype of a row, and without fused multiply-adds.

On a GPU the cache has keys [block, K, B, D] and values [block, K, B, D]: the D numbers of each are adjacent.

Axes: T rows, H query heads, K key heads, D head dimension, R <= D rotated dimensions (the first ones), B keys to a
block, E rows of the encoder.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lightwell.model.kernels.cuda.dependent_launch import launch_options, wait_for_kernels_ahead
from lightwell.model.kernels.cuda.norms import check_norm, inverse_root, norm_step, rms_weighted
from lightwell.model.kernels.cuda.rounding import rounded
from lightwell.model.kernels.cuda.tensors import DTYPES, aligned, check_tensor
from lightwell.model.kernels.program.steps import NormWeights

TILE = 2048
"""Numbers that a program computes: some heads of one row."""
_INT32, _FLOAT32 = (torch.int32,), (torch.float32,)


@triton.jit
def _inverse_of_all(heads, NUMBERS: tl.constexpr, TILE: tl.constexpr, eps):
    """Return 1 / sqrt(mean of squares + eps), [1, 1], over all query heads or all key heads of a row."""
    at = tl.arange(0, TILE)
    squares = tl.zeros([TILE], tl.float32)
    for start in range(0, NUMBERS, TILE):
        x = tl.load(heads + start + at, mask=start + at < NUMBERS, other=0.0).to(tl.float32)
        squares += x * x
    return inverse_root(tl.sum(squares[None, :], 1, keep_dims=True) / NUMBERS, eps)


@triton.jit
def _rotated_heads(
    heads, head, dim, row, positions, cos, sin, weight, eps,
    COUNT: tl.constexpr, D: tl.constexpr, R: tl.constexpr, TILE: tl.constexpr,
    NORM_AXIS: tl.constexpr, ROUNDS_ONCE: tl.constexpr,
):  # fmt: skip
    """Return chosen heads of a row, normed and rotated, in their dtype. `heads`: the address of COUNT heads; `head`:
    the indices of the chosen ones.
    """
    dtype: tl.constexpr = heads.dtype.element_ty
    within = (head < COUNT)[:, None] & (dim < D)[None, :]
    turns = (head < COUNT)[:, None] & (dim < R)[None, :]
    # Each number of the first half of the rotated dimensions is rotated together with one of the second half.
    partner = (dim + R // 2) % R if R > 0 else dim
    at, partner_at = head[:, None] * D + dim[None, :], head[:, None] * D + partner[None, :]
    x = tl.load(heads + at, mask=within, other=0.0).to(tl.float32)
    y = x
    if R > 0:
        y = tl.load(heads + partner_at, mask=turns, other=0.0).to(tl.float32)
    if NORM_AXIS == "head":
        inverse = inverse_root(tl.sum(x * x, 1, keep_dims=True) / D, eps)
        w = tl.load(weight + dim, mask=dim < D, other=0.0)[None, :].to(tl.float32)
        x = rms_weighted(x, inverse, w, ROUNDS_ONCE, dtype)
        if R > 0:
            w = tl.load(weight + partner, mask=dim < R, other=0.0)[None, :].to(tl.float32)
            y = rms_weighted(y, inverse, w, ROUNDS_ONCE, dtype)
    if NORM_AXIS == "all":
        inverse = _inverse_of_all(heads, COUNT * D, TILE, eps)
        w = tl.load(weight + at, mask=within, other=0.0).to(tl.float32)
        x = rms_weighted(x, inverse, w, ROUNDS_ONCE, dtype)
        if R > 0:
            w = tl.load(weight + partner_at, mask=turns, other=0.0).to(tl.float32)
            y = rms_weighted(y, inverse, w, ROUNDS_ONCE, dtype)
    if R > 0:
        position = tl.load(positions + row).to(tl.int64)
        c = tl.load(cos + position * R + dim, mask=dim < R, other=0.0)[None, :]
        s = tl.load(sin + position * R + dim, mask=dim < R, other=0.0)[None, :]
        x = tl.where(turns, rounded(x * c + y * s, dtype), x)
    return x.to(dtype)


@triton.jit
def rotate_and_store_kernel(
    qkv, q, keys, values, slots, positions, cos, sin, q_weight, k_weight, v_weight, q_eps, k_eps, v_eps,
    H: tl.constexpr, GATES: tl.constexpr, K: tl.constexpr, D: tl.constexpr, R: tl.constexpr, B: tl.constexpr,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
    Q_NORM_AXIS: tl.constexpr, K_NORM_AXIS: tl.constexpr, V_NORM_AXIS: tl.constexpr,
    Q_ROUNDS_ONCE: tl.constexpr, K_ROUNDS_ONCE: tl.constexpr, V_ROUNDS_ONCE: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Compute HEADS heads of one row: grid (T, parts). The first parts are queries, then keys, then values."""
    wait_for_kernels_ahead(DEPENDENT)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    head, dim = tl.arange(0, HEADS), tl.arange(0, WIDTH)
    heads = qkv + row * ((H + GATES + 2 * K) * D)
    q_parts: tl.constexpr = (H + HEADS - 1) // HEADS
    k_parts: tl.constexpr = (K + HEADS - 1) // HEADS
    if part < q_parts:
        if H > 0:
            head += part * HEADS
            x = _rotated_heads(
                heads, head, dim, row, positions, cos, sin, q_weight, q_eps,
                H, D, R, TILE, Q_NORM_AXIS, Q_ROUNDS_ONCE,
            )  # fmt: skip
            within = (head < H)[:, None] & (dim < D)[None, :]
            tl.store(q + row * (H * D) + head[:, None] * D + dim[None, :], x, mask=within)
    else:
        slot = tl.load(slots + row).to(tl.int64)
        if slot >= 0:
            block, place = slot // B, slot % B
            if part < q_parts + k_parts:
                head += (part - q_parts) * HEADS
                x = _rotated_heads(
                    heads + (H + GATES) * D, head, dim, row, positions, cos, sin, k_weight, k_eps,
                    K, D, R, TILE, K_NORM_AXIS, K_ROUNDS_ONCE,
                )  # fmt: skip
                within = (head < K)[:, None] & (dim < D)[None, :]
                at = ((block * K + head[:, None]) * B + place) * D + dim[None, :]
                tl.store(keys + at, x, mask=within)
            else:
                head += (part - q_parts - k_parts) * HEADS
                x = _rotated_heads(
                    heads + (H + GATES + K) * D, head, dim, row, positions, cos, sin, v_weight, v_eps,
                    K, D, 0, TILE, V_NORM_AXIS, V_ROUNDS_ONCE,
                )  # fmt: skip
                within = (head < K)[:, None] & (dim < D)[None, :]
                at = ((block * K + head[:, None]) * B + place) * D + dim[None, :]
                tl.store(values + at, x, mask=within)


def heads_of_program(num_heads: int, num_key_heads: int, dim: int) -> int:
    """Return the number of heads of a row that a program computes, for H, K and D."""
    most = triton.next_power_of_2(max(num_heads, num_key_heads))
    return max(1, min(int(most), TILE // int(triton.next_power_of_2(dim))))


def num_warps(heads: int, dim: int) -> int:
    """Return the warps of a program that computes `heads` heads of D numbers."""
    return max(1, min(4, heads * int(triton.next_power_of_2(dim)) // 256))


def rotate_and_store(
    qkv: Tensor,
    rotary_tables: tuple[Tensor, Tensor] | None,
    positions: Tensor | None,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    q_norm: NormWeights | None = None,
    k_norm: NormWeights | None = None,
    v_norm: NormWeights | None = None,
    num_gates: int = 0,
) -> Tensor:
    """Return the rotated queries [T, H, D], and write rotated keys and values to their places in the cache.

    qkv [T, H + num_gates + 2K, D]: query heads (or none), heads that are skipped, key heads, value heads. keys and
    values: [block, K, B, D], contiguous. rotary_tables: cos and sin [length, R], float32 (sin with the sign of the
    first half flipped), or None for no rotation; a row is rotated by their row at its position. positions and slots:
    [T], int32. A slot is block * B + the place in the block, and -1 writes nothing. Each position must be within the
    tables, also in rows with slot -1, and each slot within the cache: neither is checked.

    q_norm, k_norm and v_norm: RMSNorms over each head, with weights [D], or over all query, key or value heads of a row
    at once, with weights [H D] and [K D]. A norm is rounded to the dtype of qkv, and so is the rotation, which is
    computed in float32.

    Raises ValueError for shapes and dtypes that do not fit.
    """
    _check(qkv, rotary_tables, positions, slots, keys, values)
    num_rows, all_heads, dim = qkv.shape
    num_key_heads, block_size = keys.shape[1:3]
    num_heads = all_heads - num_gates - 2 * num_key_heads
    q = torch.empty(num_rows, num_heads, dim, dtype=qkv.dtype, device=qkv.device)
    heads = heads_of_program(num_heads, num_key_heads, dim)
    num_parts = triton.cdiv(num_heads, heads) + 2 * triton.cdiv(num_key_heads, heads)
    q_axis = _norm_axis("q_norm", q_norm, num_heads, dim, qkv.dtype)
    k_axis = _norm_axis("k_norm", k_norm, num_key_heads, dim, qkv.dtype)
    v_axis = _norm_axis("v_norm", v_norm, num_key_heads, dim, qkv.dtype)
    if num_rows == 0 or num_parts == 0:
        return q
    cos, sin = (None, None) if rotary_tables is None else map(aligned, rotary_tables)
    rotate_and_store_kernel[(num_rows, num_parts)](
        aligned(qkv), q if num_heads else None, keys, values, aligned(slots),
        None if cos is None or positions is None else aligned(positions), cos, sin,
        *(None if norm is None else aligned(norm.weight) for norm in (q_norm, k_norm, v_norm)),
        *(0.0 if norm is None else norm.eps for norm in (q_norm, k_norm, v_norm)),
        H=num_heads, GATES=num_gates, K=num_key_heads, D=dim, R=0 if cos is None else cos.shape[1], B=block_size,
        HEADS=heads, WIDTH=triton.next_power_of_2(dim), TILE=TILE,
        Q_NORM_AXIS=q_axis, K_NORM_AXIS=k_axis, V_NORM_AXIS=v_axis,
        Q_ROUNDS_ONCE=norm_step(q_norm, qkv.dtype) == "rms, rounded once",
        K_ROUNDS_ONCE=norm_step(k_norm, qkv.dtype) == "rms, rounded once",
        V_ROUNDS_ONCE=norm_step(v_norm, qkv.dtype) == "rms, rounded once",
        num_warps=num_warps(heads, dim),
        enable_fp_fusion=False,
        **launch_options(qkv.device),
    )  # fmt: skip
    return q


def store(kv: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> None:
    """Write keys and values of cross attention without rotation to their places in the cache.

    kv [E, 2K, D]: key heads, then value heads. slots, keys and values: as in `rotate_and_store`.

    Raises ValueError for shapes and dtypes that do not fit.
    """
    if kv.ndim == 3 and keys.ndim == 4 and kv.shape[1] > 2 * keys.shape[1]:
        raise ValueError(f"kv has {kv.shape[1]} heads; {2 * keys.shape[1]} are accepted")
    rotate_and_store(kv, None, None, slots, keys, values)


def _check(
    qkv: Tensor,
    rotary_tables: tuple[Tensor, Tensor] | None,
    positions: Tensor | None,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
) -> None:
    check_tensor("qkv", qkv, DTYPES, (None, None, None))
    num_rows, all_heads, dim = qkv.shape
    check_tensor("keys", keys, (qkv.dtype,), (None, None, None, dim))
    check_tensor("values", values, (qkv.dtype,), keys.shape)
    check_tensor("slots", slots, _INT32, (num_rows,))
    for name, cache in (("keys", keys), ("values", values)):
        if not cache.is_contiguous():
            raise ValueError(f"{name} has strides {cache.stride()}; a contiguous tensor is accepted")
    if all_heads < 2 * keys.shape[1]:
        raise ValueError(f"keys has {keys.shape[1]} heads; at most {all_heads // 2} are accepted")
    if positions is not None:
        check_tensor("positions", positions, _INT32, (num_rows,))
    if rotary_tables is not None:
        length, rotated = rotary_tables[0].shape
        for name, table in zip(("cos", "sin"), rotary_tables, strict=True):
            check_tensor(name, table, _FLOAT32, (length, rotated))
        if rotated % 2 or not 0 < rotated <= dim:
            raise ValueError(f"cos and sin rotate {rotated} dimensions; an even number up to {dim} is accepted")


def _norm_axis(name: str, norm: NormWeights | None, num_heads: int, dim: int, dtype: torch.dtype) -> str:
    """Return the axis of a norm: none, head or all (heads). Raises ValueError for a norm that does not fit."""
    if norm is None:
        return "none"
    if norm.is_centred:
        raise ValueError(f"{name} is a layernorm; rmsnorm is accepted")
    is_of_heads = norm.weight.numel() == dim
    check_norm(name, norm, dim if is_of_heads else num_heads * dim, dtype)
    return "head" if is_of_heads else "all"
