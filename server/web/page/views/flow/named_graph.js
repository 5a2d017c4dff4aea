// A block's graph with the server's name of each tensor. The Flow view draws it; the Journey reads its numbers.
import { NORMS } from "./bands.js";
import { bareName, blockBands, endNodes, pointsOf } from "./graph.js";

/** {bands, ends, numLayers}; each node has its point, its name in requests, and the name of its norm's scale. */
export function graphOf(capabilities, stackName, layer, numLayers) {
  const stack = capabilities.stacks[stackName];
  const points = pointsOf(capabilities, stackName, layer);
  const onWire = (point, at) => point.name.replace("{layer}", at);
  const named = (node) => {
    if (node.full) return node;
    const scale = points.get(node.id.replace("hook_out", "hook_scale"));
    return {
      ...node,
      point: points.get(node.id),
      full: onWire(points.get(node.id), layer),
      scale: node.id.endsWith("hook_out") ? onWire(scale, layer) : null,
    };
  };
  const bands = blockBands(stack, points, layer, stack.cross_attention ? encoderOutput(capabilities, onWire) : null);
  return {
    bands: bands.map((band) => ({ ...band, nodes: band.nodes.map(named) })),
    ends: endNodes(stack, points).map((nodes) => nodes.map(named)),
    numLayers,
  };
}

/**
 * The encoder's output for the decoder: the residual stream after its last block, with the final norm if it has one.
 */
function encoderOutput(capabilities, onWire) {
  const last = capabilities.stacks.encoder.num_layers - 1;
  const own = pointsOf(capabilities, "encoder", last);
  const point = own.get("ln_final.hook_out") ?? own.get("hook_resid_post");
  const isState = bareName(point) === "hook_resid_post";
  return {
    id: "encoder", title: "encoder out", tone: "key", point, full: onWire(point, last), scale: null, isEncoderOutput: true,
    how: [isState ? `after its block ${last}` : `${NORMS[capabilities.stacks.encoder.norm]}(x)`],
    about: "The encoder's output: the decoder's keys and values are computed from it.",
  };
}
