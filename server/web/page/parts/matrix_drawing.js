// Drawing of a matrix: cells as squares or dots, the numbers in them, row and column names, the crosshair.
import { colourOf, inkOn } from "../core/colour.js";
import { shownToken } from "../core/model.js";
import { decimalsOf } from "../core/numbers.js";
import { MONO, SANS, fill, frame, upwards, write as inked } from "./ink.js";
import { fillFitted } from "./picture.js";
import { isWhole } from "./zoom.js";

export const FONT = 12;
const NAMES = `${FONT}px ${MONO}`;
const SMALLEST_WRITTEN = 28;
const NUMBERS = `11px ${SANS}`;
const MOST_DOTS = 20000;
const LARGEST_DOT = 0.94; // of a cell

export function drawMatrix(context, { bitmap, seen, at, rowNames, columnNames, rowTitle, columnTitle, inks, marks }) {
  const { left, top, cell, tall } = at;
  const [width, height] = [cell * seen.columns, tall * seen.rows];
  if (bitmap.hasGaps) drawHatching(context, left, top, width, height, inks.line);
  const isDotted = marks.cells === "dots" && seen.rows * seen.columns <= MOST_DOTS;
  if (isDotted) drawDots(context, bitmap, seen, at, marks);
  else {
    context.imageSmoothingEnabled = Math.min(cell, tall) < 1; // otherwise small cells between pixels are lost
    context.drawImage(seenPart(bitmap.canvas, seen), left, top, width, height);
  }
  if (marks.isStruck) strike(context, seen, at, marks);
  if (!isDotted && cell >= SMALLEST_WRITTEN && tall >= 16) drawNumbers(context, bitmap, seen, at, marks);
  frame(context, left - 0.5, top - 0.5, width + 1, height + 1, inks.line);
  drawNames(context, { rowNames, columnNames, seen, ...at, colour: inks.ink });
  drawTitles(context, { rowTitle, columnTitle, left, top, width, height, rowInk: inks.row, columnInk: inks.column });
}

/** The pixels of the visible cells only, so that SVG files contain nothing else. */
function seenPart(canvas, seen) {
  if (isWhole(seen, canvas.height, canvas.width)) return canvas;
  const part = document.createElement("canvas");
  [part.width, part.height] = [seen.columns, seen.rows];
  part.getContext("2d").drawImage(canvas, -seen.column, -seen.row);
  return part;
}

function forSeen({ columns }, seen, at, each) {
  for (let row = seen.row; row < seen.row + seen.rows; row += 1) {
    for (let column = seen.column; column < seen.column + seen.columns; column += 1) {
      each(row, column, row * columns + column, at.left + (column - seen.column) * at.cell, at.top + (row - seen.row) * at.tall);
    }
  }
}

/** A dot for each number: its area is the number's size, or that in `areas`. */
function drawDots(context, { values, range, canvas }, seen, at, { areas, mode, colours }) {
  const full = Math.max(Math.abs(range.low), Math.abs(range.high)) || 1;
  const largest = areas ? areas.reduce((most, area) => Math.max(most, area), 1e-30) : full;
  const most = (Math.min(at.cell, at.tall) * LARGEST_DOT) / 2;
  context.fillStyle = colours.sunk;
  forSeen({ columns: canvas.width }, seen, at, (row, column, index, x, y) => {
    if (Number.isFinite(values[index])) context.fillRect(x, y, Math.max(at.cell - 0.5, 0.5), Math.max(at.tall - 0.5, 0.5));
  });
  for (const sign of [1, -1]) {
    context.fillStyle = colourOf(0.8 * sign * full, range.kind === "diverging" ? -full : 0, full, range.kind, mode);
    context.beginPath();
    forSeen({ columns: canvas.width }, seen, at, (row, column, index, x, y) => {
      const value = values[index] * sign;
      if (!(value > 0 && value < Infinity)) return;
      const radius = most * Math.sqrt(Math.min((areas ? areas[index] : value) / largest, 1));
      context.moveTo(x + at.cell / 2 + radius, y + at.tall / 2);
      context.arc(x + at.cell / 2, y + at.tall / 2, radius, 0, 2 * Math.PI);
    });
    context.fill();
  }
}

function strike(context, seen, at, { isStruck, colours }) {
  forSeen({ columns: 0 }, seen, at, (row, column, index, x, y) => {
    if (isStruck(row, column)) drawHatching(context, x, y, at.cell, at.tall, colours.raised);
  });
}

/** Numbers in cells, with as many decimals as the precision supports and fit in all of them; none if no number fits. */
function drawNumbers(context, { values, range, canvas }, seen, at, { numbers, gap, isStruck, mode, colours }) {
  context.font = NUMBERS;
  context.textAlign = "center";
  context.textBaseline = "middle";
  const write = writerOf(context, numbers, at.cell - 4);
  if (!write) return;
  forSeen({ columns: canvas.width }, seen, at, (row, column, index, x, y) => {
    const text = Number.isFinite(numbers[index]) ? write(numbers[index]) : gap?.(row, column);
    if (!text) return;
    const isBare = !Number.isFinite(values[index]);
    if (isBare || isStruck?.(row, column)) {
      // keep text in hatched cells legible
      const wide = context.measureText(text).width + 4;
      const ground = isBare ? colours.raised : colourOf(values[index], range.low, range.high, range.kind, mode);
      fill(context, x + (at.cell - wide) / 2, y + at.tall / 2 - 7, wide, 14, ground);
    }
    context.fillStyle = isBare ? colours.muted : inkOn(values[index], range.low, range.high, range.kind, mode);
    context.fillText(text, x + at.cell / 2, y + at.tall / 2);
  });
}

/** A function that formats numbers for that width, with the most decimals that fit for all; null if none fits. */
function writerOf(context, numbers, room) {
  let [low, high] = [0, 0];
  for (const number of numbers) {
    if (!Number.isFinite(number)) continue;
    low = Math.min(low, number);
    high = Math.max(high, number);
  }
  for (let decimals = decimalsOf(Math.max(-low, high)); decimals >= 0; decimals -= 1) {
    const write = (number) => (number === 0 ? "0" : number.toFixed(decimals).replace(/^-(0\.?0*)$/, "$1").replace("-", "−"));
    const isSeen = Math.max(-low, high) >= 10 ** -decimals; // otherwise all would be written as 0
    if (isSeen && Math.max(...[low, high].map((end) => context.measureText(write(end)).width)) <= room) return write;
  }
  return null;
}

/** Diagonal lines clipped to the rectangle by computation, because saved pictures have no clipping. */
function drawHatching(context, left, top, width, height, colour) {
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.beginPath();
  const apart = Math.min(6, Math.max(width, height)); // a cell may be small
  for (let sum = apart; sum < width + height; sum += apart) {
    const [fromX, toX] = [Math.min(sum, width), Math.max(0, sum - height)];
    context.moveTo(left + fromX, top + sum - fromX);
    context.lineTo(left + toX, top + sum - toX);
  }
  context.stroke();
}

/** The frames of a row and a column, with their names, because larger grids show only some names. */
export function drawCross(context, place, seen, at, lineWidth, inks, names) {
  if (!place) return;
  const [row, column] = [place.row - seen.row, place.column - seen.column];
  const mark = (x, y, width, height, colour) => {
    // a frame thicker than its cell is drawn around it, otherwise it would cover the cell
    const out = Math.min(width, height) < 8 ? 1 : 0;
    frame(context, x - out, y - out, width + 2 * out, height + 2 * out, colour, out ? 1 : lineWidth);
  };
  context.font = `600 ${NAMES}`;
  context.textBaseline = "middle";
  if (Number.isInteger(place.row) && row >= 0 && row < seen.rows) {
    mark(at.left, at.top + row * at.tall, at.cell * seen.columns, at.tall, inks.row);
    nameRow(context, names.rowNames[place.row], row, at, inks.row, inks.ground);
  }
  if (Number.isInteger(place.column) && column >= 0 && column < seen.columns) {
    mark(at.left + column * at.cell, at.top, at.cell, at.tall * seen.rows, inks.column);
    nameColumn(context, names.columnNames[place.column], column, at, inks.column, inks.ground);
  }
}

function nameRow(context, name, row, { left, top, tall }, colour, ground) {
  const y = top + (row + 0.5) * tall;
  if (ground) fill(context, 16, y - 8, left - 19, 16, ground);
  context.fillStyle = colour;
  context.textAlign = "right";
  fillFitted(context, shownToken(name), left - 24, left - 5, y);
}

function nameColumn(context, name, column, { left, top, cell }, colour, ground) {
  upwards(context, left + (column + 0.5) * cell, top - 5, () => {
    if (ground) fill(context, -2, -8, top - 20, 16, ground);
    context.fillStyle = colour;
    context.textAlign = "left";
    fillFitted(context, shownToken(name), top - 22, 0, 0);
  });
}

const ROUND = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];

const stepOf = (size) => ROUND.find((step) => step * size >= FONT + 1) ?? Math.ceil((FONT + 1) / size);

function drawNames(context, { rowNames, columnNames, seen, left, top, cell, tall, colour }) {
  context.font = NAMES;
  context.textBaseline = "middle";
  const [rowStep, columnStep] = [stepOf(tall), stepOf(cell)];
  const first = (start, step) => Math.ceil(start / step) * step - start; // the same names for any visible part
  for (let row = first(seen.row, rowStep); row < seen.rows; row += rowStep) {
    nameRow(context, rowNames[seen.row + row], row, { left, top, tall }, colour);
  }
  for (let column = first(seen.column, columnStep); column < seen.columns; column += columnStep) {
    nameColumn(context, columnNames[seen.column + column], column, { left, top, cell }, colour);
  }
}

function drawTitles(context, { rowTitle, columnTitle, left, top, width, height, rowInk, columnInk }) {
  const title = (text, x, y, colour) => inked(context, text, x, y, colour, { weight: "600", align: "center" });
  if (columnTitle) title(columnTitle, left + width / 2, 8, columnInk);
  if (rowTitle) upwards(context, 8, top + height / 2, () => title(rowTitle, 0, 0, rowInk));
}
