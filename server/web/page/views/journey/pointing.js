// The word, or pair of words, at a point of the journey's picture, and its numbers in a line.
import { shownToken } from "../../core/model.js";
import { format, percent } from "../../core/numbers.js";

const BY_ROW = ["tokens", "embed", "position", "pre", "norm", "q"];
const BY_COLUMN = ["k", "bars", "v", "weighted"];

/** {query} or {key} or both, at a place of the picture; null without a word there. */
export function foundAt({ pen, layout, data }, left, top) {
  if (!pen) return null;
  const [x, y] = [(left - pen.left) / pen.scale, (top - pen.top) / pen.scale];
  const isIn = (name) => {
    const box = layout.boxes[name];
    return box && x >= box.x && x < box.x + box.width && y >= box.y && y < box.y + box.height;
  };
  const row = data.shown[Math.floor(y / layout.row)];
  const column = data.shown[Math.floor((x - layout.boxes.grid.x) / layout.row)];
  if (isIn("grid")) return { query: row, key: column };
  if (BY_ROW.some(isIn)) return { query: row };
  return BY_COLUMN.some(isIn) ? { key: column } : null;
}

export function saysOf({ data, products, weights }, { query, key }) {
  const word = (position) => `${position} “${shownToken(data.tokens[position])}”`;
  if (key === undefined) return word(query);
  const cell = data.shown.indexOf(query ?? data.query) * products.numKeys + key;
  const score = products.isMasked[cell] ? "−∞, masked" : format(products.scores[cell]);
  const numbers = `q · k ${format(products.dots[cell])}, score ${score}, weight ${percent(weights[cell])}`;
  return `${word(query ?? data.query)} → ${word(key)}: ${numbers}`;
}
