// The picture of a matrix times a vector: the vector lies above the matrix, and each line adds up to one number beside it.
import { colourOf } from "../../core/colour.js";
import { html, useCallback, useMemo, useState } from "../../core/html.js";
import { format, largest } from "../../core/numbers.js";
import { useStore } from "../../core/store.js";
import { theme } from "../../core/theme.js";
import { bitmapOf, scaleOf } from "../../parts/matrix.js";
import { Picture } from "../../parts/picture.js";

const MARGIN = { left: 8, top: 22, right: 92, gap: 10, strip: 18 };

/** Where things lie: {lines, d, tall, top, height, cellOf(width)}. */
function layoutOf({ d, width: lines }) {
  const tall = Math.max(4, Math.min(16, Math.floor(420 / lines)));
  const top = MARGIN.top + MARGIN.strip + MARGIN.gap;
  const cellOf = (width) => Math.max(0.1, (width - MARGIN.left - MARGIN.right) / d);
  return { d, lines, tall, top, height: top + lines * tall + 22, cellOf };
}

/** {x, matrix, high}: the vector and the turned matrix as pixels, and the largest size of the result's numbers. */
function pixelsOf({ d, width: lines, x, y, matrix }, mode) {
  const turned = new Float32Array(d * lines);
  for (let i = 0; i < d; i += 1) for (let j = 0; j < lines; j += 1) turned[j * d + i] = matrix[i * lines + j];
  const map = (values, rows) => bitmapOf(values, rows, d, { ...scaleOf(values, "diverging"), mode });
  return { x: map(x, 1), matrix: map(turned, lines), high: scaleOf(y, "diverging").high };
}

function drawProduct(context, { width, colours, mode }, { layout, pixels, y, names }) {
  const { d, lines, tall, top, height, cellOf } = layout;
  const wide = cellOf(width) * d;
  const right = MARGIN.left + wide + 30;
  const frames = [[MARGIN.left, MARGIN.top, wide, MARGIN.strip], [MARGIN.left, top, wide, lines * tall],
    [right, top, 22, lines * tall]];
  context.imageSmoothingEnabled = wide < d;
  context.drawImage(pixels.x, ...frames[0]);
  context.drawImage(pixels.matrix, ...frames[1]);
  for (let j = 0; j < lines; j += 1) {
    context.fillStyle = colourOf(y[j], -pixels.high, pixels.high, "diverging", mode);
    context.fillRect(right, top + j * tall, 22, tall - (tall > 6 ? 1 : 0));
  }
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  frames.forEach((frame) => context.strokeRect(...frame));
  context.font = "600 12px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "left";
  context.fillStyle = colours.muted;
  context.fillText(`x: “${names.word}”, ${d} numbers`, MARGIN.left, 10);
  context.fillText(`${names.matrix}, ${lines} lines of ${d} numbers`, MARGIN.left, height - 9);
  context.textAlign = "center";
  context.fillText(names.result, right + 11, top - 10);
  context.fillText("=", right - 14, top + (lines * tall) / 2);
}

/** The chosen line and column, and the line's sum. */
function markProduct(context, { width, colours }, { layout, at, y }) {
  const { d, tall, top, cellOf } = layout;
  const cell = cellOf(width);
  const thick = Math.max(cell, 2);
  context.lineWidth = 1.5;
  context.strokeStyle = colours.query;
  context.strokeRect(MARGIN.left, top + at.line * tall, cell * d, tall);
  context.strokeRect(MARGIN.left + cell * d + 30, top + at.line * tall, 22, tall);
  context.strokeStyle = colours.key;
  context.strokeRect(MARGIN.left + at.column * cell, MARGIN.top, thick, MARGIN.strip);
  context.strokeRect(MARGIN.left + at.column * cell, top + at.line * tall, thick, tall);
  context.fillStyle = colours.ink;
  context.font = "12px ui-monospace, monospace";
  context.textBaseline = "middle";
  context.textAlign = "left";
  context.fillText(format(y[at.line], 3), MARGIN.left + cell * d + 56, top + (at.line + 0.5) * tall);
}

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const clamped = (value, count) => Math.max(0, Math.min(count - 1, value));

/** parts: see product.js; names: {word, matrix, result}, as they are written. */
export function ProductPicture({ parts, names, handle }) {
  const { x, y, matrix } = parts;
  const [at, setAt] = useState(null);
  const mode = useStore(theme);
  const layout = useMemo(() => layoutOf(parts), [parts]);
  const pixels = useMemo(() => pixelsOf(parts, mode), [parts, mode]);
  const draw = useCallback((context, size) => drawProduct(context, size, { layout, pixels, y, names }),
    [layout, pixels, names.word, names.matrix]);
  const overlay = useCallback((context, size) => at && markProduct(context, size, { layout, at, y }), [at, layout]);
  const place = (line, column) => setAt({ line: clamped(line, layout.lines), column: clamped(column, layout.d) });
  const onPoint = (px, py, width) => {
    if (px === null) setAt(null);
    else place(Math.floor((py - layout.top) / layout.tall), Math.floor((px - MARGIN.left) / layout.cellOf(width)));
  };
  const onKey = (key) => {
    const step = STEPS[key];
    if (step) place((at?.line ?? -step[0]) + step[0], (at?.column ?? -step[1]) + step[1]);
    return Boolean(step);
  };
  const said = ({ line, column }) => {
    const weight = matrix[column * layout.lines + line];
    return `x[${column}] × ${names.matrix}[${column}, ${line}] = ${format(x[column])} × ${format(weight)} = ${
      format(x[column] * weight)}; all ${layout.d} products${parts.bias ? " and the bias" : ""}: ${names.result}[${line}] = ${
      format(y[line])}`;
  };
  const told = largest(y.map(Math.abs), 4).map((line) => `${names.result}[${line}] = ${format(y[line])}`).join(", ");
  return html`<${Picture} draw=${draw} overlay=${overlay} height=${layout.height} handle=${handle}
    label=${`${names.matrix} times the vector of ${names.word}`} summary=${`Largest: ${told}.`} readout=${at ? said(at) : ""}
    onPoint=${onPoint} onKey=${onKey} />`;
}
