// A list of bars: a table, so that screen readers and copying work; the bars are decoration.
import { classes, html } from "../core/html.js";
import { format, rankAt } from "../core/numbers.js";

export const TIED = "equal within the model's precision: the order means nothing";

/**
 * rows: [{name, value, note, title, isOn, isFixed}]. columns: heads of the table, [what, value, note]. largest: the value
 * of a full bar (default: the largest one). onPick(index): a click in a row, unless it isFixed. isRanked: numbers that
 * are equal within the model's precision have a =.
 */
export function Bars({ rows, columns, caption, largest, onPick, write = format, isRanked = false }) {
  const values = rows.map((row) => row.value);
  const isSigned = values.some((value) => value < 0);
  const high = largest ?? Math.max(...values, isSigned ? 0 : 1e-30);
  const low = isSigned ? (largest === undefined ? Math.min(...values) : -largest) : 0;
  const share = (value) => (Math.min(Math.abs(value), Math.max(high, -low)) / (high - low)) * 100;
  const zero = share(low);
  const isTied = (place) => isRanked && rankAt((i) => values[i], place, values.length).isTied;
  const hasNotes = rows.some((row) => row.note !== undefined);
  return html`<table class="bars" aria-label=${caption ? undefined : columns.filter(Boolean).join(", ")}>
    ${caption && html`<caption>${caption}</caption>`}
    <thead><tr>
      <th scope="col">${columns[0]}</th><th scope="col"><span class="unseen">bar</span></th>
      <th scope="col">${columns[1]}</th>${hasNotes && html`<th scope="col">${columns[2]}</th>`}
    </tr></thead>
    <tbody>${rows.map((row, index) => {
      const width = share(row.value);
      const style = { width: `${width}%`, marginLeft: `${row.value < 0 ? zero - width : zero}%` };
      const pick = onPick && !row.isFixed && (() => onPick(index));
      const name = html`<code>${row.name}</code>`;
      return html`<tr key=${row.key ?? index} class=${classes(row.isOn && "on", pick && "pickable")} title=${row.title}
        onClick=${pick}>
        <th scope="row">${pick ? html`<button class="plain">${name}</button>` : name}</th>
        <td class="bar"><div class=${row.value < 0 ? "negative" : "positive"} style=${style}></div></td>
        <td class=${classes("number", isTied(index) && "tied")} title=${isTied(index) ? TIED : undefined}>${write(row.value)}</td>
        ${hasNotes && html`<td class="note">${row.note}</td>`}
      </tr>`;
    })}</tbody>
  </table>`;
}
