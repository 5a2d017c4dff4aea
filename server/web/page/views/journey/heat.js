// Vectors and matrices as small canvases with a pixel for each number, cached.
import { colourIndex, colourTable } from "../../core/colour.js";
import { rangeOf } from "../flow/diagram.js";

const made = new WeakMap(); // of arrays of numbers: {key, canvas}

/** A canvas with `columns` pixels per line. range: {low, high} (default: of the numbers); isUpright: transposed. */
export function heatOf(values, columns, mode, { range = null, isUpright = false } = {}) {
  const key = `${columns} ${mode} ${isUpright} ${range?.high}`;
  const kept = made.get(values);
  if (kept?.key === key) return kept.canvas;
  const rows = Math.ceil(values.length / columns);
  const { low, high } = range ?? rangeOf(values, "diverging", columns);
  const table = colourTable("diverging", mode);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = isUpright ? [rows, columns] : [columns, rows];
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(canvas.width, canvas.height);
  values.forEach((value, i) => {
    const colour = colourIndex(value, low, high) * 3;
    pixels.data.set([...table.subarray(colour, colour + 3), 255], (isUpright ? (i % columns) * rows + Math.floor(i / columns) : i) * 4);
  });
  context.putImageData(pixels, 0, 0);
  made.set(values, { key, canvas });
  return canvas;
}
