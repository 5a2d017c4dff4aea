// Vectors and matrices as small canvases with a pixel for each number, cached.
import { transposed } from "../../core/projection.js";
import { bitmapOf } from "../../parts/matrix.js";
import { rangeOf } from "../flow/diagram.js";

const made = new WeakMap(); // of arrays of numbers: {key, canvas}

export function heatOf(values, columns, mode, { range = null, isUpright = false } = {}) {
  const key = `${columns} ${mode} ${isUpright} ${range?.high}`;
  const kept = made.get(values);
  if (kept?.key === key) return kept.canvas;
  const rows = Math.ceil(values.length / columns);
  const look = { ...(range ?? rangeOf(values, "diverging", columns)), kind: "diverging", mode };
  const canvas = isUpright ? bitmapOf(transposed(values, rows, columns), columns, rows, look) : bitmapOf(values, rows, columns, look);
  made.set(values, { key, canvas });
  return canvas;
}
