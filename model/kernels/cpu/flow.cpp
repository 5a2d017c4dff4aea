// Maximum flow through a layered graph by Dinic's algorithm (Dinic 1970, "Algorithm for solution of a problem of
// maximum flow in a network with power estimation"): while there is a path with room, find the distance of each node
// from the source, and fill the shortest paths until none is left. Integers, so every answer is exact.
//
// Axes: L layers of edges between L + 1 levels of n nodes; node v of level l is number l n + v. Edges lead down, from
// node i of level l + 1 to node j of level l; flow along an edge may be sent back up.
#include <stdint.h>

#include "level.h"

namespace LEVEL {
namespace {

struct Graph {
  long n, num_nodes, source, target;
  int32_t* room;      // [num_nodes, 2 n]: room of the n edges down and the n edges up of each node
  int32_t* distance;  // [num_nodes]: edges with room from the source; -1 where the node is no nearer than the target
  int32_t* first;     // [num_nodes]: the edge that each node tries next; earlier edges lead to no path
  int32_t* nodes;     // [num_nodes]: a queue, or the nodes of a path

  long num_edges() const { return 2 * n; }
  int32_t& room_of(long node, long edge) const { return room[node * 2 * n + edge]; }
  // The node at the other end of an edge.
  long across(long node, long edge) const { return edge < n ? (node / n - 1) * n + edge : node / n * n + edge; }
};

// Measure the nodes' distances from the source; whether the target can be reached.
bool measure(const Graph& g) {
  for (long node = 0; node < g.num_nodes; ++node) g.distance[node] = -1;
  g.distance[g.source] = 0;
  g.nodes[0] = int32_t(g.source);
  for (long head = 0, tail = 1; head < tail && g.distance[g.target] < 0; ++head) {
    const long node = g.nodes[head];
    for (long edge = 0; edge < g.num_edges(); ++edge) {
      if (g.room_of(node, edge) <= 0) continue;
      const long other = g.across(node, edge);
      if (g.distance[other] >= 0) continue;
      g.distance[other] = g.distance[node] + 1;
      g.nodes[tail++] = int32_t(other);
    }
  }
  return g.distance[g.target] >= 0;
}

// Fill one shortest path and return its flow; 0 if there is no path.
int32_t fill_path(const Graph& g) {
  long node = g.source, length = 0;
  while (node != g.target) {
    g.nodes[length] = int32_t(node);
    long edge = g.first[node];
    while (edge < g.num_edges() &&
           !(g.room_of(node, edge) > 0 && g.distance[g.across(node, edge)] == g.distance[node] + 1))
      ++edge;
    g.first[node] = int32_t(edge);
    if (edge < g.num_edges()) {
      node = g.across(node, edge);
      ++length;
    } else if (node == g.source) {
      return 0;
    } else {  // a dead end: the node before tries its next edge
      node = g.nodes[--length];
      ++g.first[node];
    }
  }
  int32_t flow = INT32_MAX;
  for (long i = 0; i < length; ++i) {
    const int32_t room = g.room_of(g.nodes[i], g.first[g.nodes[i]]);
    flow = room < flow ? room : flow;
  }
  for (long i = 0; i < length; ++i) {
    const long from = g.nodes[i], edge = g.first[from], to = g.across(from, edge);
    g.room_of(from, edge) -= flow;
    g.room_of(to, edge < g.n ? from % g.n + g.n : from % g.n) += flow;
  }
  return flow;
}

int64_t maximum_flow(const int32_t* capacities, const Graph& g) {
  const long num_layers = g.num_nodes / g.n - 1;
  for (long i = 0; i < g.num_nodes * g.num_edges(); ++i) g.room[i] = 0;
  for (long i = 0; i < num_layers * g.n; ++i)  // row i of all layers is of node n + i
    for (long j = 0; j < g.n; ++j) g.room_of(g.n + i, j) = capacities[i * g.n + j];
  int64_t total = 0;
  while (measure(g)) {
    for (long node = 0; node < g.num_nodes; ++node) g.first[node] = 0;
    while (const int32_t flow = fill_path(g)) total += flow;
  }
  return total;
}

}  // namespace
}  // namespace LEVEL

// total = the most that can flow from node `source` of the highest level to node `target` of level 0.
// capacities [num_layers, n, n], [l, i, j] from i above to j below, at least 0; there is a layer at least.
// room [(num_layers + 1) n, 2 n], nodes [3, (num_layers + 1) n]: memory to work in.
EXPORT(void, maximum_flow)(const int32_t* capacities, long num_layers, long n, long source, long target, int32_t* room,
                           int32_t* nodes, int64_t* total) {
  const long num_nodes = (num_layers + 1) * n;
  *total = LEVEL::maximum_flow(capacities, {n, num_nodes, num_layers * n + source, target, room, nodes,
                                            nodes + num_nodes, nodes + 2 * num_nodes});
}
