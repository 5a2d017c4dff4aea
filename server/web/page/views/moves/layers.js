// The word's residual stream, layer by layer: its length, its direction, and its prediction by the lens.
import { sideNames, sidesOfRequest, useDifferenceName } from "../../core/compare.js";
import { useLook } from "../../core/fetching.js";
import { html, useMemo } from "../../core/html.js";
import { clamp, lackOf, shownToken, sidesOf, useCapabilities } from "../../core/model.js";
import { colourOf, inkOn } from "../../core/colour.js";
import { extent, format, percent } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { useStore } from "../../core/store.js";
import { theme } from "../../core/theme.js";
import { SavedLines } from "../../parts/lines.js";
import { Answer } from "../../parts/problem.js";
import { spaced } from "../../parts/target_field.js";
import { Term } from "../../parts/term.js";
import { Card } from "../../parts/tools.js";

const MOST_NAMED = 3; // tokens of a state

/** The request for the lens at all states of a position: the same one for arrows and amounts. */
export const lensBody = (given, query) => ({ ...given, positions: query, top_k: 8 });

const stateNames = (count) => Array.from({ length: count }, (_, state) => (state === 0 ? "embed" : `after ${state - 1}`));

export function Layers({ entry, given }) {
  const selection = useSelection();
  const { key } = selection;
  const query = entry.query_positions[0];
  const { queries } = sidesOf(entry, entry.part);
  // The keys of cross-attention belong to the other stack, so there is no cosine.
  const other = entry.part === "cross" ? null : clamp(key, queries.length);
  const part = entry.part === "encoder" ? "encoder" : "decoder";
  const body = { ...given, part, positions: query, ...(other === null ? {} : { compare_positions: other }) };
  const answer = useLook("v1/trajectory", body);
  const difference = useDifferenceName(": ");
  const sides = sidesOfRequest(given);
  return html`<${Card} class="contributions-rows" title=${`Layer by layer${difference}`}
      copy=${{ route: "v1/trajectory", body }}>
    ${sides.other && html`<${Said} given=${sides.other} part=${part} query=${query} side=${`${sideNames(selection)[0]}: `} />`}
    <${Said} given=${sides.own} part=${part} query=${query} side=${sides.other ? `${sideNames(selection)[1]}: ` : ""} />
    <${Answer} answer=${answer} minHeight="13rem">${() => html`<${Curves} entry=${answer.entry} tokens=${queries} query=${query}
      other=${other} />`}<//>
  <//>`;
}

function Curves({ entry, tokens, query, other }) {
  const { norms: { data: norms }, steps: { data: steps }, cosine_to_start: { data: toStart }, cosine_to_previous: toPrevious,
    cosine_to_others: toOthers } = entry.arrays;
  const points = useMemo(() => stateNames(norms.length), [entry]);
  const cosines = [{ name: "to its embedding", values: toStart }, { name: "to the state before", values: toPrevious.data },
    ...(toOthers ? [{ name: `to ${shownToken(tokens[other])} (${other}), the key`, values: toOthers.data }] : [])];
  const [lowest, highest] = extent(cosines.flatMap(({ values }) => [...values])); // a zero vector has no cosine
  const said = entry.isDifference ? `in the end its length changed by ${format(norms.at(-1))}`
    : `from length ${format(norms[0])} to ${format(norms.at(-1))}`;
  return html`<div class="columns">
    <${SavedLines} height=${210} heading="Length of the vector" name="lengths" points=${points}
      series=${[{ name: "length of the vector", values: norms }, { name: "length of the step before", values: steps }]}
      says=${html`Each block adds a step to the vector of <code>“${shownToken(tokens[query])}”</code>: ${said}. The norm before each
        block keeps only the direction.`}
      low=${Math.min(0, extent(norms)[0], extent(steps)[0])} label="Length of the vector and of its steps" />
    <${SavedLines} height=${210} heading="Direction of the vector" name="directions" points=${points} series=${cosines}
      says=${html`The <${Term} of="cosine" /> to another vector: 1 is the same direction, 0 a right angle. At the end it
        is ${format(toStart.at(-1), 2)} to the <${Term} of="embedding" />. Choose a key to compare with another word.`}
      low=${Math.min(0, lowest)} high=${entry.isDifference ? Math.max(0.01, highest) : 1}
      label="Cosines of the vector to its start, the state before and another word" />
  </div>`;
}

function Said({ given, part, query, side }) {
  const capabilities = useCapabilities();
  const mode = useStore(theme);
  const lack = lackOf(capabilities, "/v1/lens") ?? (part === "encoder" && capabilities.kind !== "encoder"
    ? "The encoder predicts no words: only the decoder does." : null);
  const body = lensBody(given, query);
  const answer = useLook(lack ? null : "v1/lens", body);
  if (lack) return html`<p class="lack">${lack}</p>`;
  return html`<p class="hint"><b>${side}</b>If this layer were the last one, the ${part === "encoder" ? "word here"
    : "next word"} would be:</p>
    <${Answer} answer=${answer} minHeight="22rem">${() => {
      const { top_tokens: tops, arrays } = answer.entry;
      const chances = arrays.probabilities;
      return html`<ol class="said-path">${stateNames(tops.length).map((name, state) => {
        const chance = chances.data[state * chances.shape[2]];
        const ground = { background: colourOf(chance, 0, 1, "sequential", mode),
          color: inkOn(chance, 0, 1, "sequential", mode) };
        const isNew = state === 0 || tops[state][0][0] !== tops[state - 1][0][0];
        const likeliest = tops[state][0].slice(0, MOST_NAMED).map((token, k) =>
          `${spaced(token)} ${percent(chances.data[state * chances.shape[2] + k])}`);
        return html`<li class=${isNew ? "new" : ""}><button style=${ground} title=${likeliest.join(", ")}
          onClick=${() => select({ view: "lens", lens_state: state })}>
          <small>${name}</small><code>${spaced(tops[state][0][0])}</code><small>${percent(chance)}</small></button></li>`;
      })}</ol>`;
    }}<//>`;
}
