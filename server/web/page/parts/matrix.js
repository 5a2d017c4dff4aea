// A matrix of numbers as coloured cells, however large: one bitmap, drawn once; only the crosshair moves.
import { colourIndex, colourOf, colourTable } from "../core/colour.js";
import { html, useCallback, useEffect, useMemo, useRef, useState } from "../core/html.js";
import { shownToken } from "../core/model.js";
import { extent, format, largest } from "../core/numbers.js";
import { useStore } from "../core/store.js";
import { theme } from "../core/theme.js";
import { fillFitted, Picture } from "./picture.js";
import { ZoomButtons, containing, isWhole, moved, scaled, whole } from "./zoom.js";

const FONT = 12;
const SMALLEST_LABELLED = 11; // CSS pixels of a cell below which names no longer fit
const SHORTEST = 480; // CSS pixels that a matrix of many rows may always be high
const MOST_TOLD = 4; // of the largest cells, in words
const FEWEST_ZOOMED = 40; // rows or columns; smaller matrices are seen well as they are

/** A canvas of one pixel a cell. Numbers that are not finite (masked) stay transparent. */
export function bitmapOf(values, rows, columns, { low, high, kind, mode }) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [columns, rows];
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const table = colourTable(kind, mode);
  for (let i = 0; i < rows * columns; i += 1) {
    if (!Number.isFinite(values[i])) continue;
    const colour = colourIndex(values[i], low, high) * 3;
    image.data[i * 4] = table[colour];
    image.data[i * 4 + 1] = table[colour + 1];
    image.data[i * 4 + 2] = table[colour + 2];
    image.data[i * 4 + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** The range of the colours: from 0 to the largest, or symmetric where values have both signs. */
export function scaleOf(values, kind) {
  const [low, high] = extent(values);
  if (kind !== "diverging") return { low: Math.min(0, low), high, kind };
  const size = Math.max(Math.abs(low), Math.abs(high));
  return { low: -size, high: size, kind };
}

function textWidth(names, most) {
  const context = document.createElement("canvas").getContext("2d");
  context.font = `${FONT}px ui-monospace, monospace`;
  const widest = names.reduce((width, name) => Math.max(width, context.measureText(shownToken(name)).width), 0);
  return Math.min(Math.ceil(widest) + 8, most);
}

/** A bar of the scale's colours. isRooted: shades go by the square root; masked: what hatched cells are. */
export function ColourScale({ low, high, kind, isRooted = false, masked }) {
  const mode = useStore(theme);
  const shares = Array.from({ length: 17 }, (_, i) => i / 16);
  const stops = shares.map((share) => colourOf(isRooted ? Math.sqrt(share) : share, 0, 1, kind, mode)).join(", ");
  return html`<div class="colour-scale">
    <span class="number">${format(low, 3)}</span>
    <i style=${{ background: `linear-gradient(90deg, ${stops})` }}></i>
    <span class="number">${format(high, 3)}</span>
    ${masked && html`<span><i class="hatched"></i> ${masked}</span>`}
  </div>`;
}

/**
 * values: row-major [rows, columns]; rowNames, columnNames: tokens or other names (their number gives the shape).
 * rowTitle, columnTitle: what the axes are ("query", "key"); kind: "sequential" or "diverging"; low, high: the range of
 * colours (default: from the values). selected: {row, column} or null, hovered likewise: the crosshairs, in the colours
 * named rowColour and columnColour. Values that are not finite are hatched: masked, or not there.
 * onHover({row, column} | null), onPick({row, column}). square: cells as high as wide. label: for those who do not see
 * it. describe(row, column): the readout of a cell. handle: see Picture. Large matrices can be zoomed: buttons, keys,
 * wheel.
 */
export function Matrix(props) {
  const { values, rowNames, columnNames, rowTitle, columnTitle, rowColour = "query", columnColour = "key" } = props;
  const { selected, hovered, onHover, onPick, kind, label, describe, handle } = props;
  const [rows, columns] = [rowNames.length, columnNames.length];
  const bitmap = useBitmap(props, rows, columns);
  const { seen, zoom, follow, setWindow } = useWindow(rows, columns, selected);
  const layoutOf = useLayout(props, seen);
  const layout = useRef(null);

  const draw = useCallback(
    (context, { width, colours }) => {
      const inks = { ink: colours.ink, line: colours.line, row: colours[rowColour], column: colours[columnColour] };
      drawMatrix(context, { bitmap, seen, at: layoutOf(width), rowNames, columnNames, rowTitle, columnTitle, inks });
    },
    [bitmap, layoutOf, seen, rowNames, columnNames, rowTitle, columnTitle, rowColour, columnColour],
  );
  const overlay = useCallback(
    (context, { width, colours }) => {
      layout.current = layoutOf(width);
      const inks = { row: colours[rowColour], column: colours[columnColour] };
      drawCross(context, selected, seen, layout.current, 2.5, inks);
      drawCross(context, hovered, seen, layout.current, 1.5, inks);
    },
    [selected, hovered, layoutOf, seen, rowColour, columnColour],
  );

  const cellAt = (x, y) => cellOf(layout.current, seen, x, y);
  const shown = hovered ?? selected;
  const isCell = shown && Number.isInteger(shown.row) && Number.isInteger(shown.column);
  const canZoom = Math.max(rows, columns) > FEWEST_ZOOMED;
  const isAll = isWhole(seen, rows, columns);
  const onKey = (key) => {
    const from = { row: shown?.row ?? 0, column: shown?.column ?? 0 };
    const [down, right] = STEPS[key] ?? [0, 0];
    const nearer = canZoom && { "+": 2, "=": 2, "-": 0.5 }[key];
    if (down || right) {
      const next = { row: clamped(from.row + down, rows), column: clamped(from.column + right, columns) };
      (onHover ?? onPick)(next);
      follow(next);
    } else if (key === "Enter" || key === " ") onPick?.(from);
    else if (nearer) zoom(nearer, from);
    else if (canZoom && key === "0") setWindow(whole(rows, columns));
    else return false;
    return true;
  };
  const onWheel = (event, x, y) => {
    if (!event.ctrlKey || !cellAt(x, y)) return; // the bare wheel scrolls the page
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.25 : 0.8, cellAt(x, y));
  };
  const plain = (row, column) => `${rowNames[row]} · ${columnNames[column]}: ${format(values[row * columns + column])}`;
  const said = describe ?? plain;
  const largestCells = useMemo(() => largest(kind === "diverging" ? values.map(Math.abs) : values, MOST_TOLD), [values, kind]);
  const told = largestCells.map((place) => said(Math.floor(place / columns), place % columns)).join("; ");
  return html`${canZoom &&
  html`<${ZoomButtons} seen=${seen} rows=${rows} columns=${columns}
    onZoom=${(factor) => zoom(factor, shown)} onSee=${setWindow} />`}
  <${Picture} draw=${draw} overlay=${overlay} label=${label} summary=${told && `Largest: ${told}.`} handle=${handle}
    height=${(width) => layoutOf(width).height}
    onPoint=${onHover && ((x, y) => onHover(cellAt(x, y)))}
    onPick=${onPick && ((x, y) => cellAt(x, y) && onPick(cellAt(x, y)))}
    onKey=${(onHover || onPick) && onKey}
    onWheel=${canZoom && onWheel}
    onDrag=${!isAll && ((dx, dy) => setWindow(layout.current.dragged(dx, dy)))}
    readout=${isCell ? said(clamped(shown.row, rows), clamped(shown.column, columns)) : ""} />`;
}

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** The cell at a place of the picture, or null. */
function cellOf(at, seen, x, y) {
  if (x === null || !at) return null;
  const column = Math.floor((x - at.left) / at.cell);
  const row = Math.floor((y - at.top) / at.tall);
  if (row < 0 || row >= seen.rows || column < 0 || column >= seen.columns) return null;
  return { row: row + seen.row, column: column + seen.column };
}

const clamped = (place, count) => Math.max(0, Math.min(count - 1, place));

/** {canvas, hasGaps}: the values as pixels, made again only when they or their colours change. */
function useBitmap({ values, kind = "sequential", low, high }, rows, columns) {
  const mode = useStore(theme);
  return useMemo(() => {
    const range = { ...scaleOf(values, kind), ...(high === undefined ? {} : { low, high }) };
    const canvas = bitmapOf(values, rows, columns, { ...range, mode });
    return { canvas, hasGaps: !values.every(Number.isFinite) };
  }, [values, kind, low, high, rows, columns, mode]);
}

/** The part that is seen, and what changes it; another shape of the matrix begins with all of it. */
function useWindow(rows, columns, selected) {
  const [last, setWindow] = useState(null);
  const shape = `${rows} ${columns}`;
  const seen = useMemo(() => (last?.shape === shape ? last : { ...whole(rows, columns), shape }), [last, shape]);
  const set = (next) => next !== seen && setWindow({ ...next, shape });
  const follow = (place) => set(containing(seen, place, rows, columns));
  useEffect(() => {
    if (selected && !isWhole(seen, rows, columns)) follow(selected);
  }, [selected?.row, selected?.column]);
  const middle = { row: seen.row + seen.rows / 2, column: seen.column + seen.columns / 2 };
  const zoom = (factor, at) => {
    const kept = { row: at?.row ?? middle.row, column: at?.column ?? middle.column };
    set(scaled(seen, factor, kept, rows, columns));
  };
  return { seen, zoom, follow, setWindow: set };
}

/** A function from the width to where the seen cells lie: {left, top, cell, tall, height, isLabelled, dragged(dx, dy)}. */
function useLayout({ rowNames, columnNames, square = true, maxCell = 34 }, seen) {
  const rest = useRef({ x: 0, y: 0 }); // of a drag: what was less than a cell
  const margins = useMemo(
    () => ({ left: textWidth(rowNames, 130), top: textWidth(columnNames, 90) }),
    [rowNames, columnNames],
  );
  return useCallback(
    (width) => {
      const roomy = width - margins.left - 20;
      const most = square ? Math.min(maxCell, Math.max(width, SHORTEST) / seen.rows) : maxCell; // no higher than wide
      const isLabelled = Math.min(roomy / seen.columns, most) >= SMALLEST_LABELLED;
      const left = (isLabelled ? margins.left : 4) + 16;
      const top = (isLabelled ? margins.top : 4) + 16;
      const cell = Math.min((width - left - 4) / seen.columns, most);
      const tall = square ? cell : Math.max(Math.min(maxCell, 420 / seen.rows), 1);
      const dragged = (dx, dy) => {
        const [right, down] = [Math.round((rest.current.x - dx) / cell), Math.round((rest.current.y - dy) / tall)];
        rest.current.x += -dx - right * cell;
        rest.current.y += -dy - down * tall;
        return moved(seen, down, right, rowNames.length, columnNames.length);
      };
      return { left, top, cell, tall, height: Math.ceil(top + tall * seen.rows + 6), isLabelled, dragged };
    },
    [margins, seen, rowNames.length, columnNames.length, maxCell, square],
  );
}

/** The pixels of the seen cells alone, so that SVG files hold no more than is seen. */
function seenPart(canvas, seen) {
  if (isWhole(seen, canvas.height, canvas.width)) return canvas;
  const part = document.createElement("canvas");
  [part.width, part.height] = [seen.columns, seen.rows];
  part.getContext("2d").drawImage(canvas, -seen.column, -seen.row);
  return part;
}

/** Cells, frame, names and titles; `at`: see useLayout, inks: CSS colours. */
function drawMatrix(context, { bitmap, seen, at, rowNames, columnNames, rowTitle, columnTitle, inks }) {
  const { left, top, cell, tall } = at;
  const [width, height] = [cell * seen.columns, tall * seen.rows];
  if (bitmap.hasGaps) drawHatching(context, left, top, width, height, inks.line);
  context.imageSmoothingEnabled = Math.min(cell, tall) < 1; // else small cells between the pixels are lost
  context.drawImage(seenPart(bitmap.canvas, seen), left, top, width, height);
  context.strokeStyle = inks.line;
  context.lineWidth = 1;
  context.strokeRect(left - 0.5, top - 0.5, width + 1, height + 1);
  if (at.isLabelled) drawNames(context, { rowNames, columnNames, seen, ...at, colour: inks.ink });
  drawTitles(context, { rowTitle, columnTitle, left, top, width, height, rowInk: inks.row, columnInk: inks.column });
}

/** Diagonal lines over the rectangle; its corners are cut by hand, since saved pictures know no clipping. */
function drawHatching(context, left, top, width, height, colour) {
  context.strokeStyle = colour;
  context.lineWidth = 1;
  context.beginPath();
  for (let sum = 6; sum < width + height; sum += 6) {
    const [fromX, toX] = [Math.min(sum, width), Math.max(0, sum - height)];
    context.moveTo(left + fromX, top + sum - fromX);
    context.lineTo(left + toX, top + sum - toX);
  }
  context.stroke();
}

function drawCross(context, place, seen, at, lineWidth, inks) {
  if (!place) return;
  const [row, column] = [place.row - seen.row, place.column - seen.column];
  const mark = (x, y, width, height, colour) => {
    // around cells that are smaller than the line itself: else it hides what it marks
    const out = Math.min(width, height) < 8 ? 1 : 0;
    context.lineWidth = out ? 1 : lineWidth;
    context.strokeStyle = colour;
    context.strokeRect(x - out, y - out, width + 2 * out, height + 2 * out);
  };
  if (Number.isInteger(place.row) && row >= 0 && row < seen.rows) {
    mark(at.left, at.top + row * at.tall, at.cell * seen.columns, at.tall, inks.row);
  }
  if (Number.isInteger(place.column) && column >= 0 && column < seen.columns) {
    mark(at.left + column * at.cell, at.top, at.cell, at.tall * seen.rows, inks.column);
  }
}

function drawNames(context, { rowNames, columnNames, seen, left, top, cell, tall, colour }) {
  context.font = `${FONT}px ui-monospace, monospace`;
  context.fillStyle = colour;
  context.textBaseline = "middle";
  const rowStep = Math.max(1, Math.ceil((FONT + 1) / tall));
  context.textAlign = "right";
  for (let row = 0; row < seen.rows; row += rowStep) {
    fillFitted(context, shownToken(rowNames[seen.row + row]), left - 24, left - 5, top + (row + 0.5) * tall);
  }
  context.textAlign = "left";
  for (let column = 0; column < seen.columns; column += 1) {
    context.save();
    context.translate(left + (column + 0.5) * cell, top - 5);
    context.rotate(-Math.PI / 2);
    fillFitted(context, shownToken(columnNames[seen.column + column]), top - 22, 0, 0);
    context.restore();
  }
}

function drawTitles(context, { rowTitle, columnTitle, left, top, width, height, rowInk, columnInk }) {
  context.font = `600 ${FONT}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  context.textAlign = "center";
  if (columnTitle) {
    context.fillStyle = columnInk;
    context.fillText(columnTitle, left + width / 2, 8);
  }
  if (rowTitle) {
    context.fillStyle = rowInk;
    context.save();
    context.translate(8, top + height / 2);
    context.rotate(-Math.PI / 2);
    context.fillText(rowTitle, 0, 0);
    context.restore();
  }
}
