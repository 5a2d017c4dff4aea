// A scatter plot of two lists of numbers, with a dot for each word.
import { html, useCallback, useState } from "../../core/html.js";
import { shownToken } from "../../core/model.js";
import { extent, format } from "../../core/numbers.js";
import { Picture } from "../../parts/picture.js";

const MARGIN = { left: 66, right: 16, top: 10, bottom: 34 };
const HEIGHT = 300;
const REACH = 30; // CSS pixels around a dot in which it is pointed at

/** The smallest and largest value, never equal. */
function rangeOf(values) {
  const [low, high] = extent(values);
  return high > low ? [low, high] : [low - 1, high + 1];
}

function placesOf(across, up) {
  const [[left, right], [low, high]] = [rangeOf(across), rangeOf(up)];
  return {
    ends: { left, right, low, high },
    xOf: (i, width) => MARGIN.left + ((across[i] - left) / (right - left)) * (width - MARGIN.left - MARGIN.right),
    yOf: (i) => MARGIN.top + ((high - up[i]) / (high - low)) * (HEIGHT - MARGIN.top - MARGIN.bottom),
  };
}

function drawDots(context, { width, colours }, { places, count, pair }) {
  const { ends, xOf, yOf } = places;
  context.strokeStyle = colours.line;
  context.strokeRect(MARGIN.left, MARGIN.top, width - MARGIN.left - MARGIN.right, HEIGHT - MARGIN.top - MARGIN.bottom);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.fillStyle = colours.muted;
  context.textAlign = "left";
  context.fillText(format(ends.left, 3), MARGIN.left, HEIGHT - 22);
  context.textAlign = "right";
  context.fillText(format(ends.right, 3), width - MARGIN.right, HEIGHT - 22);
  context.fillText(format(ends.high, 3), MARGIN.left - 5, MARGIN.top + 6);
  context.fillText(format(ends.low, 3), MARGIN.left - 5, HEIGHT - MARGIN.bottom - 6);
  context.textAlign = "center";
  context.fillText(`neuron ${pair[0]} →, neuron ${pair[1]} ↑`, (MARGIN.left + width) / 2, HEIGHT - 8);
  context.fillStyle = colours.accent;
  for (let i = 0; i < count; i += 1) {
    context.beginPath();
    context.arc(xOf(i, width), yOf(i), 4, 0, 2 * Math.PI);
    context.fill();
  }
}

/** values: [across, up]; tokens: the words; pair: the numbers of the neurons. */
export function Dots({ values: [across, up], tokens, pair, handle }) {
  const [pointed, setAt] = useState(null);
  const count = across.length;
  const at = pointed !== null && pointed < count ? pointed : null;
  const places = placesOf(across, up);
  const identity = JSON.stringify([across, up, pair]);
  const draw = useCallback((context, size) => drawDots(context, size, { places, count, pair }), [identity]);
  const overlay = useCallback((context, { width, colours }) => {
    if (at === null) return;
    context.strokeStyle = colours.ink;
    context.lineWidth = 2;
    context.beginPath();
    context.arc(places.xOf(at, width), places.yOf(at), 8, 0, 2 * Math.PI);
    context.stroke();
  }, [at, identity]);
  const nearest = (x, y, width) => across.reduce((best, _, i) => {
    const distance = Math.hypot(places.xOf(i, width) - x, places.yOf(i) - y);
    return distance < best.distance ? { distance, i } : best;
  }, { distance: REACH, i: null }).i;
  const said = (i) => `“${shownToken(tokens[i] ?? "")}” (${i}): ${format(across[i])}, ${format(up[i])}`;
  return html`<${Picture} draw=${draw} overlay=${overlay} height=${HEIGHT} handle=${handle}
    label=${`Neuron ${pair[0]} against neuron ${pair[1]}, a dot for each word`}
    summary=${across.slice(0, 12).map((_, i) => said(i)).join("; ")} readout=${at === null ? "" : said(at)}
    onPoint=${(x, y, width) => setAt(x === null ? null : nearest(x, y, width))}
    onKey=${(key) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[key];
      if (step) setAt(((at ?? (step > 0 ? -1 : 0)) + step + count) % count);
      return Boolean(step);
    }} />`;
}
