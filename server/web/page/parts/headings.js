// The row of headings of a plain table.
import { html } from "../core/html.js";

export const Headings = ({ names }) =>
  html`<thead><tr>${names.map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>`;
