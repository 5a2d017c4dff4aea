// One block as a graph of tensors, made from what the capabilities tell: each family gets its own true picture.
//
// A band is one row of the picture: the residual stream runs along its top, what a sublayer computes hangs below.
// A node is a tensor: {id, title, how, about, tone, column, row}; id is the point's name without stack and layer. Row -1
// is the stream; how: the lines of its formula. A wire is [from, to, tone]; adds: ids of what is added to the stream.
import { format, grouped } from "../../core/numbers.js";

export const NORMS = { rmsnorm: "RMSNorm", layernorm: "LayerNorm" };

/** The name of a point of capabilities.points without its stack and block. */
export const bareName = (point) => point.name.replace(/^(encoder|decoder)\./, "").replace("blocks.{layer}.", "");

/** The points of a stack by their bare names, those that this layer has. */
export function pointsOf(capabilities, stackName, layer) {
  const own = capabilities.points.filter((point) => point.stack === stackName);
  return new Map(
    own.filter((point) => !point.name.includes("{layer}") || point.layers.includes(layer)).map((point) => [bareName(point), point]),
  );
}

const stream = (id, title, column, about, how = []) => ({ id, title, column, row: -1, tone: "ink", about, how });

/** Where a stack's norms stand, as the words of a band's nodes. */
function placing(stack) {
  const norm = NORMS[stack.norm];
  const isBefore = stack.norm_placement === "pre" || stack.norm_placement === "sandwich";
  const isAfter = stack.norm_placement === "sandwich" || stack.norm_placement === "output";
  return { norm, isBefore, isAfter, isOfSum: stack.norm_placement === "post" };
}

const normAbout = (norm) =>
  norm === "RMSNorm"
    ? "Each vector is divided by its root mean square and weighted, so that the sublayer reads directions, not lengths."
    : "Each vector loses its mean, is divided by its standard deviation, then weighted and shifted: the sublayer reads directions, not lengths.";

/** What happens to q and k between the projection and the scores, step by step. */
function turning(stack, isCross) {
  if (isCross) return [];
  return [stack.qk_norm && "normed", stack.positions.includes("rotary") && "rotated"].filter(Boolean);
}

/** The steps from q·k to the scores, in their order: scale, cap, bias, mask. */
export function scoreSteps(stack, window, isCross) {
  return [
    stack.attention_scale === 1 ? "q·k" : `q·k × ${format(stack.attention_scale)}`,
    stack.attn_logit_softcap && `cap ${format(stack.attn_logit_softcap)}`,
    stack.positions.includes("relative") && !isCross && "+ position bias",
    stack.causal && !isCross && "mask: causal",
    window && `window: ${grouped(window)}`,
  ].filter(Boolean);
}

/** From what is looked at to what one attention adds. from: ids that q, and k and v, are made of, and whether by a norm. */
function attentionNodes({ stack, prefix, out, first, isCross, from, window, points }) {
  const { isAfter, norm } = placing(stack);
  const turn = turning(stack, isCross);
  const at = (name) => `${prefix}.${name}`;
  const own = from.isNormed ? "n" : "x";
  const source = isCross ? "encoder" : own;
  const nodes = [
    { id: at("hook_q"), title: "q", how: [`${own} · W_Q`], tone: "query", column: first, row: 0, about: "The query: what the word at the chosen position looks for." },
    { id: at("hook_k"), title: "k", how: [`${source} · W_K`], tone: "key", column: first, row: 1, about: "The key: what a word offers to be found by." },
    { id: at("hook_v"), title: "v", how: [`${source} · W_V`], tone: "value", column: first, row: 2, about: "The value: what a word hands over when it is looked at." },
  ];
  const wires = [[from.q, at("hook_q"), "query"], [from.kv, at("hook_k"), "key"], [from.kv, at("hook_v"), "value"]];
  let column = first + 1;
  let [q, k] = [at("hook_q"), at("hook_k")];
  if (turn.length > 0) {
    const about = stack.positions.includes("rotary")
      ? "Turned by angles that grow with the position: q·k then depends on how far apart the two words are."
      : "Brought to a standard length before they are compared.";
    nodes.push(
      { id: at("hook_rot_q"), title: "q′", how: turn.map((step, i) => (i === 0 ? `q ${step}` : step)), tone: "query", column, row: 0, about },
      { id: at("hook_rot_k"), title: "k′", how: turn.map((step, i) => (i === 0 ? `k ${step}` : step)), tone: "key", column, row: 1, about },
    );
    wires.push([q, at("hook_rot_q"), "query"], [k, at("hook_rot_k"), "key"]);
    [q, k] = [at("hook_rot_q"), at("hook_rot_k")];
    column += 1;
  }
  const steps = scoreSteps(stack, window, isCross);
  const last = points.has(at("hook_result"));
  nodes.push(
    { id: at("hook_attn_scores"), title: "scores", how: steps, tone: "ink", column, row: 0.5, about: "How well each key answers the query. What may not be seen is minus infinity, and left blank here." },
    { id: at("hook_pattern"), title: "pattern", how: ["softmax by row"], tone: "ink", column: column + 1, row: 0.5, about: "The attention: how much of each word is taken. Every row sums to 1." },
    { id: at("hook_z"), title: "z", how: ["Σ pattern · v"], tone: "value", column: column + 2, row: 1, about: "The values, mixed by the pattern: what this head has read." },
  );
  if (last) nodes.push({ id: at("hook_result"), title: "result", how: ["z · W_O"], tone: "value", column: column + 3, row: 1, about: "What this head alone writes, back in the width of the stream." });
  nodes.push({
    id: out, title: "attn out", tone: "ink", column: column + (last ? 4 : 3), row: 1,
    how: [`sum of ${stack.num_heads} heads`, isAfter && `then ${norm}`].filter(Boolean),
    about: isAfter ? `What all heads wrote together, through a ${norm}: this is added to the stream.` : "What all heads wrote together: this is added to the stream.",
  });
  wires.push(
    [q, at("hook_attn_scores"), "query"], [k, at("hook_attn_scores"), "key"],
    [at("hook_attn_scores"), at("hook_pattern"), "ink"], [at("hook_pattern"), at("hook_z"), "ink"], [at("hook_v"), at("hook_z"), "value"],
    ...(last ? [[at("hook_z"), at("hook_result"), "value"], [at("hook_result"), out, "value"]] : [[at("hook_z"), out, "value"]]),
  );
  return { nodes, wires, columns: column + (last ? 6 : 5) };
}

/** The band of one attention, to itself or across. */
function attentionBand(stack, points, window, { start, end, isCross, encoderOutput }) {
  const { norm, isBefore } = placing(stack);
  const [prefix, normName, out] = isCross ? ["cross_attn", "ln_cross", "hook_cross_attn_out"] : ["attn", "ln1", "hook_attn_out"];
  const normed = `${normName}.hook_normalized`;
  const hasNorm = isBefore && points.has(normed);
  const from = hasNorm ? normed : start.id;
  const nodes = [{ ...start, column: 0 }];
  const wires = [];
  if (hasNorm) {
    nodes.push({ id: normed, title: "n", how: [`${norm}(x)`], tone: "ink", column: 0, row: isCross ? 0 : 1, about: normAbout(norm) });
    wires.push([start.id, normed, "ink"]);
  }
  if (isCross) nodes.push({ ...encoderOutput, column: 0, row: 1.5 });
  const body = attentionNodes({ stack, prefix, out, first: 1, isCross, window, points, from: { q: from, kv: isCross ? encoderOutput.id : from, isNormed: hasNorm } });
  nodes.push(...body.nodes);
  wires.push(...body.wires);
  if (end) nodes.push({ ...end, column: body.columns - 1 });
  const title = isCross ? "Cross-attention: the decoder looks at what the encoder read" : "Attention: words look at each other";
  return { title, nodes, wires, adds: [out], columns: body.columns, rows: 3, start: start.id, end: end?.id ?? null };
}

/** The band of the mlp; in a parallel block it reads the same stream as attention, whose sum is still running above. */
function mlpBand(stack, points, { start, end, isParallel }) {
  const { norm, isBefore, isAfter } = placing(stack);
  const hasNorm = isBefore && points.has("ln2.hook_normalized");
  const middle = stack.gated_mlp ? 0.5 : 0;
  const nodes = [isParallel ? { ...start, column: 0, row: middle, isCopy: true } : { ...start, column: 0 }];
  const wires = [];
  const first = isParallel ? 1 : 0;
  if (hasNorm) {
    nodes.push({ id: "ln2.hook_normalized", title: "n", how: [`${norm}(x)`], tone: "ink", column: first, row: middle, about: normAbout(norm) });
    wires.push([start.id, "ln2.hook_normalized", "ink"]);
  }
  const from = hasNorm ? "ln2.hook_normalized" : start.id;
  const own = hasNorm ? "n" : "x";
  const act = stack.activation.replace("_tanh", "");
  nodes.push({
    id: "mlp.hook_pre", title: stack.gated_mlp ? "gate" : "up", how: [`${own} · ${stack.gated_mlp ? "W_gate" : "W_up"}`], tone: "ink", column: first + 1, row: 0,
    about: stack.gated_mlp ? "The gate: how far each neuron opens." : "Each neuron asks the word one question; this is how much it says yes.",
  });
  wires.push([from, "mlp.hook_pre", "ink"], ["mlp.hook_pre", "mlp.hook_post", "ink"]);
  if (stack.gated_mlp) {
    nodes.push({ id: "mlp.hook_pre_linear", title: "up", how: [`${own} · W_up`], tone: "ink", column: first + 1, row: 1, about: "What each neuron would let through." });
    wires.push([from, "mlp.hook_pre_linear", "ink"], ["mlp.hook_pre_linear", "mlp.hook_post", "ink"]);
  }
  nodes.push(
    { id: "mlp.hook_post", title: "neurons", how: [stack.gated_mlp ? `${act}(gate) × up` : `${act}(up)`], tone: "ink", column: first + 2, row: middle, about: "The neurons after the activation: few are far from 0." },
    {
      id: "hook_mlp_out", title: "mlp out", how: ["times W_down", isAfter && `then ${norm}`].filter(Boolean), tone: "ink", column: first + 3, row: middle,
      about: isAfter ? `What the neurons write, through a ${norm}: this is added to the stream.` : "What the neurons write: this is added to the stream.",
    },
    { ...end, column: first + 4 },
  );
  wires.push(["mlp.hook_post", "hook_mlp_out", "ink"]);
  const title = isParallel ? "Feed-forward: beside the attention, from the same stream" : "Feed-forward: each word by itself";
  return { title, nodes, wires, adds: ["hook_mlp_out"], columns: first + 5, rows: stack.gated_mlp ? 2 : 1, start: isParallel ? null : start.id, end: end.id };
}

/** The bands of one block. encoderOutput: a node, for the cross attention of a decoder that has one. */
export function blockBands(stack, points, layer, encoderOutput) {
  const window = stack.sliding_windows?.[layer] ?? null;
  const { norm, isOfSum } = placing(stack);
  const behind = (what) => [`x + ${what}`, isOfSum && `then ${norm}`].filter(Boolean);
  const pre = stream("hook_resid_pre", "x", 0, layer === 0 ? "The stream at the first block: the words' embeddings." : "The residual stream as this block finds it: all that the blocks below have written about each word.");
  const mid = stream("hook_resid_mid", "x mid", 0, "The stream with what attention brought.", behind("attention"));
  const midCross = stream("hook_resid_mid_cross", "x cross", 0, "The stream with what was read from the encoder.", behind("cross"));
  const post = stream("hook_resid_post", "x out", 0, "The stream as the next block finds it.", behind("mlp"));
  if (stack.parallel_blocks) {
    return [
      attentionBand(stack, points, window, { start: pre, end: null, isCross: false }),
      mlpBand(stack, points, { start: pre, end: { ...post, how: ["x + attention + mlp"] }, isParallel: true }),
    ];
  }
  const bands = [attentionBand(stack, points, window, { start: pre, end: mid, isCross: false })];
  if (stack.cross_attention) bands.push(attentionBand(stack, points, null, { start: mid, end: midCross, isCross: true, encoderOutput }));
  bands.push(mlpBand(stack, points, { start: stack.cross_attention ? midCross : mid, end: post, isParallel: false }));
  return bands;
}

/** What stands before the first block and behind the last: [before, behind], nodes in their order. */
export function endNodes(stack, points) {
  const positions = stack.positions.includes("learned") ? "a learned vector" : "sines";
  const norm = NORMS[stack.norm];
  const before = [
    { id: "hook_embed", title: "embedding", how: ["W_E[token]"], about: "The vector of each token, whatever stands around it." },
    { id: "hook_pos_embed", title: "+ position", how: [positions], about: "What is added for the place in the text." },
    { id: "hook_token_type_embed", title: "+ token type", how: ["one for all"], about: "What is added for the segment of the text." },
    { id: "embed_norm.hook_normalized", title: "norm", how: [norm], about: normAbout(norm) },
  ];
  const behind = [
    { id: "ln_final.hook_normalized", title: "final norm", how: [`${norm}(x)`], about: normAbout(norm) },
    { id: "logits", title: "logits", how: ["x · W_U"], about: "A number for every token of the vocabulary: softmax makes them the chances of what comes next." },
  ];
  const known = (nodes) => nodes.filter((node) => points.has(node.id)).map((node) => ({ tone: "ink", row: 0, ...node }));
  return [known(before), known(behind)];
}
