// Exclusive choices: a few side by side, or a list.
import { html } from "../core/html.js";
import { select, useSelection } from "../core/state.js";

export const Choices = ({ label, choices, value, onPick }) =>
  html`<fieldset><legend>${label}</legend><span class="segments">${choices.map(([choice, name]) =>
    html`<button aria-pressed=${choice === value} onClick=${() => onPick(choice)}>${name}</button>`,
  )}</span></fieldset>`;

export const FieldChoices = ({ field, remember, ...more }) =>
  html`<${Choices} ...${more} value=${useSelection()[field]} onPick=${(value) => select({ [field]: value }, { remember })} />`;

/** options: [[value, label]], or a count for the numbers below it; onPick(value), a number or a string. */
export function Select({ label, options, onPick, ...more }) {
  const isCount = typeof options === "number";
  const all = isCount ? Array.from({ length: options }, (_, i) => [i, i]) : options;
  const onChange = ({ target }) => onPick(isCount ? Number(target.value) : target.value);
  return html`<label>${label} <select ...${more} onChange=${onChange}>${all.map(([value, name]) =>
    html`<option value=${value}>${name}</option>`)}</select></label>`;
}

export const FieldSelect = ({ field, ...more }) =>
  html`<${Select} value=${useSelection()[field]} onPick=${(value) => select({ [field]: value })} ...${more} />`;
