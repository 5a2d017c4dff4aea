// Drawing of the journey's first part: text, tokens, vectors, earlier blocks, the norm; and names of boxes.
import { shownToken } from "../../core/model.js";
import { format } from "../../core/numbers.js";
import { heatOf } from "./heat.js";
import { NAMES } from "./layout.js";
import { MONO } from "../../parts/ink.js";
import { fitted, linesOf } from "./pen.js";

const FAR = 0.33; // CSS pixels per unit of the scene: below it each part has one name
const CLEAR = 12; // CSS pixels from the middle of a title to its box

const toneOf = (data, position) => (position === data.query ? "query" : position === data.key ? "key" : "ink");

/** One a line, right-aligned at x, or with isUpright above the columns; where lines are close only some. from: none is nearer. */
export function paintNames(pen, { data, layout: { row } }, x, y, { isUpright = false, room = NAMES - 8, from = 0 } = {}) {
  const step = Math.max(1, Math.ceil(12 / (row * pen.scale)));
  data.shown.forEach((position, i) => {
    const tone = isUpright && position !== data.key ? "ink" : toneOf(data, position);
    const at = (i + 0.5) * row;
    if ((i % step && tone === "ink") || at < from || pen.scale < FAR) return;
    pen.text(shownToken(data.tokens[position]), isUpright ? x + at : x, isUpright ? y : at, {
      size: Math.min(17, row * 0.6), align: isUpright ? "left" : "right", colour: tone, family: MONO, weight: tone === "ink" ? "" : "600 ",
      room, isUpright, isAlways: tone !== "ink",
    });
  });
}

/** Above a box; part: the title at a small zoom. */
export function paintTitle(pen, box, title, { shape = "", tone = "ink", gap = 16, part = "" } = {}) {
  if (pen.scale < FAR) return paintPart(pen, box, part);
  const y = box.y - Math.max(CLEAR / pen.scale, Math.min(gap, 2 * CLEAR / pen.scale)); // letters do not grow with the box
  pen.text(title, box.x, y, { size: 21, colour: tone, weight: "600 ", isAlways: true });
  return pen.text(shape, box.x + box.width, y, { size: 13, align: "right", colour: "muted", family: MONO });
}

export function paintPart(pen, box, name) {
  if (pen.scale < FAR) pen.text(name, box.x, box.y - CLEAR / pen.scale, { size: 46, weight: "600 ", isAlways: true });
}

const DIGITS = [40, 14]; // CSS pixels of a cell with space for its number

export function paintCells(pen, box, rows, columns, valueAt) {
  const [wide, tall] = [box.width / columns, box.height / rows];
  if (wide * pen.scale < DIGITS[0] || tall * pen.scale < DIGITS[1]) return;
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      const [x, y] = [box.x + (column + 0.5) * wide, box.y + (row + 0.5) * tall];
      if (!pen.sees(x - wide / 2, y - tall / 2, wide, tall)) continue;
      pen.rect(x - wide * 0.46, y - 7 / pen.scale, wide * 0.92, 14 / pen.scale, "raised", 0.8);
      pen.number(format(valueAt(row, column), 2), x, y, { size: 11 / pen.scale, most: 11, room: wide });
    }
  }
}

/** A line for each word; share: the part that is drawn, from the left. */
export function paintMatrix(pen, film, name, array, title, share = 1) {
  const { data, layout: { row, boxes } } = film;
  const box = boxes[name];
  const width = array.shape.at(-1);
  paintTitle(pen, box, title, { shape: `[${data.shown.length}, ${width}]` });
  pen.rect(box, "sunk");
  pen.image(heatOf(array.data, width, film.mode), box);
  pen.rect(box.x + box.width * share, box.y, box.width * (1 - share), box.height, "sunk");
  if (share < 1) return;
  paintCells(pen, box, data.shown.length, width, (line, column) => array.data[line * width + column]);
  for (const role of ["key", "query"]) {
    const line = data.shown.indexOf(data[role]);
    if (line >= 0) pen.edge(box.x, box.y + line * row, box.width, row, role, 2);
  }
}

function paintTokens(pen, film) {
  const { data, layout: { row, boxes: { text, tokens } } } = film;
  paintTitle(pen, text, "Text", { part: "Text to vectors" });
  paintTitle(pen, tokens, "Tokens");
  pen.rect(text, "raised");
  pen.edge(text, "line");
  const letters = Math.max(22, 11 / pen.scale); // units of the scene
  const most = Math.floor((text.height - 20) / (letters * 1.5));
  const room = (text.width - 28) * pen.scale;
  const lines = linesOf(pen.context, data.text, room, letters * pen.scale);
  if (room > 5 * letters * pen.scale) lines.slice(0, most).forEach((line, i) => {
    const words = i === most - 1 && lines.length > most ? `${line} …` : line;
    pen.text(fitted(pen.context, words, room, letters * pen.scale), text.x + 14, text.y + 14 + (i + 0.6) * letters * 1.5,
      { size: letters, most: 40 });
  });
  data.shown.forEach((position, i) => {
    const tone = toneOf(data, position);
    pen.rect(tokens.x, i * row + 2, tokens.width, row - 4, "sunk");
    if (tone !== "ink") pen.edge(tokens.x, i * row + 2, tokens.width, row - 4, tone, 2);
    pen.text(String(position), tokens.x + 8, (i + 0.5) * row, { size: 12, colour: "muted", family: MONO });
  });
  paintNames(pen, film, tokens.x + tokens.width - 8, 0, { room: 116 });
}

/** Upright bars with their numbers, in rows; marks: text in each. */
export function paintBlocks(pen, box, layers, { marks = null, colour = "accent", most = Infinity } = {}) {
  const numRows = Math.ceil(layers.length / Math.min(most, layers.length));
  const step = box.width / Math.ceil(layers.length / numRows);
  const tall = box.height / numRows;
  layers.forEach((layer, i) => {
    const perRow = Math.ceil(layers.length / numRows);
    const [x, y] = [box.x + (i % perRow) * step, box.y + Math.floor(i / perRow) * tall];
    const width = Math.max(step * 0.8, 2);
    const height = tall - (numRows > 1 ? 14 : 0);
    pen.rect(x, y, width, height, "sunk");
    pen.edge(x, y, width, height, colour);
    pen.text(String(layer), x + width / 2, y + 16, { size: Math.min(18, width * 0.6), align: "center", colour: "muted" });
    if (!marks) return;
    const isUpright = width * pen.scale < 40;
    pen.text(marks[i], x + width / 2, y + 24 + (isUpright ? height - 30 : (height - 24) / 2), {
      size: 20, most: 20, align: isUpright ? "left" : "center", room: isUpright ? height - 34 : width * 0.95, isUpright, family: MONO,
    });
  });
}

export function paintWords(pen, film) {
  const { data, layout: { boxes, row, queryRow } } = film;
  /** In the row of the query. */
  const flow = (from, to, sign = "", back = 6) => {
    const y = (queryRow + 0.5) * row;
    const [start, end] = [boxes[from].x + boxes[from].width, boxes[to].x];
    pen.line([[start + 4, y], [end - back, y]], "query", { thickness: 3, isArrow: !sign });
    if (sign) pen.text(sign, (start + end) / 2, y - 22, { size: 34, most: 26, align: "center" });
  };
  paintTokens(pen, film);
  flow("text", "tokens");
  const share = film.shareOf("embedding");
  paintMatrix(pen, film, "embed", data.rows.hook_embed, "Embedding", share);
  flow("tokens", "embed");
  if (boxes.position) {
    paintMatrix(pen, film, "position", data.rows.hook_pos_embed, "Position", share);
    flow("embed", "position", "+");
  }
  const last = boxes.position ? "position" : "embed";
  if (boxes.before) {
    const name = data.layer === 1 ? "Block 0" : `Blocks 0 to ${data.layer - 1}`;
    paintTitle(pen, boxes.before, name, { part: name.replace(" to ", "–") });
    paintBlocks(pen, boxes.before, Array.from({ length: data.layer }, (_, i) => i));
    flow(last, "before");
  }
  flow(boxes.before ? "before" : last, "pre", "", NAMES);
  paintNames(pen, film, boxes.pre.x - 6, 0);
  paintPart(pen, boxes.pre, `Block ${data.layer}`);
  paintMatrix(pen, film, "pre", data.rows.hook_resid_pre, `Into block ${data.layer}`);
  if (boxes.norm) {
    paintMatrix(pen, film, "norm", data.rows["ln1.hook_out"], "Norm", film.shareOf("norm"));
    flow("pre", "norm");
  }
  flow(boxes.norm ? "norm" : "pre", "q");
}
