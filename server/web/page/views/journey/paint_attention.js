// Drawing of the journey's middle: queries and keys, the grid of their products and weights, and the values.
import { shownToken } from "../../core/model.js";
import { format, percent } from "../../core/numbers.js";
import { between } from "./camera.js";
import { heatOf } from "./heat.js";
import { BARS_NAMES, NAMES } from "./layout.js";
import { paintCells, paintMatrix, paintNames, paintPart, paintTitle } from "./paint_words.js";

const NUMBERED = 40; // CSS pixels of the smallest cell with its number
const PERCENT = 50; // smallest column with its share
const SEPARATE = 12; // smallest line with its name

const TITLES = [["softmax", "Attention pattern"], ["mask", "Masked scores"], ["scale", "Scores"], ["dots", "Query · key"]];

/** The completion of each change of the grid, 0 to 1. */
const stageOf = (film) => Object.fromEntries(TITLES.map(([id]) => [id, film.shareOf(id)]));

function writtenAt({ products: { dots, scaled, scores, isMasked }, weights }, stage, cell) {
  if (stage.softmax > 0.5) return isMasked[cell] ? "0" : percent(weights[cell]);
  if (stage.mask > 0.5) return isMasked[cell] ? "−∞" : format(scores[cell], 3);
  return format((stage.scale > 0.5 ? scaled : dots)[cell], 3);
}

/** A dot for each pair, of its product, then of its weight; masked pairs are hatched. */
function paintGrid(pen, film, stage) {
  const { data, layout, products, weights } = film;
  const { row, boxes: { grid } } = layout;
  const { numKeys, dots, isMasked } = products;
  pen.rect(grid, "raised");
  const [positive, negative, hidden] = [[], [], []];
  const largestDot = film.largestDot || 1;
  data.shown.forEach((_, i) => {
    data.shown.forEach((key, j) => {
      const cell = i * numKeys + key;
      const [x, y] = [grid.x + j * row, i * row];
      if (isMasked[cell]) hidden.push([x, y, row, row]);
      const ofDot = Math.sqrt(Math.abs(dots[cell]) / largestDot) * stage.dots * (isMasked[cell] ? 1 - stage.mask : 1);
      const size = between(ofDot * between(1, 0.72, stage.scale), Math.sqrt(weights[cell]), stage.softmax);
      const isPositive = dots[cell] >= 0 || stage.softmax > 0.5;
      (isPositive ? positive : negative).push([x + row / 2, y + row * 0.45, size * row * 0.42]);
    });
  });
  pen.circles(positive, "positive", 0.9);
  pen.circles(negative, "negative", 0.9);
  if (stage.mask > 0) pen.hatch(hidden, "muted", stage.mask * 0.75);
  pen.edge(grid, "line");
}

/** The numbers of large cells, and the words' names, at the picture's edge where the grid's is out of view. */
function paintGridNames(pen, film, stage) {
  const { data, layout: { row, boxes: { grid } }, products } = film;
  const isSeen = row * pen.scale >= SEPARATE && pen.sees(grid);
  const room = Math.min(NAMES, 96 / pen.scale);
  const [left, top] = ["left", "top"].map((side) => -pen[side] / pen.scale); // of the picture
  const [bottom, right] = [top + pen.size.height / pen.scale, left + pen.size.width / pen.scale];
  const whole = (from) => (isSeen ? Math.max(0, Math.min(Math.ceil((from + room) / row - 0.1) * row, grid.width - row)) : 0);
  const [fromX, fromY] = [grid.x + whole(left - grid.x), whole(top)];
  if (isSeen && stage.dots > 0.5 && row * pen.scale >= NUMBERED) {
    data.shown.forEach((_, i) => data.shown.forEach((key, j) => {
      const [x, y] = [grid.x + j * row, i * row];
      if (x < fromX - row * 0.1 || y < fromY - row * 0.1 || x > right || y > bottom) return;
      pen.rect(x + row * 0.06, y + row * 0.76, row * 0.88, row * 0.22, "raised", 0.85);
      pen.number(writtenAt(film, stage, i * products.numKeys + key), x + row / 2, y + row * 0.87, {
        size: row * 0.22, most: 14, room: row * 0.98,
      });
    }));
  }
  if (fromX > Math.max(grid.x, left)) pen.cover(left, grid.y - 60, fromX - left, grid.height + 60, "paper");
  if (fromY > Math.max(grid.y, top)) pen.cover(grid.x - NAMES, top, grid.width + NAMES, fromY - top, "paper");
  paintNames(pen, film, fromX - 6, 0, { room: room - 8, from: fromY });
  paintNames(pen, film, grid.x, fromY - 6, { isUpright: true, room: room - 8, from: fromX - grid.x });
}

function paintChosen(pen, { layout }) {
  const { row, queryRow, keyColumn, boxes: { grid } } = layout;
  pen.edge(grid.x, queryRow * row, grid.width, row, "query", 2);
  if (keyColumn >= 0) pen.edge(grid.x + keyColumn * row, grid.y, row, grid.height, "key", 2);
}

function paintBars(pen, film) {
  const { data, layout, rowWeights } = film;
  const { row, boxes: { bars } } = layout;
  const largest = Math.max(...data.shown.map((key) => rowWeights[key]), 1e-9);
  paintTitle(pen, { ...bars, y: bars.y - 14 }, `Weights of “${shownToken(data.tokens[data.query])}”`, { tone: "query" });
  pen.rect(bars.x, bars.y + bars.height, bars.width, 2, "line");
  data.shown.forEach((key, j) => {
    const tall = (rowWeights[key] / largest) * bars.height;
    const tone = key === data.key ? "key" : "query";
    pen.rect(bars.x + (j + 0.15) * row, bars.y + bars.height - tall, row * 0.7, tall, tone);
    if (key !== data.key && row * pen.scale < PERCENT) return;
    pen.number(percent(rowWeights[key], 2), bars.x + (j + 0.5) * row, bars.y + bars.height - tall - 10, {
      size: 13, colour: key === data.key ? "key" : "ink", isAlways: key === data.key && pen.scale > 0.35,
    });
  });
  paintNames(pen, film, bars.x, bars.y + bars.height + BARS_NAMES, { isUpright: true, room: BARS_NAMES - 8 });
}

const TABLE_LINE = 22; // units of the scene
const FIRST = 4; // numbers of each value that are written
const NARROW = 34; // smallest column, in CSS pixels, that shows them

/** The values with their first numbers, the values times their weights, and the sum. */
function paintValues(pen, film, share) {
  const { data, layout, rowWeights, z } = film;
  const { row, boxes: { v, weighted, z: sum } } = layout;
  const width = data.explain.arrays.v.shape[1];
  paintTitle(pen, v, "Values V", { tone: "value", shape: `${width} numbers each` });
  paintTitle(pen, weighted, "Weight × value", { tone: "value" });
  const middle = sum.x + sum.width / 2;
  const bend = sum.y + sum.height + 26;
  data.shown.forEach((key, j) => {
    const x = v.x + j * row;
    const image = heatOf(film.valueOf(key), width, film.mode, { range: film.valueRange, isUpright: true });
    pen.image(image, x + 1, v.y, row - 2, v.height);
    pen.rect(x + 1, weighted.y, row - 2, weighted.height, "sunk");
    pen.image(image, x + 1, weighted.y, row - 2, weighted.height, Math.min(1, rowWeights[key]));
    for (const box of key === data.key ? [v, weighted] : []) pen.edge(x, box.y, row, box.height, "key", 2);
    if (row * pen.scale >= NARROW) {
      film.valueOf(key).subarray(0, FIRST).forEach((number, i) => pen.number(format(number, 2), x + row / 2,
        v.y + v.height + (i + 2) * TABLE_LINE, { size: 14, room: row * 1.02, colour: key === data.key ? "key" : "ink" }));
    }
    if (rowWeights[key] > 0.004) {
      const from = x + row / 2;
      pen.line([[from, sum.y + sum.height], [from, bend], [between(from, middle, share), bend]], "value", {
        thickness: 1 + 9 * rowWeights[key], alpha: 0.7,
      });
    }
  });
  if (row * pen.scale >= NARROW) {
    pen.text(`the first ${Math.min(FIRST, width)} numbers of each:`, v.x, v.y + v.height + TABLE_LINE * 0.85, {
      size: 14, colour: "muted",
    });
  }
  paintCells(pen, v, width, data.shown.length, (line, column) => film.valueOf(data.shown[column])[line]);
  pen.line([[middle, bend], [middle, sum.y + sum.height + 4]], "value", { thickness: 4, isArrow: true, alpha: share });
  pen.image(heatOf(z, width, film.mode, { isUpright: true }), sum, share);
  pen.edge(sum, "value", 2);
  pen.text("z, the sum", middle, sum.y - 16, { size: 16, align: "center", colour: "value", weight: "600 " });
}

/** Each crossing of a query's line and a key's column is a product. */
function paintSides(pen, film, share) {
  const { data, layout } = film;
  const { row, boxes: { k } } = layout;
  const width = data.queries.shape.at(-1);
  paintMatrix(pen, film, "q", data.queries, "Queries", share);
  pen.rect(k, "sunk");
  pen.image(heatOf(film.shownKeys, width, film.mode, { isUpright: true }), k);
  pen.rect(k * (1 - share), "sunk");
  if (share === 1) paintCells(pen, k, width, data.shown.length, (row, column) => film.shownKeys[column * width + row]);
  paintTitle(pen, k, "Keys", { tone: "key", shape: `${width} numbers each` });
  if (share === 1 && layout.keyColumn >= 0) pen.edge(k.x + layout.keyColumn * row, k.y, row, k.height, "key", 2);
}

export function paintAttention(pen, film) {
  const { data, layout: { boxes: { grid, q, k } } } = film;
  const stage = stageOf(film);
  const sides = film.shareOf("qk");
  paintSides(pen, film, sides);
  paintGrid(pen, film, stage);
  paintChosen(pen, film);
  paintGridNames(pen, film, stage);
  const [, title] = TITLES.find(([id]) => stage[id] > 0.5) ?? TITLES.at(-1);
  const isWhole = pen.x(grid.x) >= 0 && pen.x(grid.x + grid.width) <= pen.size.width;
  if (isWhole) paintTitle(pen, { ...grid, y: grid.y + grid.height + 38 }, `${title}, head ${data.head}`, {
    shape: `[${data.shown.length}, ${data.shown.length}]`,
  });
  paintPart(pen, { ...q, y: k.y }, `Attention, head ${data.head}`);
  paintBars(pen, film);
  paintValues(pen, film, film.shareOf("values"));
}
