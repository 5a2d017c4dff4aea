// Vectors as strips of signed bars under each other, number by number in the same column: q above k above q times k.
import { html, useCallback, useMemo, useRef, useState } from "../core/html.js";
import { extent, format, largest, sizeOf, within } from "../core/numbers.js";
import { fill, line } from "./ink.js";
import { fillFitted, Picture, STEPS } from "./picture.js";
import { SaveMenu } from "./tools.js";

const MARGIN = 8;
const GAP = 8;
const MOST_TOLD = 6;

/**
 * rows: [{name, values, tone, note, height, sums}]. note: text at the right end; sums: a running sum, drawn as an area.
 * Each row has its own scale, unless hasOneScale is set. order: the indices of the columns in display order.
 * describe(row, index, column): the readout of a number; onPickRow(row), selectedRow: for rows that can be selected.
 */
function Strips({ rows, order = null, hasOneScale = false, label, describe, onPickRow, selectedRow = null, handle }) {
  const [pointed, setAt] = useState(null);
  const count = rows[0].values.length;
  // the pointed column may not exist in a shorter text
  const at = pointed && pointed.row < rows.length && pointed.column < count ? pointed : null;
  const tops = useMemo(() => topsOf(rows), [rows]);
  const scale = hasOneScale ? Math.max(...rows.map(({ values }) => sizeOf(values))) : null;
  const place = (width) => {
    const left = width < 480 ? 76 : 116;
    const right = rows.some((row) => row.note) ? noteRoom(width) : MARGIN;
    return { left, cell: (width - left - right) / count };
  };
  const draw = useCallback(
    (context, { width, colours }) => {
      const { left, cell } = place(width);
      rows.forEach((row, index) => {
        const box = { left, top: tops[index], cell, height: tops[index + 1] - tops[index] - GAP };
        drawNames(context, row, box, width, colours, index === selectedRow);
        if (row.sums) drawSums(context, row.values, box, colours);
        else drawBars(context, row.values, order, scale ?? sizeOf(row.values), box, colours, row.tone);
      });
    },
    [rows, order, tops, selectedRow],
  );
  const overlay = useCallback(
    (context, { width, colours }) => {
      if (at === null) return;
      const { left, cell } = place(width);
      context.globalAlpha = 0.18;
      fill(context, left + at.column * cell, 0, Math.max(cell, 1), tops.at(-1), colours.ink);
      context.globalAlpha = 1;
      if (!onPickRow) return;
      context.strokeStyle = colours.ink;
      context.strokeRect(1, tops[at.row] - 2, width - 2, tops[at.row + 1] - tops[at.row] - GAP + 4);
    },
    [pointed, tops, count],
  );
  const move = (row, column) =>
    setAt({ row: within(row, 0, rows.length - 1), column: within(column, 0, count - 1) });
  const point = (x, y, width) => {
    if (x === null) return setAt(null);
    const { left, cell } = place(width);
    return move(tops.findLastIndex((top) => top <= y), Math.floor((x - left) / cell));
  };
  const index = at && (order ? order[at.column] : at.column);
  const says = describe ?? ((_, i) => rows.map((row) => `${row.name} ${format(row.values[i])}`).join(", "));
  const summary = useMemo(() => rows.slice(0, MOST_TOLD).map(inWords).join("; "), [rows]);
  return html`<${Picture} draw=${draw} overlay=${overlay} height=${tops.at(-1)} label=${label} summary=${summary} handle=${handle}
    readout=${at === null ? "" : `number ${index}: ${says(at.row, index, at.column)}`}
    tipAt=${(width) => at && { x: place(width).left + (at.column + 0.5) * place(width).cell, y: tops[at.row] }}
    onPoint=${point}
    onPick=${onPickRow && (() => at && onPickRow(at.row))}
    onKey=${(key) => {
      const step = STEPS[key];
      if (step && (step[0] === 0 || onPickRow)) {
        move((at?.row ?? selectedRow ?? 0) + step[0], at ? at.column + step[1] : 0);
      } else if ((key === "Enter" || key === " ") && onPickRow && at) onPickRow(at.row);
      else return false;
      return true;
    }} />`;
}

function inWords({ name, values, sums }) {
  if (sums) return `${name} ends at ${format(values.at(-1))}`;
  const [place] = largest(Array.from(values, Math.abs), 1);
  return `${name}: largest ${format(values[place])}, number ${place} of ${values.length}`;
}

export function SavedStrips({ name, rows, order = null, ...more }) {
  const picture = useRef(null);
  const array = useMemo(() => {
    const inOrder = (row) => (order && !row.sums ? Array.from(order, (index) => row.values[index]) : Array.from(row.values));
    return { data: Float32Array.from(rows.flatMap(inOrder)), shape: [rows.length, rows[0].values.length] };
  }, [rows, order]);
  const arrays = [{ label: "numbers", array, rows: rows.map((row) => row.name), columns: order && Array.from(order) }];
  return html`<div class="saved-strips"><${Strips} rows=${rows} order=${order} handle=${picture} ...${more} />
    <${SaveMenu} picture=${picture} name=${name} arrays=${arrays} /></div>`;
}

function topsOf(rows) {
  const tops = [MARGIN];
  for (const row of rows) tops.push(tops.at(-1) + (row.height ?? 34) + GAP);
  return tops;
}

const noteRoom = (width) => (width < 480 ? 68 : 84);

function drawNames(context, row, { left, top, height }, width, colours, isSelected) {
  context.textBaseline = "middle";
  context.textAlign = "right";
  context.fillStyle = colours[row.tone === "muted" ? "muted" : row.tone] ?? colours.ink;
  context.font = `${isSelected || row.strong ? "600 " : ""}12px ui-monospace, monospace`;
  fillFitted(context, row.name, left - 10, left - 8, top + height / 2);
  if (!row.note) return;
  context.textAlign = "left";
  context.fillStyle = colours.ink;
  context.fillText(row.note, width - noteRoom(width) + 6, top + height / 2);
}

/** Signed bars from the middle line; if columns are narrower than a pixel, all bars in one pixel are drawn as one. */
function drawBars(context, values, order, full, { left, top, cell, height }, colours, tone) {
  const middle = top + height / 2;
  fill(context, left, top, cell * values.length, height, colours.sunk);
  context.fillStyle = colours[tone];
  const perMark = Math.max(1, Math.ceil(1 / cell));
  const gap = cell >= 4 ? 1 : 0;
  for (let first = 0; first < values.length; first += perMark) {
    let [low, high] = [0, 0];
    for (let i = first; i < Math.min(first + perMark, values.length); i += 1) {
      const value = values[order ? order[i] : i];
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    const [up, down] = [Math.min(high / full, 1) * (height / 2), Math.min(-low / full, 1) * (height / 2)];
    context.fillRect(left + first * cell, middle - up, Math.max(cell * perMark - gap, 0.5), up + down);
  }
  fill(context, left, middle - 0.5, cell * values.length, 1, colours.line);
}

function drawSums(context, values, { left, top, cell, height }, colours) {
  const [low, high] = extent([0, ...values]);
  const y = (value) => top + ((high - value) / (high - low || 1)) * height;
  const zero = y(0);
  context.fillStyle = colours.muted;
  context.globalAlpha = 0.25;
  values.forEach((value, i) => {
    context.fillRect(left + i * cell, Math.min(zero, y(value)), cell, Math.abs(y(value) - zero));
  });
  context.globalAlpha = 1;
  line(context, [[left, zero], [left + cell * values.length, zero]], colours.line);
  line(context, [[left, zero], ...Array.from(values, (value, i) => [left + (i + 1) * cell, y(value)])], colours.ink, 2);
}
