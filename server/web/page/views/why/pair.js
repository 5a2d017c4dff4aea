// One query and one key of one head, with the numbers of each step; and the frame of a step.
import { html } from "../../core/html.js";
import { shownToken } from "../../core/model.js";
import { rowOf } from "../../core/projection.js";
import { select } from "../../core/state.js";
import { Tokens } from "../../parts/tokens.js";

const equal = (a, b) => a.every((value, i) => value === b[i]);

/** Of a /v1/explain answer, for the key at that position. */
export function partsOf(entry, queries, keys, key) {
  const arrays = entry.arrays;
  const number = (name) => arrays[name]?.data[key];
  const [q, k] = [arrays.q.data, rowOf(arrays.k, key)];
  const [qProjected, kProjected] = [arrays.q_projected.data, rowOf(arrays.k_projected, key)];
  return {
    entry,
    queries,
    keys,
    key,
    query: entry.query_position,
    q,
    k,
    qProjected,
    kProjected,
    // Position 0 is rotated by 0, so both vectors are compared.
    isTurned: !equal(q, qProjected) || !equal(arrays.k.data, arrays.k_projected.data),
    products: rowOf(arrays.products, key),
    dot: number("dots"),
    scaled: number("scaled"),
    capped: number("capped"),
    positionBias: number("position_bias"),
    score: number("scores"),
    isMasked: isMasked(entry, key),
    exponential: number("exponentials"),
    weight: number("weights"),
    v: rowOf(arrays.v, key),
    weightedV: rowOf(arrays.weighted_v, key),
    z: arrays.z.data,
    output: arrays.output.data,
  };
}

export function isMasked({ causal, window, query_position: query }, key) {
  return (causal && key > query) || (window !== null && Math.abs(query - key) >= window);
}

export function Word({ pair, side }) {
  const token = side === "query" ? pair.queries[pair.query] : pair.keys[pair.key];
  return html`<code class=${`word ${side}`}
    title=${`position ${pair[side]}`}>${shownToken(token)}<sub>${pair[side]}</sub></code>`;
}

export const Shape = ({ of }) => html`<span class="shape">[${of.join(" × ")}]</span>`;

export const Keys = ({ entry, keys, key_, ...more }) => html`<${Tokens} tokens=${keys} key_=${key_}
  query=${entry.part === "cross" ? null : entry.query_position} weights=${entry.arrays.weights.data}
  onPick=${(position) => select({ key: position })} ...${more} />`;

export const Step = ({ title, formula, says, tools, children }) =>
  html`<li class="card why-step">
    <div class="why-words"><h2>${title}</h2>
      <div class="formula">${formula}</div>
      <p>${says}</p>${tools}</div>
    <div class="why-picture">${children}</div>
  </li>`;
