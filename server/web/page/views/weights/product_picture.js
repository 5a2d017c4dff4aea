// The picture of a matrix times a vector: the vector lies above the matrix, and each line adds up to one number beside it.
import { colourOf } from "../../core/colour.js";
import { html, useCallback, useMemo, useState } from "../../core/html.js";
import { format, largest } from "../../core/numbers.js";
import { useStore } from "../../core/store.js";
import { theme } from "../../core/theme.js";
import { bitmapOf, scaleOf } from "../../parts/matrix.js";
import { Picture } from "../../parts/picture.js";

const MARGIN = { left: 8, top: 22, right: 92, gap: 10, strip: 18 };

/** parts: see product.js; small: the name of the result. */
export function ProductPicture({ parts, letter, small, word, handle }) {
  const { d, width: lines, x, y, matrix } = parts;
  const [at, setAt] = useState(null);
  const mode = useStore(theme);
  const drawn = useMemo(() => {
    const turned = new Float32Array(d * lines);
    for (let i = 0; i < d; i += 1) for (let j = 0; j < lines; j += 1) turned[j * d + i] = matrix[i * lines + j];
    const strip = (values, rows, columns) => bitmapOf(values, rows, columns, { ...scaleOf(values, "diverging"), mode });
    return { x: strip(x, 1, d), matrix: strip(turned, lines, d), high: scaleOf(y, "diverging").high };
  }, [parts, mode]);
  const tall = Math.max(4, Math.min(16, Math.floor(420 / lines)));
  const top = MARGIN.top + MARGIN.strip + MARGIN.gap;
  const height = top + lines * tall + 22;
  const cellOf = (width) => Math.max(0.1, (width - MARGIN.left - MARGIN.right) / d);
  const draw = useCallback((context, { width, colours, mode: shade }) => {
    const wide = cellOf(width) * d;
    context.font = "600 12px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillStyle = colours.muted;
    context.fillText(`x: “${word}”, ${d} numbers`, MARGIN.left, 10);
    context.fillText(`W_${letter}, ${lines} lines of ${d} numbers`, MARGIN.left, height - 9);
    context.imageSmoothingEnabled = wide < d;
    context.drawImage(drawn.x, MARGIN.left, MARGIN.top, wide, MARGIN.strip);
    context.drawImage(drawn.matrix, MARGIN.left, top, wide, lines * tall);
    context.strokeStyle = colours.line;
    context.strokeRect(MARGIN.left, MARGIN.top, wide, MARGIN.strip);
    context.strokeRect(MARGIN.left, top, wide, lines * tall);
    const right = MARGIN.left + wide + 30;
    context.textAlign = "center";
    context.fillText(small, right + 11, top - 10);
    context.fillText("=", right - 14, top + (lines * tall) / 2);
    for (let j = 0; j < lines; j += 1) {
      context.fillStyle = colourOf(y[j], -drawn.high, drawn.high, "diverging", shade);
      context.fillRect(right, top + j * tall, 22, tall - (tall > 6 ? 1 : 0));
    }
    context.strokeRect(right, top, 22, lines * tall);
  }, [drawn, word, letter]);
  const overlay = useCallback((context, { width, colours }) => {
    if (!at) return;
    const cell = cellOf(width);
    context.lineWidth = 1.5;
    context.strokeStyle = colours.query;
    context.strokeRect(MARGIN.left, top + at.line * tall, cell * d, tall);
    context.strokeRect(MARGIN.left + cell * d + 30, top + at.line * tall, 22, tall);
    context.strokeStyle = colours.key;
    const wide = Math.max(cell, 2);
    context.strokeRect(MARGIN.left + at.column * cell, MARGIN.top, wide, MARGIN.strip);
    context.strokeRect(MARGIN.left + at.column * cell, top + at.line * tall, wide, tall);
    context.fillStyle = colours.ink;
    context.font = "12px ui-monospace, monospace";
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillText(format(y[at.line], 3), MARGIN.left + cell * d + 56, top + (at.line + 0.5) * tall);
  }, [at, parts]);
  const clamped = (value, count) => Math.max(0, Math.min(count - 1, value));
  const place = (line, column) => setAt({ line: clamped(line, lines), column: clamped(column, d) });
  const point = (px, py, width) => {
    if (px === null) setAt(null);
    else place(Math.floor((py - top) / tall), Math.floor((px - MARGIN.left) / cellOf(width)));
  };
  const said = ({ line, column }) => {
    const weight = matrix[column * lines + line];
    return `x[${column}] × W_${letter}[${column}, ${line}] = ${format(x[column])} × ${format(weight)} = ${
      format(x[column] * weight)}; all ${d} products${parts.bias ? " and the bias" : ""}: ${small}[${line}] = ${format(y[line])}`;
  };
  const told = largest(y.map(Math.abs), 4).map((line) => `${small}[${line}] = ${format(y[line])}`).join(", ");
  return html`<${Picture} draw=${draw} overlay=${overlay} height=${height} handle=${handle}
    label=${`W_${letter} times the vector of ${word}`} summary=${`Largest: ${told}.`} readout=${at ? said(at) : ""}
    onPoint=${point} onKey=${(key) => {
      const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[key] ?? [0, 0];
      if (!down && !right) return false;
      place((at?.line ?? -down) + down, (at?.column ?? -right) + right);
      return true;
    }} />`;
}
