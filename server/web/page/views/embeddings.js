// Vectors of a few texts: their similarities, and their places in a plane.
import { useLook } from "../core/fetching.js";
import { html, useMemo, useState } from "../core/html.js";
import { useCapabilities } from "../core/model.js";
import { extent, format, indices, percent } from "../core/numbers.js";
import { gram, principalPlane, unitRows } from "../core/projection.js";
import { select, useSelection } from "../core/state.js";
import { Bars } from "../parts/bars.js";
import { FieldSelect, Select } from "../parts/choices.js";
import { Matrix } from "../parts/matrix.js";
import { Answer } from "../parts/problem.js";
import { DelayedText } from "../parts/shared_bar.js";
import { Term } from "../parts/term.js";
import { ToolRow } from "../parts/tool_row.js";
import { Card } from "../parts/tools.js";
import { Plane } from "./embeddings/plane.js";

// Three topics. Some models use the last token's vector for a text: each text ends with its topic word.
const EXAMPLES = [
  "He bowed before the old king",
  "They all loved the young queen",
  "The people loved the good prince",
  "The sheep were afraid of the wolf",
  "The hens ran away from the fox",
  "The dogs barked at the bear",
  "The storm sank the little ship",
  "The fisherman climbed into his boat",
];
const MOST_TEXTS = 200;
const SHOWN = 12; // neighbours of a text
const POOLED = { mean: "the mean of its tokens' vectors", last: "the last token's", cls: "the first token's" };

function compare(entries) {
  const count = entries.length;
  const width = entries[0].arrays.embedding.shape[0];
  const vectors = new Float32Array(count * width);
  entries.forEach((entry, row) => vectors.set(entry.arrays.embedding.data, row * width));
  const cosines = gram(unitRows(vectors, count, width), count, width);
  const plane = principalPlane(gram(Float64Array.from(vectors), count, width), count);
  return { vectors, count, width, cosines, plane };
}

export function View() {
  const selection = useSelection();
  const { embeddings } = useCapabilities();
  const lines = useMemo(() => {
    const written = selection.embeddings_texts.split("\n").map((line) => line.trim()).filter(Boolean);
    return written.length ? written : EXAMPLES;
  }, [selection.embeddings_texts]);
  const texts = lines.slice(0, MOST_TEXTS);
  const layer = selection.embeddings_layer === "" ? null : Number(selection.embeddings_layer);
  const pooling = selection.embeddings_pooling || embeddings.defaults.pooling;
  // not named in requests: it may include dense layers, which a pooling given by name does not
  const named = selection.embeddings_pooling ? { pooling } : {};
  const body = { input: texts, ...named, ...(layer === null ? {} : { layer }) };
  const answer = useLook("v1/embeddings", body);
  return html`<div class="embeddings">
    <p>Each text becomes one <${Term} of="vector" /> by <${Term} of="pooling" />: ${POOLED[pooling]}. Texts that the model finds
      alike point the same way: their <${Term} of="cosine" /> is near 1.</p>
    <${ToolRow}>
      <${FieldSelect} field="embeddings_layer" label="Layer" options=${[["", "after the final norm"],
        ...indices(embeddings.layers).map((name, i) => [i, i === 0 ? "0, the embedding" : name])]} />
      <${Select} label="Pooling" value=${pooling}
        options=${embeddings.poolings.filter((name) => name !== "none").map((name) => [name, name])}
        onPick=${(value) => select({ embeddings_pooling: value === embeddings.defaults.pooling ? "" : value })} />
    <//>
    <${DelayedText} label=${`Texts, one a line (${texts.length})`} rows=${5}
      value=${selection.embeddings_texts || EXAMPLES.join("\n")}
      keepsLines=${true} onText=${(value) => select({ embeddings_texts: value === EXAMPLES.join("\n") ? "" : value })} />
    ${lines.length > MOST_TEXTS && html`<p class="hint">Only the first ${MOST_TEXTS} of ${lines.length} texts are compared.</p>`}
    <${Answer} answer=${answer} minHeight="35rem">${(entries) => html`<${Comparison} entries=${entries} body=${answer.asked} />`}<//>
  </div>`;
}

function Comparison({ entries, body }) {
  const { vectors, count, width, cosines, plane } = useMemo(() => compare(entries), [entries]);
  const names = body.input;
  const [chosen, setChosen] = useState(0);
  const at = Math.min(chosen, count - 1);
  const others = useMemo(
    () =>
      names
        .map((name, i) => ({ name, value: cosines[at * count + i], key: i }))
        .filter(({ key }) => key !== at)
        .sort((a, b) => b.value - a.value)
        .slice(0, SHOWN),
    [names, cosines, at, count],
  );
  const [least] = extent(cosines);
  const low = Math.min(least, 0.99); // otherwise equal texts have no colour range
  const arrays = [{ label: "vectors", array: { data: vectors, shape: [count, width] }, rows: names },
    { label: "places", lists: plane.points, rows: names, columns: ["right", "up"] }];
  return html`<div class="columns">
    <${Card} title="Cosines" copy=${{ route: "v1/embeddings", body }} save=${{ name: "cosines",
        arrays: [{ label: "cosines", array: { data: cosines, shape: [count, count] }, rows: names, columns: names }] }}>
      <${Matrix} values=${cosines} rowNames=${names} columnNames=${names} low=${low} high=${1}
        label=${`Cosines of ${count} texts with each other`} selected=${{ row: at, column: null }} onPick=${({ row }) => setChosen(row)}
        describe=${(row, column) => `${format(cosines[row * count + column])}: “${names[row]}” and “${names[column]}”`} />
      <p class="hint">The smallest cosine is ${format(least, 3)}; the colours go from ${format(low, 3)} to 1.</p>
    <//>
    <${Card} title="In a plane" save=${{ name: "texts", arrays }}>
      <${Plane} points=${plane.points} names=${names} chosen=${at} onPick=${setChosen} />
      <p class="hint">The two directions of most variance
        (<${Term} of="principal component">principal components<//>) show${" "}
        ${percent(plane.explained[0])} and ${percent(plane.explained[1])} of it: points near each
          other may still differ in the other ${width - 2} dimensions.</p>
    <//>
    <${Card} title=${`Nearest to “${names[at]}”`}>
      <${Bars} rows=${others} columns=${["text", "cosine"]} largest=${1} onPick=${(row) => setChosen(others[row].key)} />
    <//>
  </div>`;
}
