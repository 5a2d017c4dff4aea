// The bands of a block: the computation of each sublayer as nodes and wires (see graph.js).
import { hasPositionBias } from "../../core/model.js";
import { format, grouped } from "../../core/numbers.js";
import { wordsOf } from "./words.js";

export const NORMS = { rmsnorm: "RMSNorm", layernorm: "LayerNorm" };

export function placing(stack) {
  const placement = stack.norm_placement;
  return {
    norm: NORMS[stack.norm],
    isBefore: placement === "pre" || placement === "sandwich",
    isAfter: placement === "sandwich" || placement === "output",
    isOfSum: placement === "post",
  };
}

const factor = (stack) => stack.residual_scale !== 1 && `× ${format(stack.residual_scale, 4)}`;

function turning(stack, isCross) {
  if (isCross) return [];
  return [stack.qk_norm && "normed", stack.positions.includes("rotary") && "rotated"].filter(Boolean);
}

function scoreSteps(stack, window, isCross) {
  return [
    stack.attention_scale === 1 ? "q·k" : `q·k × ${format(stack.attention_scale, 4)}`,
    stack.attn_logit_softcap && `cap ${format(stack.attn_logit_softcap, 4)}`,
    hasPositionBias(stack) && !isCross && "+ position bias",
    stack.causal && !isCross && "mask: causal",
    window && `window: ${grouped(window)}`,
  ].filter(Boolean);
}

export const nodesOfStack = (stack) => (id, column, row, how) => ({
  id,
  column,
  row,
  how: how.filter(Boolean),
  ...wordsOf(id, stack),
});

/** From the inputs of an attention to its output. from: the ids of the sources of q and of k and v, and whether q's is a norm. */
function attentionBody({ stack, isCross, from, window }) {
  const node = nodesOfStack(stack);
  const { isAfter, norm } = placing(stack);
  const at = (name) => `${isCross ? "cross_attn" : "attn"}.${name}`;
  const out = isCross ? "hook_cross_attn_out" : "hook_attn_out";
  const own = from.isNormed ? "n" : "x";
  const source = isCross ? "encoder" : own;
  const turn = turning(stack, isCross);
  const turned = (letter) => turn.map((step, i) => (i === 0 ? `${letter} ${step}` : step));
  const isTurned = turn.length > 0;
  const [q, k] = isTurned ? [at("hook_rot_q"), at("hook_rot_k")] : [at("hook_q"), at("hook_k")];
  const next = isTurned ? 3 : 2; // the column after q and k
  const nodes = [
    node(at("hook_q"), 1, 0, [`${own} · W_Q`]),
    node(at("hook_k"), 1, 1, [`${source} · W_K`]),
    node(at("hook_v"), 1, 2, [`${source} · W_V`]),
    ...(isTurned ? [node(q, 2, 0, turned("q")), node(k, 2, 1, turned("k"))] : []),
    node(at("hook_attn_scores"), next, 0.5, scoreSteps(stack, window, isCross)),
    node(at("hook_pattern"), next + 1, 0.5, ["softmax by row"]),
    node(at("hook_z"), next + 2, 1, ["Σ pattern · v"]),
    node(at("hook_result"), next + 3, 1, [stack.attention_gate && !isCross && "z × σ(gate)", "z · W_O"]),
    node(out, next + 4, 1, [`sum of ${stack.num_heads} heads`, isAfter && `then ${norm}`, factor(stack)]),
  ];
  const wires = [
    [from.q, at("hook_q"), "query"],
    [from.kv, at("hook_k"), "key"],
    [from.kv, at("hook_v"), "value"],
    ...(isTurned ? [[at("hook_q"), q, "query"], [at("hook_k"), k, "key"]] : []),
    [q, at("hook_attn_scores"), "query"],
    [k, at("hook_attn_scores"), "key"],
    [at("hook_attn_scores"), at("hook_pattern"), "ink"],
    [at("hook_pattern"), at("hook_z"), "ink"],
    [at("hook_v"), at("hook_z"), "value"],
    [at("hook_z"), at("hook_result"), "value"],
    [at("hook_result"), out, "value"],
  ];
  return { nodes, wires, out, columns: next + 6 };
}

/** A band along the stream from `start` to `end` (null: it continues); adds: the ids of the tensors that are added to the stream. */
const bandOf = (title, { start, end }, { nodes, wires, adds, columns, rows = 1 }) => ({
  title, wires, adds, columns, rows,
  nodes: [{ ...start, column: 0 }, ...nodes, ...(end ? [{ ...end, column: columns - 1 }] : [])],
  start: start.id,
  end: end?.id ?? null,
});

/** Self-attention, or cross-attention to `encoderOutput` (a node or null). */
export function attentionBand(stack, points, window, { start, end, encoderOutput }) {
  const node = nodesOfStack(stack);
  const isCross = encoderOutput !== null;
  const { norm, isBefore } = placing(stack);
  const normed = isCross ? "ln_cross.hook_out" : "ln1.hook_out";
  const hasNorm = isBefore && points.has(normed);
  const q = hasNorm ? normed : start.id;
  const from = { q, kv: isCross ? encoderOutput.id : q, isNormed: hasNorm };
  const body = attentionBody({ stack, isCross, window, from });
  const title = isCross ? "Cross-attention: from the decoder to the encoder's text" : "Attention between the words";
  return bandOf(title, { start, end }, {
    nodes: [
      ...(hasNorm ? [node(normed, 0, isCross ? 0 : 1, [`${norm}(x)`])] : []),
      ...(isCross ? [{ ...encoderOutput, column: 0, row: 1.5 }] : []),
      ...body.nodes,
    ],
    wires: [...(hasNorm ? [[start.id, normed, "ink"]] : []), ...body.wires],
    adds: [body.out],
    columns: body.columns,
    rows: 3,
  });
}

/** Token mixers in layers without attention: the ids of their tensors in order, with their formulas. */
const RECURRENCES = {
  convolution: [["conv.hook_in", ["B × x"]], ["conv.hook_out", ["C × convolution"]]],
  "gated delta net": [
    ["delta.hook_in", ["n · W_qkv"]],
    ["delta.hook_v", ["silu(convolution)"]],
    ["delta.hook_z", ["q · S"]],
    ["delta.hook_out", ["RMSNorm(z) × silu(gate)"]],
  ],
};

export function recurrenceBand(stack, points, { start, end }) {
  const node = nodesOfStack(stack);
  const { norm } = placing(stack);
  const { kind } = stack.recurrence;
  const steps = RECURRENCES[kind].filter(([id]) => points.has(id));
  const chain = [start.id, "ln1.hook_out", ...steps.map(([id]) => id), "hook_attn_out"];
  return bandOf(`${kind[0].toUpperCase()}${kind.slice(1)}: each word takes from those before it`, { start, end }, {
    nodes: [
      node("ln1.hook_out", 0, 0, [`${norm}(x)`]),
      ...steps.map(([id, how], i) => node(id, i + 1, 0, how)),
      node("hook_attn_out", steps.length + 1, 0, ["times W_out", factor(stack)]),
    ],
    wires: chain.slice(1).map((id, i) => [chain[i], id, "ink"]),
    adds: ["hook_attn_out"],
    columns: steps.length + 3,
  });
}

/** From the mlp's input `from` (labelled `own`) through its neurons; first: the first column. */
function neurons(stack, first, from, own) {
  const node = nodesOfStack(stack);
  const isGated = stack.gated_mlp;
  const act = stack.activation.replace("_tanh", "");
  const [pre, linear, post] = ["mlp.hook_pre", "mlp.hook_pre_linear", "mlp.hook_post"];
  const gate = isGated ? [[from, linear, "ink"], [linear, post, "ink"]] : [];
  return {
    nodes: [
      node(pre, first, 0, [`${own} · ${isGated ? "W_gate" : "W_up"}`]),
      ...(isGated ? [node(linear, first, 1, [`${own} · W_up`])] : []),
      node(post, first + 1, isGated ? 0.5 : 0, [isGated ? `${act}(gate) × up` : `${act}(up)`]),
    ],
    wires: [[from, pre, "ink"], [pre, post, "ink"], ...gate, [post, "hook_mlp_out", "ink"]],
    how: "times W_down",
    rows: isGated ? 2 : 1,
  };
}

/** Through a router and the selected experts. */
function mixture(stack, first, from, own) {
  const node = nodesOfStack(stack);
  const [router, weights] = ["mlp.hook_router_logits", "mlp.hook_expert_weights"];
  return {
    nodes: [
      node(router, first, 0, [`${own} · W_router`]),
      node(weights, first + 1, 0, ["softmax", `the largest ${stack.experts.num_chosen} count`]),
    ],
    wires: [[from, router, "ink"], [router, weights, "ink"], [weights, "hook_mlp_out", "ink"]],
    how: `Σ weight × expert(${own})`,
    rows: 1,
  };
}

/** An mlp and a mixture in parallel, each with its own sum. `stream`: the experts' input. */
function neuronsAndMixture(stack, first, from, own, stream) {
  const node = nodesOfStack(stack);
  const [dense, experts, out] = ["mlp.hook_dense_out", "mlp.hook_experts_out", "hook_mlp_out"];
  const upper = neurons(stack, first, from, own);
  const lower = mixture(stack, first, stream, "x");
  const ends = (wires, to) => wires.map(([start, end, tone]) => [start, end === out ? to : end, tone]);
  return {
    nodes: [
      ...upper.nodes,
      ...lower.nodes.map((each) => ({ ...each, row: upper.rows })),
      node(dense, first + 2, (upper.rows - 1) / 2, [upper.how, `then ${NORMS[stack.norm]}`]),
      node(experts, first + 2, upper.rows, [lower.how, `then ${NORMS[stack.norm]}`]),
    ],
    wires: [...ends(upper.wires, dense), ...ends(lower.wires, experts), [dense, out, "ink"], [experts, out, "ink"]],
    how: "both",
    rows: upper.rows + 1,
    columns: 3,
  };
}

/** In a parallel block the input is a copy of attention's stream, and the output joins the sum above. */
export function mlpBand(stack, points, { start, end, isParallel }) {
  const node = nodesOfStack(stack);
  const { norm, isBefore, isAfter } = placing(stack);
  const normed = "ln2.hook_out";
  const hasNorm = isBefore && points.has(normed);
  const from = hasNorm ? normed : start.id;
  const first = isParallel ? 1 : 0;
  const kind = stack.experts?.beside_mlp ? neuronsAndMixture : stack.experts ? mixture : neurons;
  const body = kind(stack, first + 1, from, hasNorm ? "n" : "x", start.id);
  const width = body.columns ?? 2;
  const middle = (body.rows - 1) / 2;
  const out = "hook_mlp_out";
  const title = isParallel ? "Feed-forward: in parallel with the attention, from the same residual stream"
    : "Feed-forward: each word by itself";
  const band = bandOf(title, { start: isParallel ? { ...start, row: middle, isCopy: true } : start, end }, {
    nodes: [
      ...(hasNorm ? [node(normed, first, middle, [`${norm}(x)`])] : []),
      ...body.nodes,
      node(out, first + width + 1, middle, [body.how, isAfter && `then ${norm}`, factor(stack)]),
    ],
    wires: [...(hasNorm ? [[start.id, normed, "ink"]] : []), ...body.wires],
    adds: [out],
    columns: first + width + 3,
    rows: body.rows,
  });
  return isParallel ? { ...band, start: null } : band;
}

export function perLayerBand(stack, ends) {
  const node = nodesOfStack(stack);
  const act = stack.activation.replace("_tanh", "");
  const [given, out] = ["hook_per_layer_input", "hook_per_layer_out"];
  return bandOf("Of the tokens themselves: each lets through a part of its stream", ends, {
    nodes: [
      node(given, 1, 0, ["of W_E[token] and of a table of this layer"]),
      node(out, 2, 0, [`(${act}(x · W_gate) × given) · W_out`, `then ${NORMS[stack.norm]}`]),
    ],
    wires: [[ends.start.id, out, "ink"], [given, out, "ink"]],
    adds: [out],
    columns: 4,
  });
}

export const streamsBand = (ends) => bandOf("Several streams: the block's input is a mixture of all of them", ends,
  { nodes: [], wires: [[ends.start.id, ends.end.id, "ink"]], adds: [], columns: 3 });

export function withLaurel(band, stack, points) {
  const node = nodesOfStack(stack)("hook_laurel_out", 2, band.rows, ["n + norm(n · W_left · W_right)"]);
  const from = points.has("ln1.hook_out") ? "ln1.hook_out" : band.start;
  return {
    ...band,
    nodes: [...band.nodes, node],
    wires: [...band.wires, [from, node.id, "ink"]],
    adds: [...band.adds, node.id],
    rows: band.rows + 1,
  };
}
