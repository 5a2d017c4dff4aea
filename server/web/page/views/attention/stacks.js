// The parts of the model: encoder, decoder, and the attention between them; of a model with one stack, its mask.
import { useDifferenceName } from "../../core/compare.js";
import { html, useMemo } from "../../core/html.js";
import { clamp, shownToken, useCapabilities, useHead, useTokens } from "../../core/model.js";
import { select, useSelection } from "../../core/state.js";
import { Matrix } from "../../parts/matrix.js";
import { Answer } from "../../parts/problem.js";
import { Card } from "../../parts/tools.js";
import { HeadMatrix, HeadWords, TopKeys, useMarked } from "./head.js";
import { Facts, Kinds, maskWords } from "./kinds.js";
import { maskOf, useGrid } from "./numbers.js";

const PARTS = {
  encoder: ["Encoder", "The text attends to itself, in both directions."],
  decoder: ["Decoder", "The answer attends to its own tokens."],
  cross: ["Cross", "The answer attends to the text."],
};

export function Stacks() {
  const { kind } = useCapabilities();
  const { text } = useSelection();
  return html`<div class="stacks">
    ${!text ? html`<p class="lack">Write something above to see the attention between its words.</p>` : kind === "encoder-decoder"
      ? html`<${Pair} />` : html`<${OneStack} />`}
    <${Kinds} kind=${kind} />
  </div>`;
}

/** At the selected layer and head, within its stack. */
function usePart(part) {
  const place = useHead({ ofPart: part });
  const { answer, grid, copied } = useGrid(place);
  const difference = useDifferenceName(", ");
  const name = `${PARTS[part][0]}: layer ${place.layer}, head ${place.head}${difference}`;
  return { part, answer, grid, name, request: copied, marked: useMarked(grid) };
}

function Pair() {
  const { stacks } = useCapabilities();
  const { part } = useHead();
  const panels = Object.keys(PARTS).map(usePart);
  const { answer, grid, name, marked } = panels.find((panel) => panel.part === part);
  return html`<p>The encoder reads the text at once; the decoder writes, and attends to the encoder's text. Point at a
    word to see whom it looks at.</p>
    <h2>${name}</h2>
    <div class="stack-words"><${Answer} answer=${answer} minHeight="19rem">${() => grid &&
      html`<${HeadWords} grid=${grid} ...${marked} name=${name} />`}<//>
      ${grid && html`<${TopKeys} grid=${grid} ...${marked} />`}</div>
    <div class="panels">${panels.map((panel) => html`<${Panel} key=${panel.part} ...${panel} isChosen=${panel.part === part} />`)}</div>
    <div class="columns">${Object.entries(stacks).map(([stackName, stack]) =>
      html`<${Card} key=${stackName} title=${`The ${stackName}`}><${Facts} stack=${stack} /><//>`)}</div>`;
}

function Panel({ part, answer, grid, name, request, marked, isChosen }) {
  return html`<div class=${isChosen ? "chosen" : ""}><${Answer} answer=${answer} minHeight="12rem">${() => grid &&
    html`<${HeadMatrix} grid=${grid} name=${name} request=${request} pointed=${marked.pointed}
      selected=${isChosen ? marked.selected : null} onPick=${(pair) => select({ part, ...pair })}>
      <p class="hint">${PARTS[part][1]} ${isChosen ? html`<b>Shown above.</b>` : html`<button class="link"
        onClick=${() => select({ part })}>Show above</button>`}</p>
    <//>`}<//></div>`;
}

function OneStack() {
  const { kind, architecture, stacks } = useCapabilities();
  return html`<p class="lack">This model is ${kind === "decoder" ? "a decoder" : "an encoder"} alone (${architecture}): it has no
      second stack, so there is no attention between two texts.</p>
    <div class="columns">
      <${Card} title="Components of this model"><${Facts} stack=${stacks[kind]} /><//>
      <${Mask} />
    </div>`;
}

/** 1 where a query sees a key, blank where it does not. */
function Mask() {
  const { text, query, key } = useSelection();
  const { part, stack, layer } = useHead();
  const { tokens } = useTokens(text);
  const count = tokens.length;
  const hides = maskOf(part, stack, layer);
  const values = useMemo(
    () => Float32Array.from({ length: count * count }, (_, i) => (hides(Math.floor(i / count), i % count) ? -Infinity : 1)),
    [count, stack, layer],
  );
  const selected = useMemo(() => ({ row: clamp(query, count), column: clamp(key, count) }), [query, key, count]);
  const named = (position) => `${position} “${shownToken(tokens[position])}”`;
  const describe = (row, column) =>
    `${named(row)} ${hides(row, column) ? "does not see" : "sees"} ${named(column)}, ${Math.abs(row - column)} away`;
  const array = { data: values.map((value) => (value === 1 ? 1 : 0)), shape: [count, count] };
  return html`<${Card} title=${`Who may see whom in layer ${layer}`} save=${{ name: `mask-layer${layer}`,
      arrays: count ? [{ label: "mask", array, rows: tokens, columns: tokens }] : [] }}>
    <p class="hint">In this stack ${maskWords(stack)}. Filled cells are permitted, hatched ones are masked: their
      score becomes −∞ before the softmax.</p>
    ${count > 0 && html`<${Matrix} values=${values} rowNames=${tokens} columnNames=${tokens} rowTitle="query" columnTitle="key"
      low=${0} high=${1.6} maxCell=${22} label="The mask: which keys each query sees" selected=${selected}
      onPick=${({ row, column }) => select({ query: row, key: column })} describe=${describe}
      />`}
  <//>`;
}
