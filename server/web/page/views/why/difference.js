// The difference of one weight: each step's number in both answers, and their difference.
import { sideNames, useDifferenceName } from "../../core/compare.js";
import { html, useMemo } from "../../core/html.js";
import { clamp, sidesOf } from "../../core/model.js";
import { format, percent, sizeOf } from "../../core/numbers.js";
import { lengthOf } from "../../core/projection.js";
import { useSelection } from "../../core/state.js";
import { Scrolled } from "../../parts/scrolled.js";
import { Table } from "../../parts/table.js";
import { Card } from "../../parts/tools.js";
import { Keys, Word, partsOf } from "./pair.js";

export function Difference({ entry, body }) {
  const selection = useSelection();
  const name = useDifferenceName();
  const { keys, queries } = sidesOf(entry, entry.part);
  const key = clamp(selection.key, keys.length);
  const [before, after] = useMemo(() => [entry.before, entry.after].map((one) => {
    const sides = sidesOf(one, one.part);
    return partsOf(one, sides.queries, sides.keys, key);
  }), [entry, key]);
  const { weights } = entry.arrays;
  const pair = { ...after, queries, keys };
  const title = html`How the weight changed from <${Word} pair=${pair} side="query" /> to <${Word} pair=${pair} side="key" />: ${name}`;
  return html`<${Card} class="why-head why-difference" title=${title} copy=${{ route: "v1/explain", body }}
      save=${{ name: "why-difference", arrays: [{ label: "weights", array: weights, rows: ["weight"], columns: keys }] }}>
    <p class="hint">Layer ${entry.layer}, head ${entry.head}. Below is how much the weight of each key changed; choose
      another one to see its steps. To see one answer step by step, show one side.</p>
    <${Keys} entry=${entry} keys=${keys} key_=${key} largest=${sizeOf(weights.data)} isSigned write=${format}
      label="Keys and how their weights changed" />
    <${Scrolled} label="The steps"><${Table} aria-label="Each step in both answers"
      names=${["step", ...sideNames(selection), "difference"]} rows=${STEPS.map((step) => rowOf(step, before, after))} /><//>
    <p class="hint">Of vectors the first two numbers are their lengths, and the third is the length of their difference.</p>
  <//>`;
}

const STEPS = [
  { title: "query q", vector: "q" },
  { title: "key k", vector: "k" },
  { title: "q · k", number: "dot" },
  { title: "score: scaled and masked", number: "score" },
  { title: "weight", number: "weight", write: percent },
  { title: "value v", vector: "v" },
  { title: "z: all weighted values", vector: "z" },
  { title: "z W_O: the addition", vector: "output" },
];

function rowOf({ title, number, vector, write = format }, before, after) {
  const of = (parts) => (number ? parts[number] : lengthOf(parts[vector]));
  const apart = number ? after[number] - before[number] : lengthOf(after[vector].map((value, i) => value - before[vector][i]));
  return [title, ...[of(before), of(after), apart].map((value) => write(value))];
}
