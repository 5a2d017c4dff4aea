// The distribution of a tensor's numbers.
import { html, useMemo, useRef } from "../../core/html.js";
import { extent, grouped } from "../../core/numbers.js";
import { Histogram } from "../../parts/histogram.js";
import { SaveMenu } from "../../parts/tools.js";

const NUM_BINS = 41;
const TRIMMED = 0.98; // quantile of a row's sizes, typically at 2.3 times the root mean square
const BEYOND = 1.5; // times that quantile: the end of the colour scale

/** Of the finite values. */
export function statistics(values) {
  let [count, sum, squares] = [0, 0, 0];
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    count += 1;
    sum += value;
    squares += value * value;
  }
  const mean = sum / count;
  let spread = 0;
  for (const value of values) if (Number.isFinite(value)) spread += (value - mean) ** 2;
  const [least, most] = extent(values);
  return { norm: Math.sqrt(squares), mean, deviation: Math.sqrt(spread / count), least, most, count };
}

/**
 * The largest size, or one that suits most numbers of the median row: a very large position (often the first) would leave all
 * others white. width: of a row.
 */
export function colourLimit(values, width = values.length) {
  const limits = [];
  for (let at = 0; at < values.length; at += width) {
    const sizes = Float64Array.from(values.slice(at, at + width), Math.abs).filter(Number.isFinite).sort();
    const most = sizes.at(-1) || 0;
    limits.push(Math.min(most, BEYOND * sizes[Math.floor(TRIMMED * (sizes.length - 1))] || most));
  }
  const told = limits.filter((limit) => limit > 0).sort((a, b) => a - b);
  return told[(told.length - 1) >> 1] ?? 1;
}

function binned(values) {
  const [low, high] = extent(values);
  const step = (high - low) / NUM_BINS || 1;
  const counts = new Float64Array(NUM_BINS);
  for (const value of values)
    if (Number.isFinite(value)) counts[Math.min(NUM_BINS - 1, Math.floor((value - low) / step))] += 1;
  return { low, step, counts };
}

export function Spread({ values, name }) {
  const picture = useRef(null);
  const { low, step, counts } = useMemo(() => binned(values), [values]);
  const high = low + step * NUM_BINS;
  const array = { data: counts, shape: [NUM_BINS, 1] };
  return html`<div class="flow-histogram">
    <div class="toolbar"><span class="hint">How the numbers are spread</span>
      <${SaveMenu} picture=${picture} name=${`${name}-histogram`}
        arrays=${[{ label: "counts", array, rows: Array.from(counts, (_, i) => low + step * i), columns: ["count"] }]} /></div>
    <${Histogram} counts=${counts} low=${low} high=${high} ticks=${[0]} height=${150} handle=${picture}
      label=${`Histogram of ${name}: left and right walk its bars`} describe=${(bin, range) => `${range}: ${grouped(counts[bin])}`} />
  </div>`;
}
