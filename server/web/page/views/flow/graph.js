// One block as a graph of tensors, built from the capabilities. A band is a row of the picture: the residual stream along its
// top, and a sublayer's computation below it. A node is a tensor; id: the point's name without stack and layer; row -1 is the
// stream. A wire is [from, to, tone]; adds: ids of the tensors added to the stream. Flow draws it, Journey reads its numbers.
import { stackAt } from "../../core/model.js";
import {
  NORMS, attentionBand, mlpBand, nodesOfStack, perLayerBand, placing, recurrenceBand, streamsBand, withLaurel,
} from "./bands.js";

const STREAM = -1;

const bareName = (point) => point.name.replace(/^(encoder|decoder)\./, "").replace("blocks.{layer}.", "");

/** By their bare names, only those of this layer. */
export function pointsOf(capabilities, stackName, layer) {
  const own = capabilities.points.filter((point) => point.stack === stackName);
  const here = own.filter((point) => !point.name.includes("{layer}") || point.layers.includes(layer));
  return new Map(here.map((point) => [bareName(point), point]));
}

/** Of several streams the first is shown. */
function bandsOfStreams(stack, points, window, stream) {
  const [pre, seen] = [stream("hook_resid_pre"), stream("hook_predicted", "x + of all streams")];
  const mid = stream("hook_resid_mid", "(x + attention + around) / √2");
  const midMlp = stream("hook_resid_mid_mlp", "x + mlp");
  const post = stream("hook_resid_post", "x seen, corrected by x mlp");
  return [
    streamsBand({ start: pre, end: seen }),
    withLaurel(attentionBand(stack, points, window, { encoderOutput: null, start: seen, end: mid }), stack, points),
    mlpBand(stack, points, { start: mid, end: midMlp, isParallel: false }),
    { ...perLayerBand(stack, { start: midMlp, end: post }), adds: [], title: "Of the tokens: added to the other streams" },
  ];
}

/** encoderOutput: a node, for the cross-attention of a decoder that has one; else null. */
function blockBands(whole, points, layer, encoderOutput) {
  const stack = stackAt(whole, layer);
  const node = nodesOfStack(stack);
  const window = stack.sliding_windows?.[layer] ?? null;
  const { norm, isOfSum } = placing(stack);
  const stream = (id, ...how) => node(id, 0, STREAM, how);
  const then = isOfSum && `then ${norm}`;
  if (stack.altup) return bandsOfStreams(stack, points, window, stream);
  const pre = stream("hook_resid_pre");
  const itself = { encoderOutput: null };
  if (stack.parallel_blocks) {
    const post = stream("hook_resid_post", "x + attention + mlp");
    return [
      attentionBand(stack, points, window, { ...itself, start: pre, end: null }),
      mlpBand(stack, points, { start: pre, end: post, isParallel: true }),
    ];
  }
  const mid = stream("hook_resid_mid", "x + attention", then);
  const midCross = stream("hook_resid_mid_cross", "x + cross", then);
  const isLast = !points.has("hook_per_layer_out");
  const times = stack.stream_scales && "× the layer's number";
  const midMlp = stream("hook_resid_mid_mlp", "x + mlp");
  const post = stream("hook_resid_post", isLast ? "x + mlp" : "x + let through", then, times);
  const across = encoderOutput && attentionBand(stack, points, null, { encoderOutput, start: mid, end: midCross });
  return [
    points.has("attn.hook_q")
      ? attentionBand(stack, points, window, { ...itself, start: pre, end: mid })
      : recurrenceBand(stack, points, { start: pre, end: mid }),
    ...(across ? [across] : []),
    mlpBand(stack, points, { start: across ? midCross : mid, end: isLast ? post : midMlp, isParallel: false }),
    ...(isLast ? [] : [perLayerBand(stack, { start: midMlp, end: post })]),
  ];
}

function endNodes(stack, points) {
  const node = nodesOfStack(stack);
  const norm = NORMS[stack.norm];
  const before = [
    node("hook_embed", 0, 0, ["W_E[token]"]),
    node("hook_pos_embed", 0, 0, [stack.positions.includes("learned") ? "a learned vector" : "sines"]),
    node("hook_token_type_embed", 0, 0, ["one for all"]),
    node("embed_norm.hook_out", 0, 0, [norm]),
  ];
  const behind = [node("ln_final.hook_out", 0, 0, [`${norm}(x)`]), node("logits", 0, 0, ["x · W_U"])];
  return [before, behind].map((nodes) => nodes.filter(({ id }) => points.has(id)));
}

/** Each node gets its point, its name in requests, and the name of its norm's scale. */
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

/** The residual stream after the encoder's last block, with the final norm if it has one. */
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
