"""The exact maximum flow through a layered graph, for attention rollout: `cpu/flow.cpp`. The API process calls it, so
it never imports torch.

Axes: L layers of edges between L + 1 levels of n nodes.
"""

import ctypes

import numpy as np
import numpy.typing as npt

from lightwell.model.kernels.library import kernels


def maximum_flow(capacities: npt.NDArray[np.int32], source: int, target: int) -> int:
    """Return the maximum flow from node `source` of the highest level to node `target` of level 0.

    capacities [L, n, n]: [l, i, j] from node i of level l + 1 to node j of level l, at least 0. The computation
    releases Python's lock, so that the server can answer other requests.
    """
    num_layers, n = capacities.shape[:2] if capacities.ndim == 3 else (0, 0)
    if capacities.dtype != np.int32 or num_layers < 1 or n < 1 or capacities.shape[2] != n:
        found = f"{capacities.dtype} {list(capacities.shape)}"
        raise ValueError(f"capacities is {found}; int32 [L, n, n] is accepted, of at least 1 layer and 1 node")
    if capacities.min() < 0:
        raise ValueError(f"capacities contains {capacities.min()}; 0 and above are accepted")
    for name, node in (("source", source), ("target", target)):
        if not 0 <= node < n:
            raise ValueError(f"{name} is {node}; 0 to {n - 1} is accepted")
    capacities = np.ascontiguousarray(capacities)
    room = np.empty(((num_layers + 1) * n, 2 * n), np.int32)
    nodes = np.empty((3, (num_layers + 1) * n), np.int32)
    total = ctypes.c_int64()
    pointers = room.ctypes.data, nodes.ctypes.data, ctypes.byref(total)
    kernels().call("maximum_flow", "pllllppp", capacities.ctypes.data, num_layers, n, source, target, *pointers)
    return total.value
