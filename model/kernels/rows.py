"""Small steps between matrix products, row by row: embeddings, norms, gates, soft caps, rotation and writing to the
cache, and the largest number of a row.

The bits of a row depend only on the row, at every level of CPU and on any number of threads. Arithmetic is float32,
rounded to nearest even where a result is stored.

Axes: T rows, d model width, H query heads, K key heads, D head dimension, R rotated dimensions, B keys to a block.
"""

import torch
from torch import Tensor

from lightwell.model.kernels.checks import (
    ACTIVATIONS,
    KernelActivation,
    address_of,
    check_activation,
    check_axes,
    check_indices,
    check_numbers,
    check_tensor,
)
from lightwell.model.kernels.library import kernels

_FLOAT32, _INT64 = (torch.float32,), (torch.int64,)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight of each row: x [T, d], weight [d] -> [T, d].

    If weight has the dtype of x, the quotient is rounded to it before the product. Otherwise weight is float32, and
    only the product is rounded.
    """
    kind = check_numbers("x", x, 2)
    num_rows, width = x.shape
    check_tensor("weight", weight, (x.dtype, torch.float32), (width,))
    name = "rms_norm_" if weight.dtype == x.dtype else "rms_norm_rounded_once_"
    out = torch.empty_like(x)
    kernels().call(name + kind, "pppllf", x.data_ptr(), weight.data_ptr(), out.data_ptr(), num_rows, width, eps)
    return out


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Return (x - mean(x)) / sqrt(var(x) + eps) * weight + bias of each row: x [T, d] -> [T, d].

    weight and bias [d] have the dtype of x; None is a bias of zeros.
    """
    kind = check_numbers("x", x, 2)
    num_rows, width = x.shape
    check_tensor("weight", weight, (x.dtype,), (width,))
    bias_address = address_of("bias", bias, (x.dtype,), (width,))
    out = torch.empty_like(x)
    kernels().call(
        f"layer_norm_{kind}",
        "ppppllf",
        x.data_ptr(), weight.data_ptr(), bias_address, out.data_ptr(), num_rows, width, eps,
    )  # fmt: skip
    return out


def activate_times(gate_up: Tensor, activation: KernelActivation) -> Tensor:
    """Return activation(gate) * up [T, ff] of gate_up [T, 2 ff], which contains gate, then up. The activation is
    rounded to the dtype before the product.
    """
    kind = check_numbers("gate_up", gate_up, 2)
    num_rows, both = gate_up.shape
    if both % 2:
        raise ValueError(f"gate_up has rows of {both}; an even number is accepted")
    check_activation(activation)
    out = gate_up.new_empty(num_rows, both // 2)
    addresses = gate_up.data_ptr(), out.data_ptr()
    kernels().call(f"activate_times_{kind}", "pplll", *addresses, num_rows, both // 2, ACTIVATIONS[activation])
    return out


def drop_small(x: Tensor, deviations: float) -> None:
    """Replace x [T, width] by relu(x - mean - deviations * standard deviation) of each row, in place."""
    kind = check_numbers("x", x, 2)
    kernels().call(f"drop_small_{kind}", "pllf", x.data_ptr(), *x.shape, deviations)


def soft_cap(x: Tensor, cap: float) -> None:
    """Replace x, float32 [T, width], by cap * tanh(x / cap), in place."""
    check_axes("x", x, _FLOAT32, 2)
    kernels().call("soft_cap_f32", "pllf", x.data_ptr(), *x.shape, cap)


def cos_sin(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of angles, float32 below 2^30, in their shape. The bits are equal on every machine."""
    check_axes("angles", angles, _FLOAT32, angles.ndim)
    cos, sin = torch.empty_like(angles), torch.empty_like(angles)
    kernels().call("cos_sin_f32", "pppl", angles.data_ptr(), cos.data_ptr(), sin.data_ptr(), angles.numel())
    return cos, sin


def rotate_and_store(
    qkv: Tensor, rotary_tables: tuple[Tensor, Tensor] | None, slots: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """Rotate queries and keys by their positions, and write keys and values to their places in the cache.

    qkv [T, H + 2K, D]: query heads, key heads, value heads. rotary_tables: cos and sin [T, R], float32 (sin with the
    sign of the first half flipped), which rotate the first R <= D dimensions, or None for no rotation. slots [T] int64:
    block * B + the place in the block. keys [block, K, D, B] and values [block, K, B, D], of the dtype of qkv, are
    written.

    Returns the queries [T, H, D], float32.
    """
    kind = check_numbers("qkv", qkv, 3)
    num_rows, all_heads, dim = qkv.shape
    check_axes("keys", keys, (qkv.dtype,), 4)
    num_blocks, num_key_heads, _, size = keys.shape
    num_heads = all_heads - 2 * num_key_heads
    if num_heads < 0 or keys.shape[2] != dim:
        accepted = f"at most {all_heads // 2} heads of {dim} dimensions"
        raise ValueError(f"keys is {list(keys.shape)}, qkv {list(qkv.shape)}; {accepted} are accepted in keys")
    check_tensor("values", values, (qkv.dtype,), (num_blocks, num_key_heads, size, dim))
    check_tensor("slots", slots, _INT64, (num_rows,))
    check_indices("slots", slots, num_blocks * size)
    cos, sin, num_rotated = None, None, 0
    if rotary_tables is not None:
        num_rotated = rotary_tables[0].shape[-1]
        for name, table in zip(("cos", "sin"), rotary_tables, strict=True):
            check_tensor(name, table, _FLOAT32, (num_rows, num_rotated))
        if num_rotated % 2 or num_rotated > dim:
            raise ValueError(f"cos and sin rotate {num_rotated} dimensions; an even number up to {dim} is accepted")
        cos, sin = rotary_tables[0].data_ptr(), rotary_tables[1].data_ptr()
    q = torch.empty(num_rows, num_heads, dim)
    kernels().call(
        f"rotate_and_store_{kind}",
        "ppplplllllppp",
        qkv.data_ptr(), cos, sin, num_rotated, slots.data_ptr(), num_rows, num_heads, num_key_heads, dim, size,
        q.data_ptr(), keys.data_ptr(), values.data_ptr(),
    )  # fmt: skip
    return q


def argmax(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first index of the largest number in each row of x [T, V], [T] int64, and that number, [T] float32.

    In a row with NaNs it is the first NaN.
    """
    kind = check_numbers("x", x, 2)
    num_rows, width = x.shape
    if width == 0:
        raise ValueError("x has rows of 0 numbers; at least 1 is accepted")
    places, numbers = torch.empty(num_rows, dtype=torch.int64), torch.empty(num_rows)
    kernels().call(f"argmax_{kind}", "pllpp", x.data_ptr(), num_rows, width, places.data_ptr(), numbers.data_ptr())
    return places, numbers


def embed(
    ids: Tensor,
    types: Tensor | None,
    places: Tensor,
    tokens: Tensor,
    token_types: Tensor | None,
    positions: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Return the layer norm of the rows `ids` of tokens + the rows `types` of token_types + the rows `places` of
    positions: [T, d].

    ids, types and places [T], int64; without types all of them are 0. tokens [vocab, d]; token_types [types, d];
    positions [context, d]; weight and bias [d] of the norm. A table or a bias that is None adds nothing. All tensors
    have one dtype, and each sum is rounded to it.
    """
    kind = check_numbers("tokens", tokens, 2)
    vocab, width = tokens.shape
    own, row = (tokens.dtype,), (width,)
    check_axes("ids", ids, _INT64, 1)
    check_indices("ids", ids, vocab)
    types_table, types_address = _table("token_types", token_types, "types", types, tokens, ids)
    positions_table, places_address = _table("positions", positions, "places", places, tokens, ids)
    check_tensor("weight", weight, own, row)
    bias_address = address_of("bias", bias, own, row)
    num_rows = ids.shape[0]
    out = tokens.new_empty(num_rows, width)
    kernels().call(
        f"embed_{kind}",
        "pppppppppllf",
        ids.data_ptr(), types_address, places_address, tokens.data_ptr(), types_table, positions_table,
        weight.data_ptr(), bias_address, out.data_ptr(), num_rows, width, eps,
    )  # fmt: skip
    return out


def _table(
    name: str, table: Tensor | None, ids_name: str, ids: Tensor | None, tokens: Tensor, token_ids: Tensor
) -> tuple[int | None, int | None]:
    """Check an optional table and the optional ids of its rows, one for each token. Return their addresses."""
    if table is None:
        return None, None
    check_tensor(name, table, (tokens.dtype,), (len(table), tokens.shape[1]))
    if ids is None:
        return table.data_ptr(), None
    check_tensor(ids_name, ids, _INT64, token_ids.shape)
    check_indices(ids_name, ids, len(table))
    return table.data_ptr(), ids.data_ptr()
