// A select element with its label.
import { html } from "../core/html.js";

/** options: [[value, title]]; onPick(value): the value as text. */
export const Pick = ({ label, value, onPick, options }) =>
  html`<label>${label} <select value=${value} onChange=${(event) => onPick(event.target.value)}>${options.map(
    ([each, title]) => html`<option value=${each} selected=${each === value}>${title}</option>`)}</select></label>`;
