// Angles between vectors: the matrix of their cosines next to the identity, which it equals for orthogonal vectors.
import { useAnswer } from "../../core/fetching.js";
import { html, useMemo, useState } from "../../core/html.js";
import { clamp, useHead } from "../../core/model.js";
import { format, grouped, indices, sum } from "../../core/numbers.js";
import { gram, transposed, unitRows } from "../../core/projection.js";
import { select, useSelection } from "../../core/state.js";
import { piecesOf } from "../../core/texts.js";
import { FieldChoices } from "../../parts/choices.js";
import { ColourScale, Matrix } from "../../parts/matrix.js";
import { Answer } from "../../parts/problem.js";
import { DelayedText } from "../../parts/shared_bar.js";
import { LayerPicker, useLackOfWeights, useWeight, WeightCard } from "./asks.js";

const MOST = 48; // vectors
const askPieces = (text) => piecesOf(text);

export const Angles = () => (useSelection().weights_between === "words" ? html`<${OfWords} />` : html`<${OfNeurons} />`);

const Between = () => html`<div class="toolbar"><${FieldChoices} field="weights_between" label="Between"
    choices=${[["words", "words (rows of W_E)"], ["vectors", "neurons (columns of W_in)"]]} />
  <${FieldChoices} field="weights_less" label="Shown" choices=${[[false, "WᵀW"], [true, "WᵀW − I"]]} /></div>`;

function OfWords() {
  const { weights_words: words } = useSelection();
  const lack = useLackOfWeights();
  const pieces = useAnswer(askPieces, lack || !words.trim() ? null : ` ${words.trim()}`, null);
  const chosen = useMemo(() => unique(pieces.data), [pieces.data]);
  const weight = useWeight(chosen.ids.length ? "W_E" : null, { rows: chosen.ids.join(",") });
  return html`<${Shown} title="Right angles: the vectors of words" weight=${weight} names=${chosen.tokens} error=${pieces.error}
    turned=${false}><${DelayedText} label="Words" rows=${2} value=${words}
      onText=${(value) => select({ weights_words: value })} /><//>`;
}

function unique(pieces) {
  const tokens = [];
  const ids = [];
  pieces?.ids.forEach((id, i) => {
    if (ids.includes(id) || ids.length === MOST) return;
    ids.push(id);
    tokens.push(pieces.tokens[i]);
  });
  return { ids, tokens };
}

function OfNeurons() {
  const { weights_column: column } = useSelection();
  const lack = useLackOfWeights();
  const { prefix, stack, layer } = useHead({ ofAnyBlock: true });
  const count = Math.min(MOST, stack.intermediate_size);
  const first = clamp(Math.max(0, column), Math.max(1, stack.intermediate_size - count + 1));
  const weight = useWeight(lack ? null : `${prefix}blocks.${layer}.mlp.W_in`, { columns: `${first}:${first + count}` });
  const names = useMemo(() => indices(count, first), [first, count]);
  return html`<${Shown} title="Right angles: inputs of neurons" weight=${weight} names=${names} turned=${true}>
    <div class="toolbar"><${LayerPicker} />
      <span class="hint">neurons ${first} to ${first + count - 1} of ${grouped(stack.intermediate_size)}</span></div><//>`;
}

/** Its rows are the vectors, or its columns if `turned`. */
function Shown({ title, weight, names, turned, error, children }) {
  const { weights_less: isLess } = useSelection();
  const found = useMemo(() => (weight.array ? cosinesOf(weight.array, turned, isLess) : null), [weight.array, turned, isLess]);
  const isReady = found?.count === names.length;
  const array = isReady && { data: found.data, shape: [found.count, found.count] };
  return html`<${WeightCard} title=${title} copy=${{ route: weight.route ?? "" }}
      save=${isReady && { name: "cosines-of-vectors", arrays: [{ label: "cosines", array, rows: names, columns: names }] }}>
    <p>Each vector is scaled to length 1; then W<sup>T</sup>W holds the cosine of every pair. Orthogonal vectors
      have 0, and if all were orthogonal, W<sup>T</sup>W would be the identity I: 1 on the diagonal, 0 elsewhere.
      Words or neurons of similar meaning are mostly nearer: their cosine is above 0.</p>
    <${Between} />${children}
    <${Answer} answer=${{ ...weight, error: error ?? weight.error }}>${() => isReady && html`<${Grid} found=${found} names=${names}
      isLess=${isLess} />`}<//>
  <//>`;
}

/** Cosines of all pairs, minus the identity if set; statistics off the diagonal. */
function cosinesOf({ data, shape: [rows, columns] }, turned, isLess) {
  const [count, dimension] = turned ? [columns, rows] : [rows, columns];
  const vectors = turned ? transposed(data, rows, columns) : data;
  const cosines = gram(unitRows(vectors, count, dimension), count, dimension);
  const sizes = cosines.map((cosine, i) => (i % (count + 1) ? Math.abs(cosine) : 0)); // 0 on the diagonal
  const found = Float32Array.from(cosines, (cosine, i) => (isLess && i % (count + 1) === 0 ? cosine - 1 : cosine));
  const mean = count > 1 ? sum(sizes) / (count * (count - 1)) : 0;
  return { data: found, count, dimension, largest: Math.max(...sizes, 0), mean };
}

function Grid({ found, names, isLess }) {
  const [chosen, setChosen] = useState(null);
  const describe = (row, column) => `${names[row].trim()} · ${names[column].trim()}: ${format(found.data[row * found.count + column])}`;
  return html`<dl class="facts"><dt>largest |cosine| of a pair</dt><dd><b class="number">${format(found.largest)}</b>: that
        is max |W<sup>T</sup>W − I|</dd>
      <dt>mean |cosine|</dt><dd><b class="number">${format(found.mean)}</b>; of random directions
        in ${grouped(found.dimension)} dimensions about √(2/π) / √${grouped(found.dimension)} = ${
        format(Math.sqrt(2 / Math.PI / found.dimension))}</dd></dl>
    <${ColourScale} low=${-1} high=${1} kind="diverging" />
    <${Matrix} values=${found.data} rowNames=${names} columnNames=${names} rowTitle="" columnTitle="" kind="diverging" low=${-1}
      high=${1} selected=${chosen} onPick=${setChosen} describe=${describe}
      maxCell=${44} label=${`Cosines of ${found.count} vectors${isLess ? ", less the identity" : ""}`} />`;
}
