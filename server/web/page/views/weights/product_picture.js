// The picture of a word's vector times a matrix: the vector is next to the matrix, and the sum of each column is
// below it.
import { colourOf } from "../../core/colour.js";
import { html, useCallback, useMemo, useState } from "../../core/html.js";
import { format, largest } from "../../core/numbers.js";
import { useStore } from "../../core/store.js";
import { theme } from "../../core/theme.js";
import { bitmapOf, clippedScale, scaleOf } from "../../parts/matrix.js";
import { fillFitted, Picture } from "../../parts/picture.js";

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
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  frames.forEach((frame) => context.strokeRect(...frame));
  context.font = "600 12px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "left";
  context.fillStyle = colours.muted;
  fillFitted(context, `x: “${names.word}”, times ${names.matrix}, ${d} × ${count}`, width - 2 * MARGIN.left, MARGIN.left, 10);
  context.fillText(`= ${names.result}, ${count} numbers`, left, below - 12);
}

/** The selected row and column, and the column's sum. */
function markProduct(context, { width, colours }, { layout, at, y }) {
  const { tall, left, tallAll, height, cellOf } = layout;
  const cell = cellOf(width);
  const thick = Math.max(tall, 2);
  const [x, top] = [left + at.column * cell, MARGIN.top + at.row * tall];
  context.lineWidth = 1.5;
  context.strokeStyle = colours.query;
  context.strokeRect(x, MARGIN.top, cell, tallAll);
  context.strokeRect(x, MARGIN.top + tallAll + RESULT.gap, cell, RESULT.height);
  context.strokeStyle = colours.key;
  context.strokeRect(MARGIN.left, top, MARGIN.strip, thick);
  context.strokeRect(x, top, cell, thick);
  context.fillStyle = colours.ink;
  context.font = "12px ui-monospace, monospace";
  context.textBaseline = "middle";
  context.textAlign = "center";
  context.fillText(format(y[at.column], 3), Math.max(left + 24, Math.min(width - 32, x + cell / 2)), height - 12);
}

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const clamped = (value, count) => Math.max(0, Math.min(count - 1, value));

/** parts: see product.js; names: {word, matrix, result}, as displayed. */
export function ProductPicture({ parts, names, handle }) {
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
  return html`<${Picture} draw=${draw} overlay=${overlay} height=${layout.height} handle=${handle}
    label=${`${names.matrix} times the vector of “${names.word}”`} summary=${`Largest: ${told}.`} readout=${at ? said(at) : ""}
    onPoint=${onPoint} onKey=${onKey} />`;
}
