// Drawing of the journey's middle: queries and keys, the grid of their products, which becomes weights, and the
// values.
import { shownToken } from "../../core/model.js";
import { format, percent } from "../../core/numbers.js";
import { between, clamp01, eased } from "./camera.js";
import { heatOf } from "./heat.js";
import { arrival } from "./layout.js";
import { paintCells, paintColumnNames, paintMatrix, paintNames, paintTitle } from "./paint_words.js";
import { MONO } from "./pen.js";

const NUMBERED = 40; // smallest cell, in CSS pixels, that shows its number

/** The stage of the grid at a progress: the completion of each of its changes, 0 to 1. */
function stageOf(film, progress) {
  const at = (id) => eased(clamp01(arrival(progress, film.indexOf(id))));
  const isWhole = progress < 0.5; // the first stop shows the result: weights
  return {
    dots: at("dots"),
    scale: isWhole ? 1 : at("scale"),
    mask: isWhole ? 1 : at("mask"),
    softmax: isWhole ? 1 : at("softmax"),
  };
}

/** The text of a cell's number at a stage. */
function writtenAt({ products, weights, words }, stage, cell) {
  const { dots, scaled, scores, isMasked } = products;
  const kind = stage.softmax > 0.5 ? "weight" : stage.mask > 0.5 ? "score" : stage.scale > 0.5 ? "scaled" : "dot";
  const key = `${kind}${cell}`;
  let text = words.get(key);
  if (text === undefined) {
    if (kind === "weight") text = isMasked[cell] ? "0" : percent(weights[cell]);
    else if (kind === "score") text = isMasked[cell] ? "−∞" : format(scores[cell], 3);
    else text = format(kind === "scaled" ? scaled[cell] : dots[cell], 3);
    words.set(key, text);
  }
  return text;
}

/** The grid: a dot for each pair, with the size of its product, then of its weight; masked pairs are hatched. */
function paintGrid(pen, film, stage) {
  const { data, layout, products, weights } = film;
  const { row, boxes: { grid } } = layout;
  const { numKeys, dots, isMasked } = products;
  pen.rect(grid.x, grid.y, grid.width, grid.height, pen.colours.raised);
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
  pen.circles(positive, pen.colours.positive, 0.9);
  pen.circles(negative, pen.colours.negative, 0.9);
  if (stage.mask > 0) pen.hatch(hidden, pen.colours.muted, stage.mask * 0.75);
  pen.edge(grid.x, grid.y, grid.width, grid.height, pen.colours.line);
  if (row * pen.scale >= NUMBERED) paintNumbers(pen, film, stage);
}

/** The numbers of the visible cells, each with a background that covers its dot. */
function paintNumbers(pen, film, stage) {
  const { data, layout, products } = film;
  const { row, boxes: { grid } } = layout;
  const size = row * 0.24;
  data.shown.forEach((_, i) => {
    if (!pen.sees(grid.x, i * row, grid.width, row)) return;
    data.shown.forEach((key, j) => {
      const x = grid.x + j * row;
      if (!pen.sees(x, i * row, row, row)) return;
      const text = writtenAt(film, stage, i * products.numKeys + key);
      pen.rect(x + row * 0.06, i * row + row * 0.76, row * 0.88, row * 0.22, pen.colours.raised, 0.85);
      pen.number(text, x + row / 2, i * row + row * 0.87, { size, most: 15, room: row * 0.96 });
    });
  });
}

/** If the names next to the grid are out of view, draw the names at the picture's left and upper edge. */
function paintEdgeNames(pen, film) {
  const { data, layout } = film;
  const { row, boxes: { grid } } = layout;
  if (row * pen.scale < NUMBERED || pen.x(grid.x) > 0 || !pen.sees(grid.x, grid.y, grid.width, grid.height)) return;
  const [left, top] = [-pen.left / pen.scale, -pen.top / pen.scale];
  const style = { size: row * 0.24, most: 15, family: MONO, weight: "600 " };
  data.shown.forEach((position, i) => {
    const name = shownToken(data.tokens[position]);
    const room = row * 0.9;
    const tone = position === data.query ? "query" : "muted";
    if (i * row > top && i * row < grid.height) {
      pen.text(name, left + 10 / pen.scale, i * row + row * 0.14, { ...style, room, colour: tone });
    }
    pen.text(name, grid.x + (i + 0.5) * row, Math.max(top, grid.y - row) + row * 0.14, {
      ...style, align: "center", room, colour: position === data.key ? "key" : "muted",
    });
  });
}

function paintChosen(pen, { layout }) {
  const { row, queryRow, keyColumn, boxes: { grid } } = layout;
  pen.edge(grid.x, queryRow * row, grid.width, row, pen.colours.query, 2);
  if (keyColumn >= 0) pen.edge(grid.x + keyColumn * row, grid.y, row, grid.height, pen.colours.key, 2);
}

/** The weights of the query as columns under the grid: their sum is 1. */
function paintBars(pen, film) {
  const { data, layout, rowWeights } = film;
  const { row, boxes: { bars } } = layout;
  const largest = Math.max(...data.shown.map((key) => rowWeights[key]), 1e-9);
  paintTitle(pen, bars, "Weights", { tone: "query" });
  pen.rect(bars.x, bars.y + bars.height, bars.width, 2, pen.colours.line);
  data.shown.forEach((key, j) => {
    const tall = (rowWeights[key] / largest) * bars.height;
    const colour = key === data.key ? pen.colours.key : pen.colours.query;
    pen.rect(bars.x + (j + 0.15) * row, bars.y + bars.height - tall, row * 0.7, tall, colour);
    if (row * pen.scale >= NUMBERED || key === data.key) {
      pen.number(percent(rowWeights[key]), bars.x + (j + 0.5) * row, bars.y + bars.height + 16, {
        size: 13, most: 13, colour: key === data.key ? "key" : "ink", isAlways: key === data.key && pen.scale > 0.35,
      });
    }
  });
}

/** The values as columns, the values times their weights, and the sum. */
function paintValues(pen, film, share) {
  const { data, layout, rowWeights, z } = film;
  const { row, boxes: { v, weighted, z: sum } } = layout;
  const width = data.explain.arrays.v.shape[1];
  paintTitle(pen, v, "Values", { tone: "value", shape: `${width} numbers each` });
  paintTitle(pen, weighted, "Weight × value", { tone: "value" });
  data.shown.forEach((key, j) => {
    const image = heatOf(film.valueOf(key), width, film.mode, { range: film.valueRange, isUpright: true });
    pen.image(image, v.x + j * row + 1, v.y, row - 2, v.height);
    pen.rect(weighted.x + j * row + 1, weighted.y, row - 2, weighted.height, pen.colours.sunk);
    pen.image(image, weighted.x + j * row + 1, weighted.y, row - 2, weighted.height, Math.min(1, rowWeights[key]));
    if (key === data.key) {
      pen.edge(v.x + j * row, v.y, row, v.height, pen.colours.key, 2);
      pen.edge(weighted.x + j * row, weighted.y, row, weighted.height, pen.colours.key, 2);
    }
    const from = [weighted.x + (j + 0.5) * row, weighted.y + weighted.height];
    const bend = weighted.y + weighted.height + 26;
    if (rowWeights[key] > 0.004) {
      pen.line([from, [from[0], bend], [between(from[0], sum.x + sum.width / 2, share), bend]], pen.colours.value, {
        thickness: 1 + 9 * rowWeights[key], alpha: 0.7,
      });
    }
  });
  paintCells(pen, v, width, data.shown.length, (row, column) => film.valueOf(data.shown[column])[row]);
  const bend = weighted.y + weighted.height + 26;
  const middle = sum.x + sum.width / 2;
  pen.line([[middle, bend], [middle, sum.y + sum.height + 4]], pen.colours.value, { thickness: 4, isArrow: true, alpha: share });
  pen.image(heatOf(z, width, film.mode, { isUpright: true }), sum.x, sum.y, sum.width, sum.height, share);
  pen.edge(sum.x, sum.y, sum.width, sum.height, pen.colours.value, 2);
  pen.text("z, the sum", sum.x + sum.width / 2, sum.y - 16, { size: 16, most: 15, align: "center", colour: "value", weight: "600 " });
}

/** Queries as lines left of the grid, keys as columns above it: each crossing is a product. */
function paintSides(pen, film, share) {
  const { data, layout } = film;
  const { row, boxes: { q, k, grid } } = layout;
  const width = data.queries.shape.at(-1);
  paintMatrix(pen, film, "q", data.queries, "Queries", share);
  pen.rect(k.x, k.y, k.width, k.height, pen.colours.sunk);
  pen.image(heatOf(film.shownKeys, width, film.mode, { isUpright: true }), k.x, k.y, k.width, k.height);
  pen.rect(k.x, k.y, k.width, k.height * (1 - share), pen.colours.sunk);
  if (share === 1) paintCells(pen, k, width, data.shown.length, (row, column) => film.shownKeys[column * width + row]);
  paintTitle(pen, k, "Keys", { tone: "key", shape: `${width} numbers each` });
  if (share === 1 && layout.keyColumn >= 0) pen.edge(k.x + layout.keyColumn * row, k.y, row, k.height, pen.colours.key, 2);
  paintNames(pen, film, grid.x - 6, { room: 54 });
  paintColumnNames(pen, film, grid.x, grid.y - 6);
}

const TITLES = [["softmax", "Attention pattern"], ["mask", "Masked scores"], ["scale", "Scores"], ["dots", "Query · key"]];

export function paintAttention(pen, film, progress) {
  const { data, layout } = film;
  const { grid } = layout.boxes;
  const stage = stageOf(film, progress);
  paintSides(pen, film, eased(arrival(progress, film.indexOf("qk"))));
  paintGrid(pen, film, stage);
  paintChosen(pen, film);
  const [, title] = TITLES.find(([id]) => stage[id] > 0.5) ?? TITLES.at(-1);
  paintTitle(pen, { ...grid, y: grid.y + grid.height + 44 }, `${title}, head ${data.head}`, {
    shape: `[${data.shown.length}, ${data.shown.length}]`,
  });
  if (pen.scale < 0.4) paintTitle(pen, grid, "Attention", { isLarge: true, gap: 24 });
  paintEdgeNames(pen, film);
  paintBars(pen, film);
  paintValues(pen, film, eased(arrival(progress, film.indexOf("values"))));
}
