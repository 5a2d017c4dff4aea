// Sources of additions to the word's vector: heads, source words, and single pairs of a word and a head.
import { html, useMemo, useRef, useState } from "../../core/html.js";
import { shownToken, useHead } from "../../core/model.js";
import { counted, descending, format } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { Bars } from "../../parts/bars.js";
import { Choices } from "../../parts/choices.js";
import { ColourScale, Matrix, scaleOf } from "../../parts/matrix.js";
import { Tokens } from "../../parts/tokens.js";
import { SaveMenu } from "../../parts/tools.js";

const SHOWN = 10;
const total = (values) => values.reduce((sum, value) => sum + value, 0);
const numbers = (count) => Array.from({ length: count }, (_, i) => String(i));
const bySize = (values) => [...descending(values.map(Math.abs))];

/** Layers x heads, summed over the source words. */
export function ByHead({ entry, array, isLogit, isSigned }) {
  const [hovered, setHovered] = useState(null);
  const { layer, head } = useHead();
  const picture = useRef(null);
  const [layers, heads, , keys] = array.shape;
  const sums = useMemo(() => Float32Array.from({ length: layers * heads }, (_, i) =>
    total(array.data.subarray(i * keys, (i + 1) * keys))), [array]);
  const names = useMemo(() => [entry.layers.map(String), numbers(heads)], [array]);
  const kind = isSigned ? "diverging" : "sequential";
  const selected = useMemo(() => ({ row: entry.layers.indexOf(layer), column: head }), [entry, layer, head]);
  return html`<section class="card"><header><h2>Which head?</h2>
      <${SaveMenu} picture=${picture} name="contributions-by-head"
        arrays=${[{ label: "sums by head", array: { data: sums, shape: [layers, heads] }, rows: names[0],
        columns: names[1] }]} /></header>
    <p class="hint">${entry.isDifference ? "How much more (green) or less (pink) each head adds than it did."
      : isLogit ? "Contribution of each head to the logit: green raises it, pink lowers it."
      : "Lengths of each head's contributions, summed over the source words."} Click a head to choose it.</p>
    <${Matrix} values=${sums} rowNames=${names[0]} columnNames=${names[1]} rowTitle="layer" columnTitle="head"
      rowColour="ink" columnColour="ink" square=${false} maxCell=${44}
      kind=${kind} label="Contribution of each layer and head" selected=${selected} hovered=${hovered}
        onHover=${setHovered} handle=${picture}
      onPick=${({ row, column }) => select({ layer: entry.layers[row], head: column })}
        describe=${(row, column) => `layer ${entry.layers[row]}, head ${column}: ${format(sums[row * heads + column])}`} />
    <${ColourScale} ...${scaleOf(sums, kind)} />
  </section>`;
}

/** By source word, for all heads or the selected one. */
export function BySource({ entry, array, isLogit, isSigned, keys, chosenKey }) {
  const { contributions_heads: whose } = useSelection();
  const { layer, head } = useHead();
  const sums = useMemo(() => sumsByKey(array, whose === "one" ? entry.layers.indexOf(layer) * array.shape[1] + head : null),
    [array, whose, layer, head]);
  const order = bySize(sums).filter((key) => sums[key] !== 0); // masked keys add nothing
  const rows = order.slice(0, SHOWN).map((key) => ({ key, name: `${shownToken(keys[key])} (${key})`, value: sums[key],
    isOn: key === chosenKey }));
  const others = order.slice(SHOWN);
  if (others.length) rows.push({ key: "others", name: counted(others.length, "other"),
    value: total(others.map((key) => sums[key])) });
  const pick = (key) => select({ key });
  return html`<section class="card"><header><h2>Which word?</h2>
      <${Choices} label="Through" value=${whose} onPick=${(value) => select({ contributions_heads: value })}
        choices=${[["all", "all heads"], ["one", `layer ${layer}, head ${head}`]]} /></header>
    <${Tokens} tokens=${keys} weights=${sums} largest=${Math.max(...sums.map(Math.abs), 1e-30)} isSigned=${isSigned}
      query=${entry.part === "cross" ? null : entry.query_positions[0]} key_=${chosenKey} onPick=${pick} write=${format}
      label="Source words" />
    <${Bars} rows=${rows} largest=${Math.max(...order.slice(0, 1).map((key) => Math.abs(sums[key])), 1e-30)}
      columns=${["from (position)", isLogit ? "logit" : "length"]}
      caption=${`Together ${format(total(sums))}. Largest first.`}
      onPick=${(row) => Number.isInteger(rows[row].key) && pick(rows[row].key)} />
  </section>`;
}

/** Sums over heads [key], or only the row of the head `only`. */
function sumsByKey(array, only) {
  const keys = array.shape.at(-1);
  const sums = new Float64Array(keys);
  array.data.forEach((value, i) => {
    if (only === null || Math.floor(i / keys) === only) sums[i % keys] += value;
  });
  return sums;
}

/** The largest single additions: from one word through one head. */
export function Largest({ entry, array, isLogit, keys }) {
  const [, heads, , count] = array.shape;
  const rows = useMemo(
    () =>
      bySize(array.data).slice(0, SHOWN).map((place) => {
        const at = Math.floor(place / count);
        const [layer, head, key] = [entry.layers[Math.floor(at / heads)], at % heads, place % count];
        return { layer, head, key, name: `${shownToken(keys[key])} (${key})`, note: `layer ${layer}, head ${head}`,
          value: array.data[place] };
      }),
    [array],
  );
  return html`<section class="card"><header><h2>Largest contributions</h2></header>
    <p class="hint">From one word, through one head. Click one to see in <i>Why</i> where its weight comes from.</p>
    <${Bars} rows=${rows.map(({ name, value, note }) => ({ name, value, note }))}
      columns=${["from (position)", isLogit ? "logit" : "length", "through"]}
      onPick=${(row) => select({ view: "why", layer: rows[row].layer, head: rows[row].head, key: rows[row].key })} />
  </section>`;
}
