// The numbers of one head for display: masked and hidden entries, and the range of the colours.
import { useMemo } from "../../core/html.js";
import { lackOf, useInput } from "../../core/model.js";
import { extent, sum } from "../../core/numbers.js";
import { useSelection } from "../../core/state.js";
import { hasMask, useHeadAnswer, useProducts } from "./asking.js";

export const NOUNS = { pattern: "weight", norm: "length added", scores: "score", dots: "q·k" };

/** Null if the model supports the value-weighted kind. */
export const lackOfNorms = (capabilities) => lackOf(capabilities, "/v1/contributions");

/** "unmasked" is "dots" (q·k), with the products of masked pairs added. */
export const requestKind = (kind) => (kind === "unmasked" ? "dots" : kind);

/** Without a text the route is null. */
function useRequest({ part, layer, head }) {
  const selection = useSelection();
  const kind = requestKind(selection.attention_kind);
  const common = { ...useInput(), part, layers: layer, heads: head };
  if (selection.text === "") return { route: null, body: null };
  if (kind === "norm") return { route: "v1/contributions", body: { ...common, query_positions: "all" } };
  // float32, because weights are shown with more digits than float16 has
  return { route: "v1/attention", body: { ...common, kind, dtype: "float32" } };
}

/** grid: null before the first answer; copied: the request for its numbers. */
export function useGrid(place) {
  const { route, body } = useRequest(place);
  const { answer, values } = useHeadAnswer(route, body, place);
  const { attention_kind: kind, attention_sink: showsFirst } = useSelection();
  const { part, stack, layer } = place;
  const { answer: hidden, products, request } = useProducts(kind === "unmasked" && hasMask(part, stack, layer), place);
  const entry = answer.data?.[0] ?? null;
  const grid = useMemo(() => {
    if (!entry) return null;
    const tokens = { queries: entry.tokens, keys: entry.key_tokens ?? entry.tokens };
    const { isDifference } = entry;
    const grid = { ...tokens, values, kind: entry.kind ?? "norm", showsFirst, hides: maskOf(part, stack, layer), isDifference };
    return gridOf({ ...grid, products: products?.length === values.length ? products : null });
  }, [values, showsFirst, part, layer, products]);
  return { answer: hidden.error ? hidden : answer, grid, copied: products ? request : { route, body } };
}

/** (query, key): whether the mask of that layer hides the key from the query. */
export function maskOf(part, stack, layer) {
  if (part === "cross") return () => false;
  const width = stack.sliding_windows?.[layer] ?? Infinity;
  return (query, key) => (stack.causal && key > query) || Math.abs(query - key) >= width;
}

/**
 * Data of the pictures. values: [query, key] as answered; shown: the same, NaN where masked or hidden; scale: "sequential" or
 * "diverging"; beneath: like shown, with `products` for masked pairs, or null. A hidden first key is ignored in the range.
 */
export function gridOf({ queries, keys, values, kind, showsFirst, hides, products = null, isDifference = false }) {
  const shown = new Float32Array(values);
  const columns = keys.length;
  const hidesFirst = !showsFirst && columns > 1;
  let hasMasked = false;
  for (let query = 0; query < queries.length; query += 1) {
    const start = query * columns;
    if (hidesFirst) shown[start] = NaN;
    for (let key = 0; key < columns; key += 1) {
      // a masked weight is exactly 0; an unmasked 0 is a small weight
      if (!(Math.abs(values[start + key]) > 0) && hides(query, key)) shown[start + key] = NaN;
      hasMasked ||= !Number.isFinite(shown[start + key]) && !(hidesFirst && key === 0);
    }
  }
  const isMasked = (query, key) => hides(query, key) && !Number.isFinite(shown[query * columns + key]);
  const within = (place) => !(hidesFirst && place % columns === 0);
  const beneath = products && shown.map((value, i) => (Number.isFinite(value) || !within(i) ? value : products[i]));
  const [low, high] = extent(beneath ?? shown);
  const isSigned = isDifference || kind === "scores" || kind === "dots";
  const size = Math.max(Math.abs(low), Math.abs(high)) || 1;
  const most = kind === "pattern" && !hidesFirst ? 1 : high || 1;
  const range = isSigned ? { low: -size, high: size, scale: "diverging" } : { low: 0, high: most, scale: "sequential" };
  return { queries, keys, values, shown, ...range, kind, hidesFirst, hasMasked, isMasked, beneath, isDifference };
}

/**
 * The weight of each pair by the softmax: the areas of dots. A masked pair gets its weight without the mask, with the same
 * sum, at most 1; a position bias is only in scores.
 */
export function weightsOf({ kind, shown, beneath, isMasked, queries, keys }, { attention_scale: scale, attn_logit_softcap: cap }) {
  const numbers = beneath ?? shown;
  const scoreOf = (x) => (kind === "scores" ? x : cap ? cap * Math.tanh((x * scale) / cap) : x * scale);
  const weights = new Float32Array(numbers.length);
  queries.forEach((_, query) => {
    const row = Array.from(rowOf(numbers, { keys }, query), scoreOf);
    const seen = row.filter((score, key) => Number.isFinite(score) && !isMasked(query, key));
    const most = Math.max(...seen);
    const whole = sum(seen.map((score) => Math.exp(score - most)));
    row.forEach((score, key) => (weights[query * keys.length + key] = Math.min(1, Math.exp(score - most) / whole) || 0));
  });
  return weights;
}

export function rowSum(grid, query) {
  return sum(Array.from(rowOf(grid.values, grid, query)).filter(Number.isFinite));
}

export const rowOf = (values, grid, query) => values.subarray(query * grid.keys.length, (query + 1) * grid.keys.length);

/** For ranking by size: differences count by their absolute value. */
export const sized = (values, { isDifference }) => (isDifference ? values.map(Math.abs) : values);

export function columnOf(values, grid, key) {
  return Float32Array.from(grid.queries, (_, query) => values[query * grid.keys.length + key]);
}
