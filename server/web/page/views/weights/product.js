// One head's matrix times one word's vector: from the embedding space to the spaces of queries, keys and values.
import { colourOf } from "../../core/colour.js";
import { useLook } from "../../core/fetching.js";
import { html, useCallback, useMemo, useState } from "../../core/html.js";
import { inputOf, clamp, shownToken, useCapabilities, useHead } from "../../core/model.js";
import { format, grouped, indices, largest } from "../../core/numbers.js";
import { useSequences } from "../../core/sequences.js";
import { select, useSelection } from "../../core/state.js";
import { useStore } from "../../core/store.js";
import { theme } from "../../core/theme.js";
import { FieldChoices } from "../../parts/choices.js";
import { MONO, frame, write } from "../../parts/ink.js";
import { Matrix, bitmapOf, clippedScale, scaleOf } from "../../parts/matrix.js";
import { Picture, STEPS, fillFitted } from "../../parts/picture.js";
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
  const capabilities = useCapabilities();
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
  const body = { ...inputOf(selection, capabilities), points, positions: position ?? 0 };
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

/** {x, stream, scale, matrix, y, own, all, shape, gap} of the answers; null until all are available and consistent. */
function partsOf(entry, matrix, bias, path, head) {
  if (!entry || !matrix || !entry.arrays[path.out]) return null;
  const x = entry.arrays[path.normed ?? path.stream].data;
  const [d, width] = matrix.shape;
  if (x.length !== d) return null;
  const all = entry.arrays[path.out];
  const heads = all.data.length / width;
  const own = all.data.slice(head * width, (head + 1) * width);
  const y = Float64Array.from({ length: width }, (_, j) => {
    let sum = bias ? bias.data[j] : 0;
    for (let i = 0; i < d; i += 1) sum += x[i] * matrix.data[i * width + j];
    return sum;
  });
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

const MARGIN = { left: 8, top: 22, right: 8, gap: 10, strip: 18 };
const FOOT = 74; // CSS pixels below the matrix: the result, and its number
const RESULT = { gap: 26, height: 22 };

/** Layout: {d, count, tall, left, tallAll, height, cellOf(width)}; the matrix is [d, count], as in the API. */
function layoutOf({ d, width: count }) {
  const tall = Math.min(16, 420 / d);
  const left = MARGIN.left + MARGIN.strip + MARGIN.gap;
  const cellOf = (width) => Math.max(0.1, (width - left - MARGIN.right) / count);
  return { d, count, tall, left, tallAll: d * tall, height: MARGIN.top + d * tall + FOOT, cellOf };
}

/** {x, matrix, high}: the vector and the matrix as pixels, and the largest size of the result's numbers. */
function pixelsOf({ d, width: count, x, y, matrix }, mode) {
  const map = (values, columns) => bitmapOf(values, d, columns, { ...clippedScale(values), mode });
  return { x: map(x, 1), matrix: map(matrix, count), high: scaleOf(y, "diverging").high };
}

function drawProduct(context, { width, colours, mode }, { layout, pixels, y, names }) {
  const { d, count, left, tallAll, cellOf } = layout;
  const cell = cellOf(width);
  const below = MARGIN.top + tallAll + RESULT.gap;
  const frames = [[MARGIN.left, MARGIN.top, MARGIN.strip, tallAll], [left, MARGIN.top, cell * count, tallAll],
    [left, below, cell * count, RESULT.height]];
  context.imageSmoothingEnabled = tallAll < d || cell < 1;
  context.drawImage(pixels.x, ...frames[0]);
  context.drawImage(pixels.matrix, ...frames[1]);
  for (let j = 0; j < count; j += 1) {
    context.fillStyle = colourOf(y[j], -pixels.high, pixels.high, "diverging", mode);
    context.fillRect(left + j * cell, below, cell - (cell > 6 ? 1 : 0), RESULT.height);
  }
  frames.forEach((each) => frame(context, ...each, colours.line));
  context.font = "600 12px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "left";
  context.fillStyle = colours.muted;
  fillFitted(context, `x: “${names.word}”, times ${names.matrix}, ${d} × ${count}`, width - 2 * MARGIN.left, MARGIN.left, 10);
  context.fillText(`= ${names.result}, ${count} numbers`, left, below - 12);
}

function markProduct(context, { width, colours }, { layout, at, y }) {
  const { tall, left, tallAll, height, cellOf } = layout;
  const cell = cellOf(width);
  const thick = Math.max(tall, 2);
  const [x, top] = [left + at.column * cell, MARGIN.top + at.row * tall];
  frame(context, x, MARGIN.top, cell, tallAll, colours.query, 1.5);
  frame(context, x, MARGIN.top + tallAll + RESULT.gap, cell, RESULT.height, colours.query, 1.5);
  frame(context, MARGIN.left, top, MARGIN.strip, thick, colours.key, 1.5);
  frame(context, x, top, cell, thick, colours.key, 1.5);
  const middle = Math.max(left + 24, Math.min(width - 32, x + cell / 2));
  write(context, format(y[at.column], 3), middle, height - 12, colours.ink, { family: MONO, align: "center" });
}

const clamped = (value, count) => Math.max(0, Math.min(count - 1, value));

/**
 * A word's vector next to the matrix, and the sum of each column below it. parts: of partsOf; names: {word, matrix,
 * result}, as displayed.
 */
function ProductPicture({ parts, names }) {
  const { x, y, matrix } = parts;
  const [at, setAt] = useState(null);
  const mode = useStore(theme);
  const layout = useMemo(() => layoutOf(parts), [parts]);
  const pixels = useMemo(() => pixelsOf(parts, mode), [parts, mode]);
  const draw = useCallback((context, size) => drawProduct(context, size, { layout, pixels, y, names }),
    [layout, pixels, names.word, names.matrix]);
  const overlay = useCallback((context, size) => at && markProduct(context, size, { layout, at, y }), [at, layout]);
  const place = (row, column) => setAt({ row: clamped(row, layout.d), column: clamped(column, layout.count) });
  const onPoint = (px, py, width) => {
    if (px === null) setAt(null);
    else place(Math.floor((py - MARGIN.top) / layout.tall), Math.floor((px - layout.left) / layout.cellOf(width)));
  };
  const onKey = (key) => {
    const step = STEPS[key];
    if (step) place((at?.row ?? -step[0]) + step[0], (at?.column ?? -step[1]) + step[1]);
    return Boolean(step);
  };
  const said = ({ row, column }) => {
    const weight = matrix[row * layout.count + column];
    return `x[${row}] × ${names.matrix}[${row}, ${column}] = ${format(x[row])} × ${format(weight)} = ${
      format(x[row] * weight)}; all ${layout.d} products${parts.bias ? " and the bias" : ""}: ${names.result}[${column}] = ${
      format(y[column])}`;
  };
  const told = largest(y.map(Math.abs), 4).map((column) => `${names.result}[${column}] = ${format(y[column])}`).join(", ");
  return html`<${Picture} draw=${draw} overlay=${overlay} height=${layout.height}
    label=${`${names.matrix} times the vector of “${names.word}”`} summary=${`Largest: ${told}.`} readout=${at ? said(at) : ""}
    onPoint=${onPoint} onKey=${onKey} />`;
}
