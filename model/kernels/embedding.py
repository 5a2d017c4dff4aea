"""Gathers, adds and normalises rows of tables. A row's bits depend only on its token and position.

Axes: T rows, d model width, N blocks of 64 rows of a table.
"""

import torch
from torch import Tensor

from model.kernels.checks import SUFFIXES, address_of, check_axes, check_indices, check_numbers, check_tensor
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
