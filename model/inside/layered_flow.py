"""Maximum flow through a graph of layers, compiled by numba. Knows integers; nothing of attention.

Dinic's algorithm (Dinic 1970, "Algorithm for solution of a problem of maximum flow in a network with power
estimation"): as long as there is a way with room, find how far each node is from the source, and fill the shortest ways
until none is left. It runs without Python's lock, so that a server goes on answering meanwhile.

Axes: L layers of edges between L + 1 levels of n nodes; node v of level l is number l n + v. Edges lead down, from node
i of level l + 1 to node j of level l; what flows along one may be sent back up.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# (numba infers the types of compiled functions; annotations would say nothing that it checks)

import numba
import numpy as np


@numba.njit(nogil=True, cache=True, error_model="numpy")
def maximum_flow(capacities, source, target):
    """The most that can flow from node `source` of the highest level to node `target` of level 0.

    capacities [L, n, n] int32, [l, i, j] from i above to j below; those of one node sum to less than 2^31.
    """
    num_layers, n, _ = capacities.shape
    source += num_layers * n
    room = np.zeros((num_layers + 1, n, 2 * n), np.int32)  # what the n edges down and the n up still take
    for level in range(num_layers):
        for i in range(n):
            for j in range(n):
                room[level + 1, i, j] = capacities[level, i, j]
    total = 0
    while True:
        distance = _distances(room, source, target)
        if distance[target] < 0:
            return total
        first = np.zeros(len(distance), np.int32)
        while True:
            flow = _fill_a_way(room, distance, first, source, target)
            if flow == 0:
                break
            total += flow


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _across(node, edge, n):
    """The node at the other end of an edge."""
    return (node // n - 1) * n + edge if edge < n else (node // n) * n + edge


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _distances(room, source, target):
    """Edges with room from the source to each node, [(L + 1) n]; -1 for nodes that are no nearer than the target."""
    num_levels, n, num_edges = room.shape
    distance = np.full(num_levels * n, -1, np.int32)
    queue = np.empty(num_levels * n, np.int32)
    distance[source], queue[0] = 0, source
    head, tail = 0, 1
    while head < tail and distance[target] < 0:
        node = queue[head]
        head += 1
        for edge in range(num_edges):
            if room[node // n, node % n, edge] > 0:
                other = _across(node, edge, n)
                if distance[other] < 0:
                    distance[other] = distance[node] + 1
                    queue[tail] = other
                    tail += 1
    return distance


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _fill_a_way(room, distance, first, source, target):
    """Send through one shortest way what it takes; 0 when there is none left.

    first [(L + 1) n]: the edge that each node tries next; those before it lead nowhere any more.
    """
    _, n, num_edges = room.shape
    way = np.empty(distance[target] + 1, np.int32)
    node, length = source, 0
    while node != target:
        way[length] = node
        edge = first[node]
        while edge < num_edges and not (
            room[node // n, node % n, edge] > 0 and distance[_across(node, edge, n)] == distance[node] + 1
        ):
            edge += 1
        first[node] = edge
        if edge < num_edges:
            node = _across(node, edge, n)
            length += 1
        elif node == source:
            return 0
        else:  # a dead end: the node before tries its next edge
            length -= 1
            node = way[length]
            first[node] += 1
    flow = np.int64(1) << 31
    for node in way[:length]:
        flow = min(flow, room[node // n, node % n, first[node]])
    for node in way[:length]:
        edge = first[node]
        other = _across(node, edge, n)
        back = node % n + n if edge < n else node % n
        room[node // n, node % n, edge] -= flow
        room[other // n, other % n, back] += flow
    return flow
