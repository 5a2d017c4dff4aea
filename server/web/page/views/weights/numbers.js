// Any weight as a grid of its numbers: a small one completely, else a movable window of it.
import { html, useMemo, useState } from "../../core/html.js";
import { clamp, useHead } from "../../core/model.js";
import { format, grouped, indices, within } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { Select } from "../../parts/choices.js";
import { Field } from "../../parts/field.js";
import { ColourScale, Matrix, scaleOf } from "../../parts/matrix.js";
import { Answer } from "../../parts/problem.js";
import { Scrolled } from "../../parts/scrolled.js";
import { ToolRow } from "../../parts/tool_row.js";
import { LayerPicker, useLackOfWeights, useWeight, useWeightList, WeightCard } from "./asks.js";

const MOST_ROWS = 32; // of a window: cells in which a number fits
const MOST_COLUMNS = 32;
const AROUND = 4; // cells on each side of the chosen one, as exact numbers

const patternOf = (name) => name.replace(/(^|\.)blocks\.\d+\./, "$1blocks.{layer}.");

function ofLayer(list, layer) {
  return list.filter(({ name }) => !/(^|\.)blocks\./.test(name) || name.includes(`blocks.${layer}.`));
}

export function WeightNumbers() {
  const lack = useLackOfWeights();
  const list = useWeightList();
  if (lack) return html`<${WeightCard} title="The numbers of a weight" />`;
  return html`<${Answer} answer=${list}>${({ data }) => html`<${Chosen} list=${data} />`}<//>`;
}

function Chosen({ list }) {
  const selection = useSelection();
  const { layer, head: queryHead, numHeads } = useHead({ ofAnyBlock: true });
  const there = ofLayer(list, layer);
  const weight = there.find(({ name }) => patternOf(name) === selection.weights_name) ?? there[0];
  const isOfHeads = ["head", "kv_head"].includes(weight.axes[0]);
  const group = isOfHeads ? Math.max(1, numHeads / weight.shape[0]) : 1;
  const head = isOfHeads ? Math.min(weight.shape[0] - 1, Math.floor(queryHead / group)) : null;
  const shape = isOfHeads ? weight.shape.slice(1) : weight.shape;
  const seen = windowOf(shape, selection);
  const options = { ...(isOfHeads ? { head } : {}), ...(seen.isAll ? {} : { rows: seen.rows, columns: seen.columns }) };
  const answer = useWeight(weight.name, options);
  const names = { rows: indices(seen.numRows, seen.row), columns: indices(seen.numColumns, seen.column) };
  const saved = answer.array && [{ label: "numbers", array: answer.array, ...(shape.length > 1 ? names : {}) }];
  return html`<${WeightCard} title=${`The numbers of ${weight.name}`} copy=${{ route: answer.route }}
      save=${saved && { name: weight.name, arrays: saved }}>
    <${ToolRow}>
      <${Select} label="Weight" value=${patternOf(weight.name)}
        options=${there.map(({ name }) => [patternOf(name), name.replace(/blocks\.\d+\./, "")])}
        onPick=${(weights_name) => select({ weights_name, weights_row: 0, weights_column: 0 })} />
      ${weight.name.includes("blocks.") && html`<${LayerPicker} />`}
      ${isOfHeads && html`<${Select} label="Head" value=${queryHead} options=${numHeads} onPick=${(value) => select({ head: value })} />`}
    <//>
    <${About} weight=${weight} head=${head} group=${group} shape=${shape} />
    ${!seen.isAll && html`<${Window} seen=${seen} shape=${shape} />`}
    <${Answer} answer=${answer}>${() => html`<${Grid} answer=${answer} seen=${seen} names=${names} weight=${weight}
      />`}<//>
  <//>`;
}

/** The requested part of a weight; a vector is one row. */
function windowOf(shape, { weights_row: fromRow, weights_column: fromColumn }) {
  const [rows, columns] = shape.length === 1 ? [1, shape[0]] : shape;
  if (rows * columns <= MOST_ROWS * MOST_COLUMNS || shape.length === 1) {
    return { row: 0, column: 0, numRows: rows, numColumns: columns, isAll: true };
  }
  const numRows = Math.min(rows, MOST_ROWS);
  const numColumns = Math.min(columns, MOST_COLUMNS);
  const row = within(fromRow, 0, rows - numRows);
  const column = within(fromColumn, 0, columns - numColumns);
  return { row, column, numRows, numColumns, rows: `${row}:${row + numRows}`, columns: `${column}:${column + numColumns}`,
    isAll: false };
}

function About({ weight, head, group, shape }) {
  const { name, axes, stored, tied_to: tied } = weight;
  const own = head === null ? axes : axes.slice(1);
  const shared = group > 1 ? `, shared by ${group} heads: key head ${head}` : "";
  return html`<p><code>${name}</code>${head === null ? "" : `, one head of ${weight.shape[0]}${shared}`}:${" "}
    ${own.map((axis, i) => `${axis} ${grouped(shape[i])}`).join(" × ")}, ${grouped(shape.reduce((a, b) => a * b, 1))} numbers.
    The server keeps them as ${stored}; here they are as the network uses them.${tied ? ` They are ${tied}'s own, turned.` : ""}</p>`;
}

function Window({ seen, shape }) {
  const sides = [["row", "weights_row", seen.row, seen.numRows, shape[0]],
    ["column", "weights_column", seen.column, seen.numColumns, shape[1]]];
  return html`<div class="toolbar" role="group" aria-label="The part that is seen">${sides.map(([name, field, first, size, count]) =>
    size < count && html`<label>From ${name} <${Field} class="field-small" value=${first} inputmode="numeric"
        onTake=${(raw) => select({ [field]: clamp(Math.trunc(Number(raw)) || 0, count) })} /></label>
      <button disabled=${first === 0} onClick=${() => select({ [field]: Math.max(0, first - size) })}
        >previous ${size} ${name}s</button>
      <button disabled=${first + size >= count} onClick=${() => select({ [field]: first + size })}
        >next ${size} ${name}s</button><span class="hint">of ${grouped(count)}</span>`)}</div>`;
}

function Grid({ answer, seen, names, weight }) {
  const [chosen, setChosen] = useState({ row: 0, column: 0 });
  const [hovered, setHovered] = useState(null);
  const { data } = answer.array;
  const axes = weight.axes.slice(-2);
  const [rowTitle, columnTitle] = axes.length === 2 && seen.numRows > 1 ? axes : ["", axes.at(-1)];
  const scale = useMemo(() => scaleOf(data, "diverging"), [data]);
  if (data.length !== seen.numRows * seen.numColumns) return null; // the answer for the previous window
  const at = (row, column) => data[row * seen.numColumns + column];
  const describe = (row, column) => `${seen.numRows > 1 ? `row ${names.rows[row]}, ` : ""}column ${names.columns[column]}: ${
    format(at(row, column), 6)}`;
  return html`<${ColourScale} ...${scale} />
    <${Matrix} values=${data} rowNames=${names.rows} columnNames=${names.columns} rowTitle=${rowTitle}
      columnTitle=${columnTitle} kind="diverging" selected=${chosen} hovered=${hovered} onHover=${setHovered}
      onPick=${setChosen} describe=${describe} label=${`The numbers of ${weight.name}`} />
    <${Cells} seen=${seen} names=${names} at=${at} chosen=${hovered ?? chosen} />`;
}

function Cells({ seen, names, at, chosen }) {
  const from = (place, count) => within(place - AROUND, 0, count - 2 * AROUND - 1);
  const [row, column] = [from(chosen.row, seen.numRows), from(chosen.column, seen.numColumns)];
  const rows = indices(Math.min(seen.numRows, 2 * AROUND + 1), row).map(Number);
  const columns = indices(Math.min(seen.numColumns, 2 * AROUND + 1), column).map(Number);
  return html`<${Scrolled} label="Exact numbers"><table class="cells" aria-label="The numbers around the chosen cell">
    <thead><tr><td></td>${columns.map((j) => html`<th scope="col">${names.columns[j]}</th>`)}</tr></thead>
    <tbody>${rows.map((i) => html`<tr><th scope="row">${names.rows[i]}</th>${columns.map((j) =>
      html`<td class=${i === chosen.row && j === chosen.column ? "on" : undefined}>${format(at(i, j))}</td>`)}</tr>`)}</tbody>
  </table><//>`;
}
