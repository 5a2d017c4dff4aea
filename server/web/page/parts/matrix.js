// A matrix of numbers as coloured cells, of any size: one bitmap, drawn once; only the crosshair is redrawn.
import { colourIndex, colourOf, colourTable } from "../core/colour.js";
import { html, useCallback, useEffect, useMemo, useRef, useState } from "../core/html.js";
import { shownToken } from "../core/model.js";
import { extent, format, largest, sizeOf, within } from "../core/numbers.js";
import { useStore } from "../core/store.js";
import { theme } from "../core/theme.js";
import { FONT, drawCross, drawMatrix } from "./matrix_drawing.js";
import { Picture, STEPS } from "./picture.js";
import { ZoomButtons, containing, isWhole, moved, scaled, whole } from "./zoom.js";

const MOST_NAMED = 0.25;
const SHORTEST = 480;
const MOST_TOLD = 4;
const FEWEST_ZOOMED = 40; // rows or columns; smaller matrices need no zoom

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
  return kind === "diverging" ? { low: -sizeOf([low, high]), high: sizeOf([low, high]), kind } : { low: Math.min(0, low), high, kind };
}

const ENDS_AT = 0.99;

/** Like scaleOf for both signs, but ending at the size that 99 of 100 numbers have at most: a few large ones hide no others. */
export function clippedScale(values) {
  const sizes = Float32Array.from(values, Math.abs).sort();
  const high = sizes[Math.floor((sizes.length - 1) * ENDS_AT)] || sizes.at(-1);
  return { low: -high, high, kind: "diverging" };
}

function textWidth(names, most) {
  const context = document.createElement("canvas").getContext("2d");
  context.font = `${FONT}px ui-monospace, monospace`;
  const widest = names.reduce((width, name) => Math.max(width, context.measureText(shownToken(name)).width), 0);
  return Math.min(Math.ceil(widest) + 8, most);
}

/** The colour scale as a bar. isRooted: shades follow the square root; masked: the meaning of hatched cells. */
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
 * values: row-major, hatched where they are not finite (masked or absent); rowTitle, columnTitle: names of the axes; low,
 * high: the range of colours (default: of the values). selected, hovered: {row, column} or null, shown as crosshairs in the
 * colours rowColour and columnColour. numbers: those in cells that are large enough (default: the values); gap(row, column):
 * the text of cells without a number; isStruck(row, column): cells whose number has no effect. cells: "dots" are discs whose
 * area is the value, or that in `areas`. onHover({row, column} | null): for a caller that keeps the pointed cell; square:
 * cells as high as wide; describe(row, column): the readout. label, handle: see Picture.
 */
export function Matrix(props) {
  const { values, rowNames, columnNames, rowTitle, columnTitle, rowColour = "query", columnColour = "key" } = props;
  const [pointed, setPointed] = useState(null);
  const { selected, onHover = setPointed, onPick, kind, label, describe, handle } = props;
  const hovered = onHover === setPointed ? inShape(pointed, props) : props.hovered;
  const { numbers, gap, isStruck, areas, cells = "cells" } = props;
  const [rows, columns] = [rowNames.length, columnNames.length];
  const bitmap = useBitmap(props, rows, columns);
  const { seen, zoom, follow, setWindow } = useWindow(rows, columns, selected);
  const layoutOf = useLayout(props, seen);
  const layout = useRef(null);

  const draw = useCallback(
    (context, { width, colours, mode }) => {
      const inks = { ink: colours.ink, line: colours.line, row: colours[rowColour], column: colours[columnColour] };
      const marks = { numbers: numbers ?? values, gap, isStruck, areas, cells, mode, colours };
      drawMatrix(context, { bitmap, seen, at: layoutOf(width), rowNames, columnNames, rowTitle, columnTitle, inks, marks });
    },
    [bitmap, layoutOf, seen, rowNames, columnNames, rowTitle, columnTitle, rowColour, columnColour, numbers, isStruck, areas, cells],
  );
  const overlay = useCallback(
    (context, { width, colours }) => {
      layout.current = layoutOf(width);
      const inks = { row: colours[rowColour], column: colours[columnColour], ground: colours.raised };
      const names = { rowNames, columnNames };
      drawCross(context, selected, seen, layout.current, 2.5, inks, names);
      drawCross(context, hovered, seen, layout.current, 1.5, inks, names);
    },
    [selected, hovered, layoutOf, seen, rowColour, columnColour, rowNames, columnNames],
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
      onHover(next);
      follow(next);
    } else if (key === "Enter" || key === " ") onPick?.(from);
    else if (nearer) zoom(nearer, from);
    else if (canZoom && key === "0") setWindow(whole(rows, columns));
    else return false;
    return true;
  };
  const onWheel = (event, x, y) => {
    if (!event.ctrlKey || !cellAt(x, y)) return; // the wheel without a modifier scrolls the page
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.25 : 0.8, cellAt(x, y));
  };
  const largestCells = useMemo(() => largest(kind === "diverging" ? values.map(Math.abs) : values, MOST_TOLD), [values, kind]);
  const told = largestCells.map((place) => describe(Math.floor(place / columns), place % columns)).join("; ");
  const readout = isCell ? describe(clamped(shown.row, rows), clamped(shown.column, columns)) : "";
  return html`${canZoom &&
  html`<${ZoomButtons} seen=${seen} rows=${rows} columns=${columns}
    onZoom=${(factor) => zoom(factor, shown)} onSee=${setWindow} />`}
  <${Picture} draw=${draw} overlay=${overlay} label=${label} summary=${told && `Largest: ${told}.`} handle=${handle}
    height=${(width) => layoutOf(width).height}
    onPoint=${(x, y) => onHover(cellAt(x, y))}
    onPick=${onPick && ((x, y) => cellAt(x, y) && onPick(cellAt(x, y)))}
    onKey=${onKey}
    onWheel=${canZoom && onWheel}
    onDrag=${!isAll && ((dx, dy) => setWindow(layout.current.dragged(dx, dy)))}
    readout=${readout} tip=${hovered ? readout : ""} tipAt=${(width) => isCell && middleOf(shown, seen, layoutOf(width))} />`;
}

const inShape = (cell, { rowNames, columnNames }) => (cell?.row < rowNames.length && cell.column < columnNames.length ? cell : null);

function cellOf(at, seen, x, y) {
  if (x === null || !at) return null;
  const column = Math.floor((x - at.left) / at.cell);
  const row = Math.floor((y - at.top) / at.tall);
  if (row < 0 || row >= seen.rows || column < 0 || column >= seen.columns) return null;
  return { row: row + seen.row, column: column + seen.column };
}

const middleOf = ({ row, column }, seen, at) => ({
  x: at.left + (column - seen.column + 0.5) * at.cell,
  y: at.top + (row - seen.row + 0.5) * at.tall,
});

const clamped = (place, count) => within(place, 0, count - 1);

function useBitmap({ values, kind = "sequential", low, high }, rows, columns) {
  const mode = useStore(theme);
  return useMemo(() => {
    const range = { ...scaleOf(values, kind), ...(high === undefined ? {} : { low, high }) };
    const canvas = bitmapOf(values, rows, columns, { ...range, mode });
    return { canvas, values, range, hasGaps: !values.every(Number.isFinite) };
  }, [values, kind, low, high, rows, columns, mode]);
}

/** A new shape of the matrix resets the window to the whole matrix. */
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

/** A function from the width to the layout of the visible cells. */
function useLayout({ rowNames, columnNames, square = true, maxCell = 34 }, seen) {
  const rest = useRef({ x: 0, y: 0 }); // drag distance of less than one cell
  const margins = useMemo(
    () => ({ left: textWidth(rowNames, 130), top: textWidth(columnNames, 90) }),
    [rowNames, columnNames],
  );
  return useCallback(
    (width) => {
      const most = square ? Math.min(maxCell, Math.max(width, SHORTEST) / seen.rows) : maxCell; // no higher than wide
      const left = Math.min(margins.left, Math.round(MOST_NAMED * width)) + 16;
      const top = margins.top + 16;
      const cell = Math.min((width - left - 4) / seen.columns, most);
      const tall = square ? cell : Math.max(Math.min(maxCell, 420 / seen.rows), 1);
      const dragged = (dx, dy) => {
        const [right, down] = [Math.round((rest.current.x - dx) / cell), Math.round((rest.current.y - dy) / tall)];
        rest.current.x += -dx - right * cell;
        rest.current.y += -dy - down * tall;
        return moved(seen, down, right, rowNames.length, columnNames.length);
      };
      return { left, top, cell, tall, height: Math.ceil(top + tall * seen.rows + 6), dragged };
    },
    [margins, seen, rowNames.length, columnNames.length, maxCell, square],
  );
}
