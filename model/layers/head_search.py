"""Where the rows of a product are largest, without the product: what a greedy step wants of the head.

Knows which weights compiled kernels can search; refuses to know what the columns mean.

Axes: rows, in, out.
"""

import numpy as np
import torch

from model.layers.arrays import bits
from model.layers.linear import Linear

_MOST_COLUMNS = 1 << 24
"""Among which the kernels tell one from another."""


def largest_columns(linear: Linear, x: torch.Tensor) -> tuple[list[int], list[float]] | None:
    """Where the largest number of each row of linear(x) first stands, and that number: what a search of it finds.

    x [rows, in]. None where no kernel can tell, or a number is not finite: the product itself is then to be searched.
    """
    weight = linear.narrow or linear.few_rows
    if weight is None or linear.bias is not None or linear.activation is not None:
        return None
    from model.layers import head_kernels as kernels
    from model.layers.few_rows_kernels import MOST_ROWS

    if len(x) > MOST_ROWS or weight.inputs > x.shape[1] or weight.outputs > _MOST_COLUMNS:
        return None
    threads = torch.get_num_threads()
    find = kernels.find_largest_here if threads == 1 else kernels.find_largest_shared
    chain = kernels.NARROW if linear.few_rows is None else linear.few_rows.chain
    finite, places, numbers = np.empty(threads, np.bool_), np.empty(len(x), np.int64), np.empty(len(x), np.float32)
    if not find(bits(x.contiguous()), weight.address, chain, weight.outputs, finite, places, numbers):
        return None
    return places.tolist(), numbers.tolist()
