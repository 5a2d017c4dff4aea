"""Gathers, adds up and normalises rows of tables. A row's bits depend on its token and position alone.

Axes: T rows, d model width, N blocks of 64 rows of a table.
"""

import torch
from torch import Tensor

from model.kernels.checks import SUFFIXES, check_axes, check_indices, check_numbers, check_tensor
from model.kernels.library import kernels

BLOCK = 64
"""Rows of a table that are stored side by side."""
_INT64 = (torch.int64,)
_GATHER = {
    (torch.float32, torch.float32): "gather_rows_f32",
    (torch.bfloat16, torch.bfloat16): "gather_rows_bf16",
    (torch.bfloat16, torch.float32): "gather_rows_bf16_to_f32",
}
"""The kernel for a table's dtype and the rows' dtype."""


def gather_rows(table: Tensor, ids: Tensor, *, num_rows: int, width: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return rows `ids` [T] int64 of a table [num_rows, width] that is stored in blocks: [T, width].

    table: float32 [N, width, 64], or bfloat16 [N, half of width rounded up, 64, 2]; N blocks hold num_rows rows. dtype:
    that of the table, the default, or float32.
    """
    kernel = _GATHER.get((table.dtype, dtype or table.dtype))
    if kernel is None:
        accepted = ", ".join(f"{of} as {rows}" for of, rows in _GATHER)
        raise ValueError(f"table is {table.dtype}, and its rows are requested as {dtype}; {accepted} is accepted")
    num_blocks = -(-num_rows // BLOCK)
    shape = (num_blocks, width, BLOCK) if table.dtype == torch.float32 else (num_blocks, -(-width // 2), BLOCK, 2)
    check_tensor("table", table, SUFFIXES, shape)
    check_axes("ids", ids, _INT64, 1)
    check_indices("ids", ids, num_rows)
    count = ids.shape[0]
    out = torch.empty(count, width, dtype=dtype or table.dtype)
    kernels().call(kernel, "ppllp", table.data_ptr(), ids.data_ptr(), count, width, out.data_ptr())
    return out


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

    ids, types and places [T], int64; types None are all 0; tokens [vocab, d]; token_types [types, d]; positions
    [context, d]; weight and bias [d] of the norm. A table or a bias that is None adds nothing. Each sum is rounded to
    the dtype, which all share.
    """
    kind = check_numbers("tokens", tokens, 2)
    vocab, width = tokens.shape
    own, row = (tokens.dtype,), (width,)
    check_axes("ids", ids, _INT64, 1)
    check_indices("ids", ids, vocab)
    types_address = types_table = places_address = positions_address = bias_address = None
    if token_types is not None:
        check_tensor("token_types", token_types, own, (num_types := token_types.shape[0], width))
        types_table = token_types.data_ptr()
        if types is not None:
            check_tensor("types", types, _INT64, ids.shape)
            check_indices("types", types, num_types)
            types_address = types.data_ptr()
    if positions is not None:
        check_tensor("positions", positions, own, (context := positions.shape[0], width))
        check_tensor("places", places, _INT64, ids.shape)
        check_indices("places", places, context)
        places_address, positions_address = places.data_ptr(), positions.data_ptr()
    check_tensor("weight", weight, own, row)
    if bias is not None:
        check_tensor("bias", bias, own, row)
        bias_address = bias.data_ptr()
    num_rows = ids.shape[0]
    out = tokens.new_empty(num_rows, width)
    kernels().call(
        f"embed_{kind}",
        "pppppppppllf",
        ids.data_ptr(), types_address, places_address, tokens.data_ptr(), types_table, positions_address,
        weight.data_ptr(), bias_address, out.data_ptr(), num_rows, width, eps,
    )  # fmt: skip
    return out
