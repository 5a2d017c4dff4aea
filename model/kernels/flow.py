"""Computes the maximum flow through a graph of layers, exactly: `cpu/flow.cpp`. It needs no torch, as the API process
has none.

Axes: L layers of edges between L + 1 levels of n nodes.
"""

import ctypes

import numpy as np
import numpy.typing as npt

from model.kernels.library import kernels


def maximum_flow(capacities: npt.NDArray[np.int32], source: int, target: int) -> int:
    """Return the most that can flow from node `source` of the highest level to node `target` of level 0.

    capacities [L, n, n]: [l, i, j] from node i of level l + 1 to node j of level l, at least 0. It runs without
    Python's lock, so that a server keeps answering meanwhile.
    """
    num_layers, n = capacities.shape[:2] if capacities.ndim == 3 else (0, 0)
    if capacities.dtype != np.int32 or num_layers < 1 or n < 1 or capacities.shape[2] != n:
        found = f"{capacities.dtype} {list(capacities.shape)}"
        raise ValueError(f"capacities is {found}; int32 [L, n, n] is accepted, of at least 1 layer and 1 node")
    if capacities.min() < 0:
        raise ValueError(f"capacities holds {capacities.min()}; 0 and more is accepted")
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
