// A few exclusive choices side by side.
import { html } from "../core/html.js";
import { select, useSelection } from "../core/state.js";

/** choices: [[value, label]]; onPick(value). */
export const Choices = ({ label, choices, value, onPick }) =>
  html`<fieldset><legend>${label}</legend><span class="segments">${choices.map(([choice, name]) =>
    html`<button type="button" aria-pressed=${choice === value} onClick=${() => onPick(choice)}>${name}</button>`,
  )}</span></fieldset>`;

/** Choices of the value of a field of the state; remember: see `select`. */
export const FieldChoices = ({ field, remember, ...more }) =>
  html`<${Choices} ...${more} value=${useSelection()[field]} onPick=${(value) => select({ [field]: value }, { remember })} />`;
