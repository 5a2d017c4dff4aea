// Terms and their sum: each bar begins at the end of the one before; the last one is the sum.
import { html, useCallback, useState } from "../core/html.js";
import { extent, format, largest } from "../core/numbers.js";
import { Picture } from "./picture.js";
import { ticksOf } from "./lines.js";

const MARGIN = { left: 46, right: 8, top: 14 };
const FOOT = { least: 74, most: 130 }; // space for the names
const MOST_TOLD = 5; // parts, in words
const FONT = "11px ui-monospace, monospace";
const LETTER = 6.7; // its width in pixels

/** steps: [{name, value, ...}]; total: {name, value}, their sum; onPick(step): a click on a bar. Bars below 0 are hollow. */
export function Waterfall({ steps, total, label, height = 270, onPick, handle }) {
  const [hovered, setHovered] = useState(null);
  const bars = barsOf(steps, total);
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
      if (hovered === null) return;
      context.globalAlpha = 0.1;
      context.fillStyle = colours.ink;
      context.fillRect(MARGIN.left + hovered * place(width), 0, place(width), tall);
      context.globalAlpha = 1;
    },
    [hovered, steps],
  );
  const move = (index) => setHovered(Math.max(0, Math.min(bars.length - 1, index)));
  const pick = () => hovered !== null && hovered < steps.length && onPick?.(steps[hovered]);
  const at = hovered === null ? null : bars[hovered];
  const told = largest(steps.map(({ value }) => Math.abs(value)), MOST_TOLD);
  const parts = told.map((index) => `${steps[index].name} ${format(steps[index].value)}`).join(", ");
  const summary = `${total.name}: ${format(total.value)}. Largest parts: ${parts}.`;
  return html`<${Picture} draw=${draw} overlay=${overlay} height=${height + foot - FOOT.least} label=${label} summary=${summary}
    handle=${handle} onPick=${onPick && pick}
    readout=${at ? `${at.name}: ${format(at.value)}${at.isTotal ? "" : `, sum so far ${format(at.to)}`}` : ""}
    tipAt=${(width) => ({ x: MARGIN.left + ((hovered ?? 0) + 0.5) * place(width), y: MARGIN.top })}
    onPoint=${(x, _, width) => (x === null ? setHovered(null) : move(Math.floor((x - MARGIN.left) / place(width))))}
    onKey=${(key) => {
      if (key === "ArrowLeft") move((hovered ?? bars.length) - 1);
      else if (key === "ArrowRight") move((hovered ?? -1) + 1);
      else if (key === "Enter" && onPick) pick();
      else return false;
      return true;
    }} />`;
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
  context.font = FONT;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.lineWidth = 1;
  for (const tick of ticksOf(low, high > low ? high : low + 1)) {
    context.fillStyle = tick === 0 ? colours.muted : colours.line;
    context.fillRect(MARGIN.left, y(tick) - 0.5, width - MARGIN.left - MARGIN.right, 1);
    context.fillStyle = colours.muted;
    context.fillText(format(tick), MARGIN.left - 6, y(tick));
  }
}

function drawBar(context, bar, { x, room, y, next, colours }) {
  const gap = room > 8 ? 2 : 0;
  const [top, bottom] = [y(Math.max(bar.from, bar.to)), y(Math.min(bar.from, bar.to))];
  const tall = Math.max(bottom - top, 1);
  if (bar.value < 0) {
    context.strokeStyle = colours.negative;
    context.lineWidth = 1.5;
    context.strokeRect(x + gap + 0.75, top, Math.max(room - 2 * gap - 1.5, 0.5), tall);
  } else {
    context.fillStyle = bar.isTotal ? colours.ink : colours.positive;
    context.fillRect(x + gap, top, Math.max(room - 2 * gap, 0.5), tall);
  }
  if (!next || next.isTotal) return;
  context.fillStyle = colours.muted;
  context.fillRect(x + room - gap, y(bar.to) - 0.5, 2 * gap, 1);
}

function drawNames(context, bars, room, top, colours) {
  const step = Math.max(1, Math.ceil(13 / room));
  context.font = FONT;
  context.textAlign = "right";
  context.textBaseline = "middle";
  bars.forEach((bar, i) => {
    if (i % step && !bar.isTotal) return;
    context.save();
    context.translate(MARGIN.left + (i + 0.5) * room, top);
    context.rotate(-Math.PI / 2);
    context.fillStyle = bar.isTotal ? colours.ink : colours.muted;
    context.fillText(bar.name, 0, 0);
    context.restore();
  });
}
