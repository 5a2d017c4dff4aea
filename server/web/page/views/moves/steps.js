// Converts an answer of /v1/contributions to steps: all additions to one word's vector, in order, with their vectors.
import { sidesOf, shownToken } from "../../core/model.js";
import { lengthOf } from "../../core/projection.js";
import { addTo, sumOf, zeros } from "./vectors.js";

const MOST = { sum: 10, each: 4, one: 12 }; // sources with their own arrow, per layer or in total; the others share one

const NO_ROUNDING = 1e-4; // upper bound of float32's rounding error

const KINDS = [
  [/(hook_embed|hook_resid_pre)$/, "embedding"], [/hook_(pos|token_type)_embed$/, "position"],
  [/attn\.b_O$/, "bias"], [/attn\.rest$/, "rest"], [/hook_attn_out$/, "attention"], [/hook_cross_attn_out$/, "cross"],
  [/hook_mlp_out$/, "mlp"], [/hook_per_layer_out$/, "token"],
  [/(attn|hook_resid_\w+)\.change$/, "change"], [/\.change$/, "norm"], [/other_streams$/, "streams"],
  [/rounding$/, "rounding"],
];
// when layers are summed
const ORDER = ["embedding", "position", "attention", "word", "head", "more", "rest", "change", "cross", "bias", "mlp", "token", "streams",
  "norm", "rounding"];
const BEFORE_CROSS = new Set(["attention", "norm", "change"]); // additions of a decoder's block before its cross-attention

const isMlp = (step) => step.kind === "mlp";
const isSource = (step) => step.kind === "word" || step.kind === "head";

/**
 * {steps, end, tokens, position, width, mlps}: steps are {kind, layer, head, key, count, vector, state} in the order of
 * addition, after the embedding or the state before; state: the number of the model's state in which the step ends, if it
 * is one. `end` is the real state, mlps the length of all that MLPs add. layers: "sum" (each source once), "each" (layer
 * after layer) or "one" (only layer `layer`). Without MLPs, the steps and the end lack their additions.
 */
export function stepsOf(entry, layers, layer, hasMlps) {
  const width = entry.arrays.states.shape.at(-1);
  const state = (i) => entry.arrays.states.data.subarray(i * width, (i + 1) * width);
  const isOne = layers === "one";
  const all = inOrder(entry, width).filter((step) => !isOne || step.layer === layer);
  const taken = sumOf(all.filter(isMlp).map((step) => step.vector), width);
  const raw = hasMlps ? all : all.filter((step) => !isMlp(step));
  const last = isOne ? layer + 1 : entry.arrays.states.shape[0] - 1;
  const start = { kind: "state", layer, vector: isOne && state(layer) };
  const steps = isOne ? [start, ...gathered(raw, "one", width)] : layers === "sum" ? merged(raw, width) : byLayer(raw, width);
  steps.forEach((step, i) => {
    const next = steps[i + 1];
    const isWhole = layers === "each" && Number.isInteger(step.layer) && step.layer !== next?.layer;
    step.state = !hasMlps ? null : !next ? last : isWhole ? step.layer + 1 : null;
  });
  return { width, tokens: sidesOf(entry, entry.part), position: entry.query_positions[0], steps, mlps: lengthOf(taken),
    end: hasMlps ? state(last) : addTo(Float64Array.from(state(last)), taken, -1) };
}

/** All additions, with the sources in the place of their layer's attention. */
function inOrder(entry, width) {
  const steps = [];
  const done = new Set();
  const addSources = (layer) => {
    if (layer === null || done.has(layer) || !entry.layers.includes(layer)) return;
    done.add(layer);
    steps.push(...sourcesOf(entry, layer, width));
  };
  entry.addition_names.forEach((name, i) => {
    const kind = KINDS.find(([pattern]) => pattern.test(name))?.[1] ?? "other";
    const layer = /blocks\.(\d+)\./.exec(name);
    const own = layer && kind !== "embedding" ? Number(layer[1]) : null;
    const isBefore = /resid_pre\.change$/.test(name) || (entry.part === "cross" && BEFORE_CROSS.has(kind) && !/cross|ln2/.test(name));
    if (!isBefore) addSources(own);
    steps.push({ kind, layer: own, vector: entry.arrays.additions.data.subarray(i * width, (i + 1) * width) });
  });
  return steps;
}

function sourcesOf(entry, layer, width) {
  const { data, axes, shape } = entry.arrays.vectors;
  const count = data.length / width / shape[0];
  const first = entry.layers.indexOf(layer) * count;
  return Array.from({ length: count }, (_, i) => {
    const vector = data.subarray((first + i) * width, (first + i + 1) * width);
    if (!axes.includes("key")) return { kind: "head", layer, head: entry.heads[i], vector };
    return { kind: "word", layer, key: entry.key_positions[i], head: axes.includes("head") ? entry.heads[0] : undefined, vector };
  });
}

function byLayer(raw, width) {
  const lost = raw.filter((step) => step.kind === "rounding");
  const rest = raw.filter((step) => step.kind !== "rounding");
  const layers = [...new Set(rest.map((step) => step.layer))];
  const steps = layers.flatMap((layer) => gathered(rest.filter((step) => step.layer === layer), "each", width));
  const rounding = { kind: "rounding", layer: null, vector: sumOf(lost.map((step) => step.vector), width) };
  return [...steps, ...gathered([rounding], "each", width)];
}

function merged(raw, width) {
  const parts = new Map();
  for (const step of raw) {
    const source = step.kind === "head" ? `${step.layer}.${step.head}` : step.key;
    const name = `${step.kind} ${source}`;
    if (!parts.has(name)) {
      const layer = step.kind === "head" ? step.layer : null;
      parts.set(name, { ...step, layer, vector: zeros(width) });
    }
    addTo(parts.get(name).vector, step.vector);
  }
  const ordered = [...parts.values()].sort((a, b) => ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind));
  return gathered(ordered, "sum", width);
}

/** A step for each of the largest sources, and one for the others; zero vectors and negligible rounding are omitted. */
function gathered(steps, layers, width) {
  const present = steps.map((step) => ({ ...step, size: lengthOf(step.vector) }))
    .filter((step) => step.size > (step.kind === "rounding" ? NO_ROUNDING : 0));
  const sources = present.filter(isSource).sort((a, b) => b.size - a.size);
  const small = new Set(sources.length > MOST[layers] + 1 ? sources.slice(MOST[layers]) : []);
  if (small.size === 0) return present;
  const vector = sumOf([...small].map((step) => step.vector), width);
  const [one] = small;
  const more = { kind: "more", of: one.kind, count: small.size, layer: layers === "sum" ? null : one.layer, vector };
  const kept = present.filter((step) => !small.has(step));
  const place = kept.findLastIndex(isSource) + 1;
  return [...kept.slice(0, place), more, ...kept.slice(place)];
}

const WHATS = {
  embedding: (step, word) => `the embedding of ${word}`,
  state: (step, word) => `${word} before layer ${step.layer}`,
  position: () => "its position",
  head: (step) => `head ${step.head}`,
  more: (step) => `${step.count} more ${step.of === "head" ? "heads" : "words"}`,
  rest: () => "the other heads",
  change: () => "the values set by a change",
  attention: () => "attention, all heads",
  cross: () => "attention to the encoder",
  bias: () => "the bias of attention",
  mlp: (step) => (step.layer === null ? "the MLPs" : "the MLP"),
  token: () => "the per-layer embedding",
  norm: () => "the change by norms",
  streams: () => "the other streams",
  rounding: () => "rounding of the sums",
};

export function whatOf(step, { tokens, position }) {
  const quoted = (token) => `‘${shownToken(token)}’`;
  if (step.kind !== "word") return WHATS[step.kind]?.(step, quoted(tokens.queries[position])) ?? step.kind;
  const isItself = step.key === position && tokens.keys === tokens.queries;
  return `${quoted(tokens.keys[step.key])} (${step.key})${isItself ? ", the word itself" : ""}`;
}

export function labelOf(step, { tokens, position }) {
  if (step.kind === "embedding" || step.kind === "state") return shownToken(tokens.queries[position]);
  if (step.kind === "word") return `+ ${shownToken(tokens.keys[step.key])}`;
  if (step.kind === "head") return `+ head ${step.layer}.${step.head}`;
  const short = { mlp: "MLP", change: "change", bias: "bias", rest: "other heads", norm: "norm" };
  return `+ ${short[step.kind] ?? whatOf(step, { tokens, position })}`;
}
