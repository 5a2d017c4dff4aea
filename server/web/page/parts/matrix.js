// A matrix of numbers as coloured cells, however large: one bitmap, drawn once; only the crosshair moves.
import { colourIndex, colourTable } from "../core/colour.js";
import { html, useCallback, useMemo, useRef } from "../core/html.js";
import { shownToken } from "../core/model.js";
import { extent, format } from "../core/numbers.js";
import { useStore } from "../core/store.js";
import { theme } from "../core/theme.js";
import { Picture } from "./picture.js";

const FONT = 12;
const SMALLEST_LABELLED = 11; // CSS pixels of a cell below which names no longer fit

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

/**
 * values: row-major [rows, columns]; rowNames, columnNames: tokens or other names (their number gives the shape).
 * rowTitle, columnTitle: what the axes are ("query", "key"); kind: "sequential" or "diverging"; low, high: the range of
 * colours (default: from the values). selected: {row, column} or null, hovered likewise: the crosshairs.
 * onHover({row, column} | null), onPick({row, column}). square: cells as high as wide. label: for those who do not see it.
 * describe(row, column): the readout of a cell. handle: see Picture.
 */
export function Matrix(props) {
  const { values, rowNames, columnNames, rowTitle, columnTitle, kind = "sequential", low, high } = props;
  const { selected, hovered, onHover, onPick, square = true, label, describe, handle, maxCell = 34 } = props;
  const mode = useStore(theme);
  const [rows, columns] = [rowNames.length, columnNames.length];
  const range = useMemo(() => ({ ...scaleOf(values, kind), ...(high === undefined ? {} : { low, high }) }), [values, kind, low, high]);
  const bitmap = useMemo(() => bitmapOf(values, rows, columns, { ...range, mode }), [values, rows, columns, range, mode]);
  const margins = useMemo(() => ({ left: textWidth(rowNames, 130), top: textWidth(columnNames, 90) }), [rowNames, columnNames]);

  const layoutOf = useCallback(
    (width) => {
      const roomy = width - margins.left - 20;
      const isLabelled = Math.min(roomy / columns, maxCell) >= SMALLEST_LABELLED;
      const left = (isLabelled ? margins.left : 4) + 16;
      const top = (isLabelled ? margins.top : 4) + 16;
      const cell = Math.min((width - left - 4) / columns, maxCell);
      const tall = square ? cell : Math.max(Math.min(maxCell, 420 / rows), 1);
      return { left, top, cell, tall, isLabelled };
    },
    [margins, columns, rows, maxCell, square],
  );
  const layout = useRef(null);

  const draw = useCallback(
    (context, { width, colours }) => {
      const { left, top, cell, tall, isLabelled } = layoutOf(width);
      context.imageSmoothingEnabled = false;
      context.drawImage(bitmap, left, top, cell * columns, tall * rows);
      context.strokeStyle = colours.line;
      context.lineWidth = 1;
      context.strokeRect(left - 0.5, top - 0.5, cell * columns + 1, tall * rows + 1);
      context.font = `${FONT}px ui-monospace, monospace`;
      context.fillStyle = colours.ink;
      if (isLabelled) drawNames(context, { rowNames, columnNames, left, top, cell, tall });
      drawTitles(context, { rowTitle, columnTitle, left, top, width: cell * columns, height: tall * rows, colours });
    },
    [bitmap, layoutOf, rowNames, columnNames, rowTitle, columnTitle, rows, columns],
  );

  const overlay = useCallback(
    (context, { width, colours }) => {
      const at = layoutOf(width);
      layout.current = at;
      const marks = [
        [selected, 2.5, 0.9],
        [hovered, 1.5, 1],
      ];
      for (const [place, lineWidth, alpha] of marks) {
        if (!place) continue;
        context.globalAlpha = alpha;
        context.lineWidth = lineWidth;
        if (place.row !== null && place.row !== undefined) {
          context.strokeStyle = colours.query;
          context.strokeRect(at.left, at.top + place.row * at.tall, at.cell * columns, at.tall);
        }
        if (place.column !== null && place.column !== undefined) {
          context.strokeStyle = colours.key;
          context.strokeRect(at.left + place.column * at.cell, at.top, at.cell, at.tall * rows);
        }
      }
    },
    [selected, hovered, layoutOf, rows, columns],
  );

  const cellAt = (x, y) => {
    const at = layout.current;
    if (x === null || !at) return null;
    const column = Math.floor((x - at.left) / at.cell);
    const row = Math.floor((y - at.top) / at.tall);
    return row >= 0 && row < rows && column >= 0 && column < columns ? { row, column } : null;
  };
  const onKey = (key) => {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const from = hovered ?? selected ?? { row: 0, column: 0 };
    if (key === "Enter" || key === " ") {
      onPick?.(from);
      return Boolean(onPick);
    }
    if (!(key in steps) || !onHover) return false;
    const [down, right] = steps[key];
    onHover({
      row: Math.max(0, Math.min(rows - 1, (from.row ?? 0) + down)),
      column: Math.max(0, Math.min(columns - 1, (from.column ?? 0) + right)),
    });
    return true;
  };
  const shown = hovered ?? selected;
  const described = describe ?? ((row, column) => `${rowNames[row]} · ${columnNames[column]}: ${format(values[row * columns + column])}`);
  const isCell = shown && Number.isInteger(shown.row) && Number.isInteger(shown.column);
  return html`<${Picture}
    draw=${draw}
    overlay=${overlay}
    height=${(width) => {
      const { top, tall } = layoutOf(width);
      return Math.ceil(top + tall * rows + 6);
    }}
    label=${label}
    onPoint=${onHover && ((x, y) => onHover(cellAt(x, y)))}
    onPick=${onPick && ((x, y) => cellAt(x, y) && onPick(cellAt(x, y)))}
    onKey=${(onHover || onPick) && onKey}
    readout=${isCell ? described(shown.row, shown.column) : ""}
    handle=${handle}
  />`;
}

function drawNames(context, { rowNames, columnNames, left, top, cell, tall }) {
  context.textBaseline = "middle";
  const rowStep = Math.max(1, Math.ceil((FONT + 1) / tall));
  context.textAlign = "right";
  rowNames.forEach((name, row) => {
    if (row % rowStep === 0) context.fillText(fitted(context, name, left - 24), left - 5, top + (row + 0.5) * tall);
  });
  context.textAlign = "left";
  columnNames.forEach((name, column) => {
    context.save();
    context.translate(left + (column + 0.5) * cell, top - 5);
    context.rotate(-Math.PI / 2);
    context.fillText(fitted(context, name, top - 22), 0, 0);
    context.restore();
  });
}

function fitted(context, name, room) {
  let shown = shownToken(name);
  while (shown.length > 1 && context.measureText(shown).width > room) shown = `${shown.slice(0, -2)}…`;
  return shown;
}

function drawTitles(context, { rowTitle, columnTitle, left, top, width, height, colours }) {
  context.font = `600 ${FONT}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  context.textAlign = "center";
  if (columnTitle) {
    context.fillStyle = colours.key;
    context.fillText(columnTitle, left + width / 2, 8);
  }
  if (rowTitle) {
    context.fillStyle = colours.query;
    context.save();
    context.translate(8, top + height / 2);
    context.rotate(-Math.PI / 2);
    context.fillText(rowTitle, 0, 0);
    context.restore();
  }
}
