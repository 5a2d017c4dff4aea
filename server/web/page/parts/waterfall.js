// Terms and their sum: each bar begins at the end of the one before; the last one is the sum.
import { html, useCallback } from "../core/html.js";
import { extent, format, largest } from "../core/numbers.js";
import { MONO, fill, frame, upwards, write } from "./ink.js";
import { ticksOf } from "./lines.js";
import { Picture, usePointed } from "./picture.js";

const MARGIN = { left: 46, right: 8, top: 14 };
const HEIGHT = 270; // with the least space for names
const FOOT = { least: 74, most: 130 }; // space for the names
const MOST_TOLD = 5; // parts, in words
const NAMES = { size: 11, family: MONO, align: "right" };
const LETTER = 6.7; // its width in pixels

/** steps: [{name, value, ...}]; total: {name, value}, their sum; onPick(step): a click on a bar. Bars below 0 are hollow. */
export function Waterfall({ steps, total, label, onPick, handle }) {
  const bars = barsOf(steps, total);
  const pick = onPick && ((index) => index < steps.length && onPick(steps[index]));
  const { at, point, onKey } = usePointed(bars.length, { onPick: pick });
  const foot = Math.min(FOOT.most, Math.max(FOOT.least, 14 + LETTER * Math.max(...bars.map(({ name }) => name.length))));
  const [low, high] = extent(bars.flatMap((bar) => [bar.from, bar.to, 0]));
  const place = (width) => (width - MARGIN.left - MARGIN.right) / bars.length;
  const draw = useCallback(
    (context, { width, height: tall, colours }) => {
      const y = (value) => MARGIN.top + ((high - value) / (high - low || 1)) * (tall - MARGIN.top - foot);
      drawAxis(context, { width, y, low, high, colours });
      const room = place(width);
      bars.forEach((bar, i) => drawBar(context, bar, { x: MARGIN.left + i * room, room, y, next: bars[i + 1], colours }));
      drawNames(context, bars, room, tall - foot + 8, colours);
    },
    [steps, total.value, total.name],
  );
  const overlay = useCallback(
    (context, { width, height: tall, colours }) => {
      if (at === null) return;
      context.globalAlpha = 0.1;
      fill(context, MARGIN.left + at * place(width), 0, place(width), tall, colours.ink);
      context.globalAlpha = 1;
    },
    [at, steps],
  );
  const bar = bars[at];
  const told = largest(steps.map(({ value }) => Math.abs(value)), MOST_TOLD);
  const parts = told.map((index) => `${steps[index].name} ${format(steps[index].value)}`).join(", ");
  const summary = `${total.name}: ${format(total.value)}. Largest parts: ${parts}.`;
  return html`<${Picture} draw=${draw} overlay=${overlay} height=${HEIGHT + foot - FOOT.least} label=${label} summary=${summary}
    handle=${handle} onPick=${pick && (() => at !== null && pick(at))} onKey=${onKey}
    readout=${bar ? `${bar.name}: ${format(bar.value)}${bar.isTotal ? "" : `, sum so far ${format(bar.to)}`}` : ""}
    tipAt=${(width) => ({ x: MARGIN.left + ((at ?? 0) + 0.5) * place(width), y: MARGIN.top })}
    onPoint=${(x, _, width) => point(x === null ? null : Math.floor((x - MARGIN.left) / place(width)))} />`;
}

function barsOf(steps, total) {
  let sum = 0;
  const bars = steps.map((step) => {
    const from = sum;
    sum += step.value;
    return { name: step.name, value: step.value, from, to: sum };
  });
  return [...bars, { ...total, from: 0, to: total.value, isTotal: true }];
}

function drawAxis(context, { width, y, low, high, colours }) {
  for (const tick of ticksOf(low, high > low ? high : low + 1)) {
    fill(context, MARGIN.left, y(tick) - 0.5, width - MARGIN.left - MARGIN.right, 1, tick === 0 ? colours.muted : colours.line);
    write(context, format(tick), MARGIN.left - 6, y(tick), colours.muted, NAMES);
  }
}

function drawBar(context, bar, { x, room, y, next, colours }) {
  const gap = room > 8 ? 2 : 0;
  const [top, bottom] = [y(Math.max(bar.from, bar.to)), y(Math.min(bar.from, bar.to))];
  const tall = Math.max(bottom - top, 1);
  if (bar.value < 0) {
    frame(context, x + gap + 0.75, top, Math.max(room - 2 * gap - 1.5, 0.5), tall, colours.negative, 1.5);
  } else {
    fill(context, x + gap, top, Math.max(room - 2 * gap, 0.5), tall, bar.isTotal ? colours.ink : colours.positive);
  }
  if (!next || next.isTotal) return;
  fill(context, x + room - gap, y(bar.to) - 0.5, 2 * gap, 1, colours.muted);
}

function drawNames(context, bars, room, top, colours) {
  const step = Math.max(1, Math.ceil(13 / room));
  bars.forEach(({ name, isTotal }, i) => {
    if (i % step && !isTotal) return;
    upwards(context, MARGIN.left + (i + 0.5) * room, top, () =>
      write(context, name, 0, 0, isTotal ? colours.ink : colours.muted, NAMES));
  });
}
