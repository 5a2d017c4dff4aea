// Sources of additions to the word's vector: heads, source words, and single pairs of a word and a head.
import { html, useMemo, useState } from "../../core/html.js";
import { shownToken, useHead } from "../../core/model.js";
import { counted, format, indices, largest, sum } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { Bars } from "../../parts/bars.js";
import { FieldChoices } from "../../parts/choices.js";
import { ColourScale, Matrix, scaleOf } from "../../parts/matrix.js";
import { Tokens } from "../../parts/tokens.js";
import { Card } from "../../parts/tools.js";

const SHOWN = 10;

/** The items {name, value} with the largest values, the largest first, and one for all others. */
export function largestFirst(items, count) {
  const order = [...items].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const others = order.slice(count);
  const rest = { name: counted(others.length, "other"), value: sum(others.map(({ value }) => value)) };
  return others.length ? [...order.slice(0, count), rest] : order;
}

/** A number for each head as a map; a click chooses the head. values: row-major; rows: their names, which end with the layer. */
export function HeadMap({ values, rows, count, kind = "diverging", label }) {
  const [hovered, setHovered] = useState(null);
  const { layer, head } = useHead();
  const columns = useMemo(() => indices(count), [count]);
  const selected = useMemo(() => ({ row: rows.indexOf(String(layer)), column: head }), [rows, layer, head]);
  return html`<${Matrix} values=${values} rowNames=${rows} columnNames=${columns} rowTitle="layer" columnTitle="head"
      rowColour="ink" columnColour="ink" square=${false} maxCell=${44} kind=${kind} label=${label} selected=${selected}
      hovered=${hovered} onHover=${setHovered}
      onPick=${({ row, column }) => select({ layer: Number(rows[row].split(" ").at(-1)), head: column })}
      describe=${(row, column) => `layer ${rows[row]}, head ${column}: ${format(values[row * count + column])}`} />
    <${ColourScale} ...${scaleOf(values, kind)} />`;
}

export function ByHead({ entry, array, isLogit, isSigned }) {
  const [layers, heads, , keys] = array.shape;
  const sums = useMemo(() => Float32Array.from({ length: layers * heads }, (_, i) =>
    sum(array.data.subarray(i * keys, (i + 1) * keys))), [array]);
  const rows = useMemo(() => entry.layers.map(String), [array]);
  return html`<${Card} title="Which head?" save=${{ name: "contributions-by-head",
      arrays: [{ label: "sums by head", array: { data: sums, shape: [layers, heads] }, rows, columns: indices(heads) }] }}>
    <p class="hint">${entry.isDifference ? html`How much <b class="positive">more</b> or <b class="negative">less</b> each head adds.`
      : isLogit ? html`Each head <b class="positive">raises</b> or <b class="negative">lowers</b> the logit.`
      : "Lengths of each head's contributions, summed over the source words."} Click a head to choose it.</p>
    <${HeadMap} values=${sums} rows=${rows} count=${heads} kind=${isSigned ? "diverging" : "sequential"}
      label="Contribution of each layer and head" />
  <//>`;
}

export function BySource({ entry, array, isLogit, isSigned, keys, chosenKey }) {
  const { contributions_heads: whose } = useSelection();
  const { layer, head } = useHead();
  const sums = useMemo(() => sumsByKey(array, whose === "one" ? entry.layers.indexOf(layer) * array.shape[1] + head : null),
    [array, whose, layer, head]);
  const items = keys.map((token, key) => ({ key, name: `${shownToken(token)} (${key})`, value: sums[key], isOn: key === chosenKey }));
  const rows = largestFirst(items.filter(({ value }) => value !== 0), SHOWN); // masked keys add nothing
  const most = Math.max(...sums.map(Math.abs), 1e-30);
  const pick = (key) => select({ key });
  const through = html`<${FieldChoices} field="contributions_heads" label="Through"
    choices=${[["all", "all heads"], ["one", `layer ${layer}, head ${head}`]]} />`;
  return html`<${Card} title="Which word?" aside=${through}>
    <${Tokens} tokens=${keys} weights=${sums} largest=${most} isSigned=${isSigned}
      query=${entry.part === "cross" ? null : entry.query_positions[0]} key_=${chosenKey} onPick=${pick} write=${format}
      label="Source words" />
    <${Bars} rows=${rows} largest=${most} columns=${["from (position)", isLogit ? "logit" : "length"]}
      caption=${`Together ${format(sum(sums))}. Largest first.`}
      onPick=${(row) => rows[row].key !== undefined && pick(rows[row].key)} />
  <//>`;
}

function sumsByKey(array, only) {
  const keys = array.shape.at(-1);
  const sums = new Float64Array(keys);
  array.data.forEach((value, i) => {
    if (only === null || Math.floor(i / keys) === only) sums[i % keys] += value;
  });
  return sums;
}

export function Largest({ entry, array, isLogit, keys }) {
  const [, heads, , count] = array.shape;
  const rows = useMemo(() => largest(array.data.map(Math.abs), SHOWN).map((place) => {
    const at = Math.floor(place / count);
    const [layer, head, key] = [entry.layers[Math.floor(at / heads)], at % heads, place % count];
    return { layer, head, key, name: `${shownToken(keys[key])} (${key})`, note: `layer ${layer}, head ${head}`, value: array.data[place] };
  }), [array]);
  return html`<${Card} title="Largest contributions">
    <p class="hint">From one word, through one head. Click one to see in <i>Why</i> where its weight comes from.</p>
    <${Bars} rows=${rows.map(({ name, value, note }) => ({ name, value, note }))}
      columns=${["from (position)", isLogit ? "logit" : "length", "through"]}
      onPick=${(row) => {
        const { layer, head, key } = rows[row];
        select({ view: "why", layer, head, key });
      }} />
  <//>`;
}
