// Drawing of the journey's first part: tokens, their vectors, the earlier blocks, the norm.
import { shownToken } from "../../core/model.js";
import { format } from "../../core/numbers.js";
import { eased } from "./camera.js";
import { heatOf } from "./heat.js";
import { arrival } from "./layout.js";
import { MONO } from "./pen.js";

/** The colour of a word: blue for the query, orange for the key. */
const toneOf = (data, position) => (position === data.query ? "query" : position === data.key ? "key" : "ink");

/**
 * The words' names, one a line, right-aligned at x; some are omitted if lines are too close, but not the selected
 * ones.
 */
export function paintNames(pen, film, x, { align = "right", room = 110 } = {}) {
  const { data, layout } = film;
  const step = Math.max(1, Math.ceil(11 / (layout.row * pen.scale)));
  data.shown.forEach((position, i) => {
    const tone = toneOf(data, position);
    if (i % step && tone === "ink") return;
    pen.text(shownToken(data.tokens[position]), x, (i + 0.5) * layout.row, {
      size: Math.min(17, layout.row * 0.6), align, colour: tone, family: MONO, weight: tone === "ink" ? "" : "600 ", room,
      isAlways: tone !== "ink" && layout.row * pen.scale > 4,
    });
  });
}

/** The words' names above the grid's columns, reading upwards. */
export function paintColumnNames(pen, film, x, y) {
  const { data, layout } = film;
  const step = Math.max(1, Math.ceil(11 / (layout.row * pen.scale)));
  data.shown.forEach((position, i) => {
    const tone = position === data.key ? "key" : "ink";
    if (i % step && tone === "ink") return;
    pen.text(shownToken(data.tokens[position]), x + (i + 0.5) * layout.row, y, {
      size: Math.min(16, layout.row * 0.55), colour: tone, family: MONO, weight: tone === "key" ? "600 " : "", room: 78, isUpright: true,
    });
  });
}

const CLEAR = 10; // CSS pixels from a title's middle to the box

/** The title above a box: one line, readable at any zoom. */
export function paintTitle(pen, box, title, { shape = "", tone = "ink", gap = 16, isLarge = false } = {}) {
  const size = isLarge ? 36 : 21;
  gap = Math.max(gap, CLEAR / pen.scale); // at a small zoom the letters are larger relative to the box, because they have a minimum size
  pen.text(title, box.x, box.y - gap, { size, most: 17, colour: tone, weight: "600 " });
  if (shape && 15 * pen.scale > 9.5) {
    pen.text(shape, box.x + box.width, box.y - gap, { size: 13, most: 13, align: "right", colour: "muted", family: MONO });
  }
}

/** A row's outline, in the colour of its role. */
function markRow(pen, film, box, position, colour) {
  const row = film.data.shown.indexOf(position);
  if (row >= 0) pen.edge(box.x, box.y + row * film.layout.row, box.width, film.layout.row, pen.colours[colour], 2);
}

const DIGITS = [40, 14]; // CSS pixels of a cell with space for its number

/** The numbers in a matrix's cells, if the zoom is large enough to read them. */
export function paintCells(pen, box, rows, columns, valueAt) {
  const [wide, tall] = [box.width / columns, box.height / rows];
  if (wide * pen.scale < DIGITS[0] || tall * pen.scale < DIGITS[1]) return;
  const range = (first, size, step, count) => [Math.max(0, Math.floor(first / step)), Math.min(count, Math.ceil((first + size) / step))];
  const [left, right] = range(-pen.left / pen.scale - box.x, pen.size.width / pen.scale, wide, columns);
  const [top, bottom] = range(-pen.top / pen.scale - box.y, pen.size.height / pen.scale, tall, rows);
  for (let row = top; row < bottom; row += 1) {
    for (let column = left; column < right; column += 1) {
      const [x, y] = [box.x + (column + 0.5) * wide, box.y + (row + 0.5) * tall];
      pen.rect(x - wide * 0.46, y - 7 / pen.scale, wide * 0.92, 14 / pen.scale, pen.colours.raised, 0.8);
      pen.number(format(valueAt(row, column), 2), x, y, { size: 11 / pen.scale, most: 11, room: wide });
    }
  }
}

/** A matrix with a line for each word; share: the part that is drawn, from the left. */
export function paintMatrix(pen, film, name, array, title, share = 1) {
  const box = film.layout.boxes[name];
  const width = array.shape.at(-1);
  paintTitle(pen, box, title, { shape: `[${film.data.shown.length}, ${width}]`, isLarge: name === "embed" });
  pen.rect(box.x, box.y, box.width, box.height, pen.colours.sunk);
  pen.image(heatOf(array.data, width, film.mode), box.x, box.y, box.width, box.height);
  pen.rect(box.x + box.width * share, box.y, box.width * (1 - share), box.height, pen.colours.sunk);
  if (share < 1) return;
  paintCells(pen, box, film.data.shown.length, width, (row, column) => array.data[row * width + column]);
  markRow(pen, film, box, film.data.key, "key");
  markRow(pen, film, box, film.data.query, "query");
}

/** A line from one box's right side to the next one's left side, in the row of the query. */
function paintFlow(pen, film, from, to, sign = "") {
  const { boxes, row, queryRow } = film.layout;
  const y = (queryRow + 0.5) * row;
  const [start, end] = [boxes[from].x + boxes[from].width, boxes[to].x];
  pen.line([[start + 4, y], [end - 6, y]], pen.colours.query, { thickness: 3, isArrow: !sign });
  if (sign) pen.text(sign, (start + end) / 2, y - 22, { size: 34, most: 26, align: "center" });
}

function paintTokens(pen, film) {
  const { data, layout } = film;
  const { tokens } = layout.boxes;
  paintTitle(pen, tokens, "Tokens", { isLarge: true });
  data.shown.forEach((position, i) => {
    const tone = toneOf(data, position);
    pen.rect(tokens.x, i * layout.row + 2, tokens.width, layout.row - 4, pen.colours.sunk);
    if (tone !== "ink") pen.edge(tokens.x, i * layout.row + 2, tokens.width, layout.row - 4, pen.colours[tone], 2);
    pen.text(String(position), tokens.x + 8, (i + 0.5) * layout.row, { size: 12, most: 12, colour: "muted", family: MONO });
  });
  paintNames(pen, film, tokens.x + tokens.width - 8);
}

/** Blocks as upright bars with their numbers; marks: text under each. */
export function paintBlocks(pen, box, layers, { marks = null, colour = "accent" } = {}) {
  const step = box.width / layers.length;
  layers.forEach((layer, i) => {
    const [x, width] = [box.x + i * step, Math.max(step * 0.72, 2)];
    pen.rect(x, box.y, width, box.height, pen.colours.sunk);
    pen.edge(x, box.y, width, box.height, pen.colours[colour]);
    pen.text(String(layer), x + width / 2, box.y + 18, { size: Math.min(18, width * 0.6), align: "center", colour: "muted" });
    if (marks) {
      const isUpright = width * pen.scale < 62;
      pen.text(marks[i], x + width / 2, box.y + box.height / 2, {
        size: Math.min(22, width * (isUpright ? 0.5 : 0.2)), most: 15, align: "center", room: isUpright ? box.height * 0.8 : width * 0.95,
        isUpright, family: MONO,
      });
    }
  });
}

export function paintWords(pen, film, progress) {
  const { data, layout, indexOf } = film;
  const { boxes } = layout;
  paintTokens(pen, film);
  const share = eased(arrival(progress, indexOf("embedding")));
  paintMatrix(pen, film, "embed", data.rows.hook_embed, "Embedding", share);
  if (boxes.position) {
    paintMatrix(pen, film, "position", data.rows.hook_pos_embed, "Position", share);
    paintFlow(pen, film, "embed", "position", "+");
  }
  const last = boxes.position ? "position" : "embed";
  if (boxes.before) {
    paintTitle(pen, boxes.before, data.layer === 1 ? "Block 0" : `Blocks 0 to ${data.layer - 1}`);
    paintBlocks(pen, boxes.before, Array.from({ length: data.layer }, (_, i) => i));
    paintFlow(pen, film, last, "before");
  }
  paintFlow(pen, film, boxes.before ? "before" : last, "pre");
  paintMatrix(pen, film, "pre", data.rows.hook_resid_pre, `Into block ${data.layer}`);
  if (boxes.norm) {
    paintMatrix(pen, film, "norm", data.rows["ln1.hook_out"], "Norm", eased(arrival(progress, indexOf("norm"))));
    paintFlow(pen, film, "pre", "norm");
  }
  paintFlow(pen, film, boxes.norm ? "norm" : "pre", "q");
}
