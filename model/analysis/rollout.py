"""Attention through all layers: rollout and flow (Abnar and Zuidema 2020, arXiv:2005.00928); without torch.

Both read the heads' mean pattern A of each layer together with the residual connection, half and half: Abar = A + I
with rows scaled to sum to 1. Rollout multiplies them. Flow is on a graph: a node for each position before and after
every layer, an edge of capacity Abar[i, j] from i above to j below; a word's number is its maximum flow.

Axes: L layers, n positions.
"""

from collections.abc import Callable, Iterator

import numpy as np

from lightwell.model.analysis.arrays import Float64, Floats
from lightwell.model.kernels.flow import maximum_flow

_UNIT = 1 << 30
"""Capacities are whole multiples of 1/_UNIT for the solver. A node gives at most 1, so a flow is under 2^31."""


def with_residual(patterns: Floats) -> Float64:
    """Return Abar of mean patterns, [n, n] or [L, n, n]."""
    mixed = patterns.astype(np.float64) + np.eye(patterns.shape[-1])
    scaled: Float64 = mixed / mixed.sum(-1, keepdims=True)
    return scaled


def rollout(patterns: Floats) -> Iterator[Float64]:
    """Yield R_l = Abar_l R_(l-1) [n, n] of each layer: the share of position i that comes from input j; rows sum to 1.

    Only two layers are in memory at a time.
    """
    result: Float64 | None = None
    for pattern in patterns:
        mixed = with_residual(pattern)
        result = mixed if result is None else mixed @ result
        yield result


def flow(patterns: Floats, query: int, check: Callable[[], None] = lambda: None) -> Float64:
    """Return the maximum flow from position `query` above the last layer to each input, [n].

    `check` is called before each input; an exception that it raises ends the work. Each input has a maximum flow of its
    own (by Dinic's algorithm; the paper uses Edmonds and Karp's, with the same result), so they sum to more than 1.

    Raises RuntimeError where there are no compiled kernels.
    """
    capacities = np.rint(with_residual(patterns) * _UNIT).astype(np.int32)
    flows = []
    for j in range(capacities.shape[-1]):
        check()
        flows.append(maximum_flow(capacities, query, j))
    return np.array(flows) / _UNIT
