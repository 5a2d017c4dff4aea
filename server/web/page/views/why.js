// The computation of one weight: every step from the two words' vectors to the head's output, with its numbers.
import { useLook } from "../core/fetching.js";
import { html, useMemo } from "../core/html.js";
import { clamp, inputOf, sidesOf, stackAt, useCapabilities, useHead } from "../core/model.js";
import { format, percent } from "../core/numbers.js";
import { useQueryOf } from "../core/sequences.js";
import { select, useSelection } from "../core/state.js";
import { useStrongestPair } from "../core/strongest.js";
import { Answer } from "../parts/problem.js";
import { Term } from "../parts/term.js";
import { Tokens } from "../parts/tokens.js";
import { CopyMenu, SaveMenu } from "../parts/tools.js";
import { Difference } from "./why/difference.js";
import { partsOf, Word } from "./why/pair.js";
import { Dot, Project, Rotate, Vectors } from "./why/score_steps.js";
import { Output, Scale, Softmax, ValueSum, Values } from "./why/weight_steps.js";

export function View() {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const { part, stack, layer, head } = useHead();
  const query = useQueryOf(part);
  const body = { ...inputOf(selection, capabilities), part, layer, head, query_position: query };
  const choosing = useStrongestPair();
  const explained = useLook(selection.text && query !== null && !choosing ? "v1/explain" : null, body);
  const answer = choosing ?? explained;
  if (!selection.text) return html`<p class="lack">Write something above to see where a weight comes from.</p>`;
  return html`<${Answer} answer=${answer} minHeight="100vh">${() => (answer.entry.isDifference
    ? html`<${Difference} entry=${answer.entry} body=${body} />`
    : html`<${Derivation} entry=${answer.entry} stack=${stackAt(stack, layer)} body=${body} />`)}<//>`;
}

/** All steps for the selected key. */
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
  const arrays = [
    { label: "weights", array: { data: entry.arrays.weights.data, shape: entry.arrays.weights.shape }, rows: ["weight"],
      columns: keys },
    { label: "products", array: { data: entry.arrays.products.data, shape: entry.arrays.products.shape }, rows: keys },
  ];
  return html`<section class="card why-head">
    <header><h2>Why does <${Word} pair=${pair} side="query" /> give <${Word} pair=${pair}
      side="key" /> ${pair.isMasked ? "no weight" : percent(weight)} of its${" "}
      <${Term} of="attention" />?</h2>
      <${CopyMenu} route="v1/explain" body=${body} /><${SaveMenu} name=${name} arrays=${arrays} /></header>
    <p class="hint">Layer ${entry.layer}, head ${entry.head}. Below are the <${Term} of="weight">weights<//> of all
      keys; choose another one, and all steps show its numbers.</p>
    <${Tokens} tokens=${keys} key_=${key} query=${entry.part === "cross" ? null : entry.query_position}
      weights=${entry.arrays.weights.data} onPick=${(position) => select({ key: position })}
      label="Keys and their weights" />
  </section>`;
}

/** The difference between the recomputed steps and the network's numbers. */
function Check({ differences }) {
  const names = { scores: "scores", pattern: "weights", z: "z", result: "output" };
  const said = Object.entries(names).map(([name, title]) => `${title} ${format(differences[name], 2)}`).join(", ");
  return html`<p class="hint">Every step is computed again in float64 from the network's own numbers before it.
    Largest differences from the network's own results, in its precision: ${said}.</p>`;
}
