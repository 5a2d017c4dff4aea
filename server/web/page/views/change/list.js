// The current changes: each in words, with its number, and the server's rejection.
import { refusal } from "../../core/api.js";
import { OPS, sayChange, writeChange } from "../../core/changes.js";
import { html } from "../../core/html.js";
import { useStore } from "../../core/store.js";
import { Slider } from "../../parts/slider.js";
import { setChanges } from "./edits.js";

export function List({ changes }) {
  const refused = useStore(refusal);
  if (changes.length === 0) return html`<p class="hint">Nothing is changed.</p>`;
  const [, at, why] = /^interventions[[.](\d+)\]?\.?(.*)$/s.exec(refused?.message ?? "") ?? [];
  const set = (index, value) => setChanges(changes.map((one, i) => (i === index ? { ...one, value } : one)));
  return html`<section><h3>Changed now</h3>
    <ol class="change-list">${changes.map((change, index) => html`<li key=${writeChange({ ...change, value: null })}>
      <span>${sayChange(change)}</span>
      <button class="quiet" aria-label=${`Remove: ${sayChange(change)}`}
        onClick=${() => remove(changes.filter((_, i) => i !== index))}>✕</button>
      ${change.value !== null && html`<${Strength} change=${change} onPick=${(value) => set(index, value)} />`}
      ${Number(at) === index && html`<p class="problem" role="alert">${why}</p>`}
    </li>`)}</ol>
    ${refused && at === undefined && html`<p class="problem" role="alert">${refused.message}</p>`}
    ${changes.length > 1 && html`<button onClick=${() => remove([])}>Remove all</button>`}
  </section>`;
}

/** The pressed button is removed, so the drawer gets the focus. */
function remove(changes) {
  setChanges(changes);
  document.querySelector(".change")?.focus({ preventScroll: true });
}

/** Views are updated while it moves. */
function Strength({ change, onPick }) {
  const { title, low, high } = OPS[change.op];
  return html`<${Slider} label=${title} value=${change.value} low=${Math.min(low, change.value)}
    high=${Math.max(high, change.value)} step=${0.1} onPick=${onPick} write=${(value) => String(Math.round(value * 100) / 100)} />`;
}
