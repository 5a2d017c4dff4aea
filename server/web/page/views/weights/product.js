// One head's matrix times one word's vector: from the embedding space to the spaces of queries, keys and values.
import { useLook } from "../../core/fetching.js";
import { html, useMemo } from "../../core/html.js";
import { clamp, shownToken, useCapabilities, useHead, useInput } from "../../core/model.js";
import { format, grouped, indices, sizeOf } from "../../core/numbers.js";
import { transposed, dot, rowOf } from "../../core/projection.js";
import { useSequences } from "../../core/sequences.js";
import { select, useSelection } from "../../core/state.js";
import { FieldChoices } from "../../parts/choices.js";
import { Matrix, clippedScale } from "../../parts/matrix.js";
import { Answer } from "../../parts/problem.js";
import { HeadPicker } from "../../parts/shared_bar.js";
import { ToolRow } from "../../parts/tool_row.js";
import { useLackOfWeights, useWeight, useWeightList, WeightCard } from "./asks.js";

const SPACES = { Q: ["query", "q", "content that the word looks for"], K: ["key", "k", "how the word is found"],
  V: ["value", "v", "content that the word passes on"] };

/** The points of a head's input and output: the stream, the norm before attention if there is one, and q, k or v. */
function usePath(letter) {
  const { points } = useCapabilities();
  const { prefix, stack, layer } = useHead();
  const full = (point) => `${prefix}blocks.${layer}.${point}`;
  const has = (point) => points.some(({ name, layers }) => name === full(point).replace(`.${layer}.`, ".{layer}.")
    && layers.includes(layer));
  const isBefore = ["pre", "sandwich"].includes(stack.norm_placement) && has("ln1.hook_out");
  return { stream: full("hook_resid_pre"), normed: isBefore ? full("ln1.hook_out") : null,
    scale: isBefore ? full("ln1.hook_scale") : null, out: full(`attn.hook_${SPACES[letter][1]}`),
    matrix: full(`attn.W_${letter}`), bias: full(`attn.b_${letter}`) };
}

export function Product() {
  const selection = useSelection();
  const lack = useLackOfWeights();
  const { part, head, keyHead } = useHead();
  const { weights_letter: letter } = selection;
  const path = usePath(letter);
  const sequences = useSequences();
  const tokens = sequences[part === "encoder" ? "encoder" : "decoder"];
  const [side] = SPACES[letter];
  const position = tokens.length ? clamp(letter === "Q" ? selection.query : selection.key, tokens.length) : null;
  const own = letter === "Q" ? head : keyHead;
  const canAsk = !lack && position !== null && part !== "cross";
  const points = [path.stream, ...(path.normed ? [path.normed, path.scale] : []), path.out];
  const body = { ...useInput(), points, positions: position ?? 0 };
  const trace = useLook(canAsk ? "v1/trace" : null, body);
  const matrix = useWeight(canAsk ? path.matrix : null, { head: own });
  const list = useWeightList();
  const hasBias = list.data?.data.some(({ name }) => name === path.bias);
  const bias = useWeight(canAsk && hasBias ? path.bias : null, { head: own });
  const parts = useMemo(() => partsOf(trace.entry, matrix.array, hasBias ? bias.array : null, path, own),
    [trace.entry, matrix.array, bias.array, path.out, own]);
  const answer = { ...trace, loading: trace.loading || matrix.loading || sequences.loading, error: trace.error ?? matrix.error };
  return html`<${WeightCard} title=${`x W_${letter} = ${SPACES[letter][1]}: a word's ${side}`} copy=${{ route: matrix.route ?? "" }}
      save=${parts && { name: `W_${letter}-x`, arrays: savedParts(parts, letter) }}>
    <${ToolRow}><${FieldChoices} field="weights_letter" label="Matrix"
      choices=${Object.entries(SPACES).map(([name, [what]]) => [name, `W_${name}: ${what}`])} /><//>
    <${HeadPicker} />
    ${part === "cross" && html`<p class="lack">Choose the encoder's or the decoder's own attention: here one text is read.</p>`}
    ${selection.text === "" && html`<p class="lack">Write a text above, and choose one of its words.</p>`}
    <${Answer} answer=${answer}>${() => parts && html`<${Told} parts=${parts} letter=${letter}
      word=${shownToken(tokens[position] ?? "")} own=${own} />`}<//>
  <//>`;
}

/** Null until all answers are available and consistent. */
function partsOf(entry, matrix, bias, path, head) {
  if (!entry || !matrix || !entry.arrays[path.out]) return null;
  const x = entry.arrays[path.normed ?? path.stream].data;
  const [d, width] = matrix.shape;
  if (x.length !== d) return null;
  const all = entry.arrays[path.out];
  const heads = all.data.length / width;
  const own = all.data.slice(head * width, (head + 1) * width);
  const turned = { data: transposed(matrix.data, d, width), shape: [width, d] };
  const y = Float64Array.from({ length: width }, (_, j) => dot(x, rowOf(turned, j)) + (bias ? bias.data[j] : 0));
  const gap = y.reduce((most, value, j) => Math.max(most, Math.abs(value - own[j])), 0);
  return { x, y, own, gap, heads, bias, all: all.data, d, width, matrix: matrix.data, stream: entry.arrays[path.stream].data,
    scale: path.scale ? entry.arrays[path.scale].data[0] : null };
}

function Told({ parts, letter, word, own }) {
  const { d, width, heads, gap, scale } = parts;
  const [side, small, meaning] = SPACES[letter];
  const { head, layer, numHeads, stack } = useHead();
  const precision = useCapabilities().compute_dtype;
  const isShared = letter !== "Q" && heads < numHeads;
  const names = useMemo(() => ({ heads: indices(heads), dims: indices(width) }), [heads, width]);
  const pick = ({ row }) => select({ head: isShared ? row * (numHeads / heads) : row });
  return html`<p>The vector of <b class=${letter === "Q" ? "query" : "key"}>“${word}”</b>, where
      block ${layer} begins, has ${grouped(d)} numbers. ${scale === null ? "This model's attention reads it as it is."
      : html`The block first divides it by its ${stack.norm === "rmsnorm" ? "root mean square" : "spread, the mean taken away"} of${" "}
        <span class="number">${format(scale)}</span> and multiplies each number by a gain of its own: that is x.`} W<sub>${letter}</sub> of
      head ${head} turns x into the ${width} numbers of ${small}, ${meaning}${parts.bias ? ", and adds a bias" : ""}. Each column of
      the picture is one number of ${small}: its products with x, added
      up.${isShared ? ` ${numHeads / heads} heads share key head ${own}.` : ""}</p>
    <${ProductPicture} parts=${parts} names=${{ word, matrix: `W_${letter}`, result: small }} />
    <p class="hint">Multiplied here, in the browser; the model's own ${small} differs by at
      most <span class="gap">${format(gap, 2)}</span>: it computes in ${precision}.</p>
    <h3>The same word in every head</h3>
    <p>Each line is the word's ${side} in one head's own space of ${width} numbers. Choose a line to open that head.</p>
    <${Matrix} values=${parts.all} rowNames=${names.heads} columnNames=${names.dims} rowTitle="head" columnTitle="d_head"
      kind="diverging" selected=${{ row: own, column: null }} onPick=${pick} square=${false} maxCell=${22}
      label=${`The ${side} of “${word}” in every head`}
      describe=${(row, column) => `head ${row}, ${small}[${column}]: ${format(parts.all[row * width + column])}`} />`;
}

function savedParts({ x, y, matrix, d, width }, letter) {
  return [{ label: "x", array: { data: x, shape: [1, d] } },
    { label: `W_${letter}`, array: { data: matrix, shape: [d, width] } },
    { label: SPACES[letter][1], array: { data: y, shape: [1, width] } }];
}

/** The picture's numbers with one row and column more: x to the left of the matrix, the sums of the columns below it. */
function gridOf({ d, width, x, y, matrix }) {
  const [ofX, ofMatrix, ofY] = [clippedScale(x).high, clippedScale(matrix).high, sizeOf(y)];
  const cellAt = (row, column) => {
    if (row === d) return column === 0 ? NaN : y[column - 1] / ofY;
    return column === 0 ? x[row] / ofX : matrix[row * width + column - 1] / ofMatrix;
  };
  return Float32Array.from({ length: (d + 1) * (width + 1) }, (_, i) => cellAt(Math.floor(i / (width + 1)), i % (width + 1)));
}

function ProductPicture({ parts, names }) {
  const { x, y, d, width, matrix } = parts;
  const values = useMemo(() => gridOf(parts), [parts]);
  const [rows, columns] = useMemo(() => [[...indices(d), names.result], ["x", ...indices(width)]], [parts]);
  const said = (row, column) => {
    if (row === d) return column === 0 ? names.result : `${names.result}[${column - 1}] = ${format(y[column - 1])}`;
    if (column === 0) return `x[${row}] = ${format(x[row])}`;
    const weight = matrix[row * width + column - 1];
    return `x[${row}] × ${names.matrix}[${row}, ${column - 1}] = ${format(x[row])} × ${format(weight)} = ${
      format(x[row] * weight)}; all ${d} products${parts.bias ? " and the bias" : ""}: ${names.result}[${column - 1}] = ${
      format(y[column - 1])}`;
  };
  return html`<${Matrix} values=${values} rowNames=${rows} columnNames=${columns} rowTitle="x" columnTitle=${names.matrix}
    kind="diverging" low=${-1} high=${1} square=${false} maxCell=${22} describe=${said}
    label=${`${names.matrix} times the vector of “${names.word}”`} />
    <p class="hint">The first column is x, the last line ${names.result}; x, the matrix and ${names.result} have scales of their own.</p>`;
}
