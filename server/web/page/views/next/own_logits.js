// Softmax of numbers typed by the reader, at any temperature, with its entropy.
import { classes, html } from "../../core/html.js";
import { entropy, format, softmax } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { Field } from "../../parts/field.js";
import { Scrolled } from "../../parts/scrolled.js";
import { Temperature } from "../../parts/slider.js";
import { Table } from "../../parts/table.js";

const MOST = 20;
const BESIDE = [0.5, 1, 2]; // temperatures that are always shown
const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,2})?$/i;

/** {logits} or {lack}. A comma separates numbers, but between semicolons it is a decimal comma; "2,5" alone is ambiguous. */
function readLogits(text) {
  const list = text.replace(/[[\]()]/g, " ").replaceAll("−", "-").trim();
  const isTight = /\d,\d/.test(list);
  if (isTight && !list.includes(";") && (/\s/.test(list) || list.indexOf(",") === list.lastIndexOf(","))) {
    return { lack: "A comma without a space can be read in two ways: write 2.5 for one number, and 2, 5 for two." };
  }
  const parts = (list.includes(";") ? list.replace(/(\d),(?=\d)/g, "$1.") : list).split(/[\s,;]+/).filter(Boolean);
  const isGood = parts.length > 0 && parts.length <= MOST && parts.every((part) => NUMBER.test(part));
  return isGood ? { logits: parts.map(Number) } : { lack: `Write one to ${MOST} numbers, such as 2, 1, 0.` };
}

export function OwnLogits() {
  const { next_logits: text, next_logits_temperature: chosen } = useSelection();
  const { logits, lack } = readLogits(text);
  const temperatures = BESIDE.includes(chosen) ? BESIDE : [...BESIDE, chosen].sort((a, b) => a - b);
  const columns = logits && temperatures.map((t) => ({ t, shares: softmax(logits, t) }));
  return html`<section class="card own-logits"><h2>Try softmax on your own numbers</h2>
    <p>Each number is divided by the temperature T, e is raised to it, and the results are divided by their sum. A small T
      gives nearly all to the largest number, a large T makes all alike; entropy measures the number of remaining choices.</p>
    <div class="toolbar">
      <label>Logits <${Field} value=${text} size="24" isLive onTake=${(value) => select({ next_logits: value })} /></label>
      <span class="hint">with commas between, decimals with a point: 2.5, 1, 0</span>
      <${Temperature} label="T" value=${chosen} high=${5} onPick=${(value) => select({ next_logits_temperature: value })} />
    </div>
    ${logits ? html`<${Shares} logits=${logits} columns=${columns} chosen=${chosen} />`
      : html`<p class="lack" role="alert">${lack}</p>`}
  </section>`;
}

function Shares({ logits, columns, chosen }) {
  const mark = ({ t }, content) => html`<td class=${classes("number", t === chosen && "on")}>${content}</td>`;
  const shares = (i) => columns.map((column) => mark(column, html`<span class="share" aria-hidden="true"
    style=${{ width: `${Math.round(column.shares[i] * 60)}px` }}></span> ${column.shares[i].toFixed(3)}`));
  const measured = (of) => columns.map((column) => mark(column, format(of(entropy(column.shares)), 3)));
  return html`<${Scrolled} label="Softmax of the numbers"><${Table} aria-label="Softmax of the numbers at several temperatures"
    names=${["logit", ...columns.map(({ t }) => `T = ${format(t, 4)}`)]} rows=${[
      ...logits.map((logit, i) => [format(logit, 6), ...shares(i)]),
      ["entropy, nats", ...measured((nats) => nats)], ["as many equal choices", ...measured(Math.exp)]]} /><//>`;
}
