// A slider with a name and a visible value.
import { html } from "../core/html.js";

/** stops: a list of values, of which the nearest is shown; hint: an explanation on request. */
export function Slider({ label, value, low = 0, high = 1, step = 0.01, stops = null, onPick, write = String, hint }) {
  const range = stops
    ? { min: 0, max: stops.length - 1, step: 1, value: nearest(stops, value) }
    : { min: low, max: high, step, value };
  const read = (raw) => (stops ? stops[Number(raw)] : Number(raw));
  return html`<label class="slider" title=${hint}>
    <span>${label} <b class="number">${write(value)}</b></span>
    <input type="range" ...${range} aria-valuetext=${write(value)} onInput=${(event) => onPick(read(event.target.value))} />
  </label>`;
}

function nearest(stops, value) {
  let best = stops.indexOf(value);
  if (best >= 0) return best;
  best = 0;
  stops.forEach((stop, i) => {
    if (Math.abs(stop - value) < Math.abs(stops[best] - value)) best = i;
  });
  return best;
}

// Larger values are to the right; 0, which keeps all, is at the right end.
const TOP_K = [1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000, 0];

export const TopK = ({ value, onPick }) =>
  html`<${Slider} label="top-k" value=${value} stops=${TOP_K} onPick=${onPick}
    write=${(k) => (k > 0 ? String(k) : "all")} hint="Keep only the k likeliest tokens" />`;

export const TopP = ({ value, onPick }) =>
  html`<${Slider} label="top-p" value=${value} low=${0.01} high=${1} onPick=${onPick}
    write=${(p) => (p < 1 ? p.toFixed(2) : "all")} hint="Keep the likeliest tokens with this total probability" />`;

export const Temperature = ({ value, high, onPick, label = "temperature" }) =>
  html`<${Slider} label=${label} value=${value} high=${high} step=${0.05} onPick=${onPick}
    write=${(t) => (t > 0 ? t.toFixed(2) : "0, greedy")} hint="Below 1 likely tokens become likelier, above 1 less likely" />`;
