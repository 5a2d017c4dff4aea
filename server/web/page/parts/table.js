// A plain table: the first cell of a row is its heading, numbers are aligned to the right.
import { classes, html } from "../core/html.js";
import { Headings } from "./headings.js";

export const Table = ({ names, rows, caption, class: own, ...more }) => html`<table class=${classes("plain-table", own)} ...${more}>
  ${caption && html`<caption>${caption}</caption>`}
  ${names && html`<${Headings} names=${names} />`}
  <tbody>${rows.map(([heading, ...cells]) => html`<tr><th scope="row">${heading}</th>${cells.map(cellOf)}</tr>`)}</tbody></table>`;

const cellOf = (cell) => (cell?.type === "td" ? cell : html`<td class=${cell?.type ? undefined : "number"}>${cell}</td>`);
