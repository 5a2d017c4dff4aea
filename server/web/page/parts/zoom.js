// The visible part of a large matrix: a window of whole rows and columns that can be moved and zoomed.
import { html } from "../core/html.js";
import { within } from "../core/numbers.js";

const FEWEST = 8; // rows or columns of the smallest window

/** {row, column} of the first cell, and the numbers of {rows, columns}. */
export const whole = (rows, columns) => ({ row: 0, column: 0, rows, columns });

export const isWhole = (seen, rows, columns) => seen.rows === rows && seen.columns === columns;

/** The window zoomed by `factor` (under 1: out), with the cell `at` at the same place on the screen. */
export function scaled(seen, factor, at, rows, columns) {
  const along = (first, count, most, place) => {
    const next = within(Math.round(count / factor), Math.min(FEWEST, most), most);
    const share = (place + 0.5 - first) / count;
    return [within(Math.round(place + 0.5 - share * next), 0, most - next), next];
  };
  const [row, tall] = along(seen.row, seen.rows, rows, at.row);
  const [column, wide] = along(seen.column, seen.columns, columns, at.column);
  return { row, column, rows: tall, columns: wide };
}

export function moved(seen, down, right, rows, columns) {
  const row = within(seen.row + down, 0, rows - seen.rows);
  const column = within(seen.column + right, 0, columns - seen.columns);
  return row === seen.row && column === seen.column ? seen : { ...seen, row, column };
}

/** The smallest move that makes the cell visible; a null row or column is ignored. */
export function containing(seen, place, rows, columns) {
  const along = (first, count, wanted) => {
    if (!Number.isInteger(wanted)) return 0;
    return wanted < first ? wanted - first : Math.max(0, wanted - (first + count - 1));
  };
  const down = along(seen.row, seen.rows, place.row);
  return moved(seen, down, along(seen.column, seen.columns, place.column), rows, columns);
}

export function ZoomButtons({ seen, rows, columns, onZoom, onSee }) {
  const isAll = isWhole(seen, rows, columns);
  const span = (first, count) => `${first}–${first + count - 1}`;
  const part = `rows ${span(seen.row, seen.rows)}, columns ${span(seen.column, seen.columns)}; drag to move`;
  return html`<div class="zoom">
    <button title="Nearer (+, or Ctrl and wheel)" aria-label="Nearer" onClick=${() => onZoom(2)}>+</button>
    <button title="Farther (−)" aria-label="Farther" disabled=${isAll} onClick=${() => onZoom(0.5)}>−</button>
    <button title="All of it (0)" disabled=${isAll} onClick=${() => onSee(whole(rows, columns))}>all</button>
    <span class="hint">${isAll ? `${rows} × ${columns} cells` : part}</span>
  </div>`;
}
