// The distribution of a tensor's numbers.
import { html, useCallback, useMemo, useRef, useState } from "../../core/html.js";
import { extent, format, grouped } from "../../core/numbers.js";
import { Picture } from "../../parts/picture.js";
import { SaveMenu } from "../../parts/tools.js";

const NUM_BINS = 41;
const TRIMMED = 0.98; // quantile of a row's sizes, typically at 2.3 times the root mean square
const BEYOND = 1.5; // times that quantile: the end of the colour scale
const HEIGHT = 150;
const FOOT = 20;

/** {norm, mean, deviation, least, most, count} of the finite values: Euclidean length, population deviation. */
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
 * The limit of the colour scale for signed numbers: the largest size, or one that suits most numbers of the median
 * row. A very large position (often the first) or a few very large dimensions would leave all others white. width: of
 * a row.
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

/** {low, step, counts}: NUM_BINS bins of one width over the finite values. */
function binned(values) {
  const [low, high] = extent(values);
  const step = (high - low) / NUM_BINS || 1;
  const counts = new Float64Array(NUM_BINS);
  for (const value of values)
    if (Number.isFinite(value)) counts[Math.min(NUM_BINS - 1, Math.floor((value - low) / step))] += 1;
  return { low, step, counts };
}

/** values: of any shape; name: of the saved files. */
export function Histogram({ values, name }) {
  const [hovered, setHovered] = useState(null);
  const picture = useRef(null);
  const { low, step, counts } = useMemo(() => binned(values), [values]);
  const most = Math.max(...counts, 1);
  const draw = useCallback(
    (context, { width, height, colours }) => {
      const bin = width / NUM_BINS;
      context.fillStyle = colours.accent;
      counts.forEach((count, i) => {
        const tall = (count / most) * (height - FOOT - 4);
        context.fillRect(i * bin + 0.5, height - FOOT - tall, Math.max(bin - 1, 1), tall);
      });
      context.fillStyle = colours.muted;
      context.font = "11px system-ui, sans-serif";
      context.textBaseline = "alphabetic";
      const high = low + step * NUM_BINS;
      context.textAlign = "left";
      context.fillText(format(low, 3), 0, height - 5);
      context.textAlign = "right";
      context.fillText(format(high, 3), width, height - 5);
      if (low >= 0 || high <= 0) return;
      const zero = (-low / (high - low)) * width;
      context.fillRect(zero, 0, 1, height - FOOT);
      context.textAlign = "center";
      if (zero > 50 && zero < width - 50) context.fillText("0", zero, height - 5);
    },
    [counts, low, step, most],
  );
  const overlay = useCallback(
    (context, { width, height, colours }) => {
      if (hovered === null) return;
      context.strokeStyle = colours.ink;
      context.lineWidth = 1.5;
      context.strokeRect((hovered * width) / NUM_BINS, 1, width / NUM_BINS, height - FOOT);
    },
    [hovered],
  );
  const range =
    hovered === null
      ? ""
      : `${format(low + step * hovered, 3)} to ${format(low + step * (hovered + 1), 3)}: ${grouped(counts[hovered])}`;
  const move = (to) => setHovered(Math.max(0, Math.min(NUM_BINS - 1, to)));
  return html`<div class="flow-histogram">
    <div class="toolbar"><span class="hint">How the numbers are spread</span>
      <${SaveMenu} picture=${picture} name=${`${name}-histogram`}
        arrays=${[{ label: "counts", array: { data: counts, shape: [NUM_BINS, 1] },
          rows: Array.from(counts, (_, i) => low + step * i), columns: ["count"] }]} /></div>
    <${Picture} draw=${draw} overlay=${overlay} height=${HEIGHT} handle=${picture} readout=${range}
      label=${`Histogram of ${name}: left and right walk its bars`}
      onPoint=${(x, _, width) => (x === null ? setHovered(null) : move(Math.floor((x / width) * NUM_BINS)))}
      onKey=${(key) => {
        const by = { ArrowLeft: -1, ArrowRight: 1 }[key];
        if (!by) return false;
        move((hovered ?? (by > 0 ? -1 : NUM_BINS)) + by);
        return true;
      }} />
  </div>`;
}
