// The computation of one weight: every step from the two words' vectors to the head's output, with its numbers.
import { useLook } from "../core/fetching.js";
import { html, useMemo } from "../core/html.js";
import { clamp, sidesOf, stackAt, useHead, useInput } from "../core/model.js";
import { format, percent } from "../core/numbers.js";
import { useQueryOf } from "../core/sequences.js";
import { useSelection } from "../core/state.js";
import { useStrongestPair } from "../core/strongest.js";
import { Answer } from "../parts/problem.js";
import { Term } from "../parts/term.js";
import { Card } from "../parts/tools.js";
import { Difference } from "./why/difference.js";
import { Keys, partsOf, Word } from "./why/pair.js";
import { Dot, Project, Rotate, Vectors } from "./why/score_steps.js";
import { Output, Scale, Softmax, ValueSum, Values } from "./why/weight_steps.js";

export function View() {
  const selection = useSelection();
  const { part, stack, layer, head } = useHead();
  const query = useQueryOf(part);
  const body = { ...useInput(), part, layer, head, query_position: query };
  const choosing = useStrongestPair();
  const explained = useLook(selection.text && query !== null && !choosing ? "v1/explain" : null, body);
  const answer = choosing ?? explained;
  if (!selection.text) return html`<p class="lack">Write something above to see the computation of a weight.</p>`;
  return html`<${Answer} answer=${answer} minHeight="100vh">${() => (answer.entry.isDifference
    ? html`<${Difference} entry=${answer.entry} body=${body} />`
    : html`<${Derivation} entry=${answer.entry} stack=${stackAt(stack, layer)} body=${body} />`)}<//>`;
}

function Derivation({ entry, stack, body }) {
  const selection = useSelection();
  const { queries, keys } = sidesOf(entry, entry.part);
  const key = clamp(selection.key, keys.length);
  const pair = useMemo(() => partsOf(entry, queries, keys, key), [entry, key]);
  const steps = [
    entry.part !== "cross" && html`<${Vectors} key="x" pair=${pair} stack=${stack} body=${body} />`,
    html`<${Project} key="project" pair=${pair} stack=${stack} />`,
    pair.isTurned && html`<${Rotate} key="rotate" pair=${pair} stack=${stack} />`,
    html`<${Dot} key="dot" pair=${pair} />`,
    html`<${Scale} key="scale" pair=${pair} stack=${stack} />`,
    html`<${Softmax} key="softmax" pair=${pair} />`,
    html`<${Values} key="values" pair=${pair} stack=${stack} />`,
    html`<${ValueSum} key="sum" pair=${pair} />`,
    html`<${Output} key="output" pair=${pair} stack=${stack} />`,
  ];
  return html`<${Headline} pair=${pair} body=${body} /><ol class="why-steps">${steps.filter(Boolean)}</ol>
    <${Check} differences=${entry.differences} />`;
}

function Headline({ pair, body }) {
  const { entry, keys, key, weight } = pair;
  const name = `why-layer${entry.layer}-head${entry.head}-query${entry.query_position}`;
  const { weights, products } = entry.arrays;
  const arrays = [{ label: "weights", array: weights, rows: ["weight"], columns: keys },
    { label: "products", array: products, rows: keys }];
  const title = html`Why does <${Word} pair=${pair} side="query" /> give <${Word} pair=${pair} side="key" />${" "}
    ${pair.isMasked ? "no weight" : percent(weight)} of its <${Term} of="attention" />?`;
  return html`<${Card} class="why-head" title=${title} copy=${{ route: "v1/explain", body }} save=${{ name, arrays }}>
    <p class="hint">Layer ${entry.layer}, head ${entry.head}. Below are the <${Term} of="weight">weights<//> of all
      keys; choose another one, and all steps show its numbers.</p>
    <${Keys} entry=${entry} keys=${keys} key_=${key} label="Keys and their weights" />
  <//>`;
}

function Check({ differences }) {
  const names = { scores: "scores", pattern: "weights", z: "z", result: "output" };
  const said = Object.entries(names).map(([name, title]) => `${title} ${format(differences[name], 2)}`).join(", ");
  return html`<p class="hint">Every step is computed again in float64 from the network's own numbers before it.
    Largest differences from the network's own results, in its precision: ${said}.</p>`;
}
