// A histogram, pointed at bin by bin.
import { html, useCallback } from "../core/html.js";
import { format } from "../core/numbers.js";
import { line, write } from "./ink.js";
import { Picture, usePointed } from "./picture.js";

const TOP = 6;
const FOOT = 20; // CSS pixels for the numbers of the axis

/** expected: counts that are drawn as a line; ticks: numbers of the axis, beyond both ends; describe(bin, range): the readout. */
export function Histogram({ counts, low, high, expected = null, ticks = [], describe, height, label, handle }) {
  const bins = counts.length;
  const { at, point, onKey } = usePointed(bins);
  const draw = useCallback(
    (context, { width, height: tall, colours }) => {
      const ground = tall - FOOT;
      const most = Math.max(...counts, ...(expected ?? []), 1e-30);
      const xOf = (bin) => (bin / bins) * width;
      const yOf = (count) => ground - (count / most) * (ground - TOP);
      const placeOf = (tick) => ((tick - low) / (high - low)) * width;
      const inner = ticks.filter((tick) => placeOf(tick) > 50 && placeOf(tick) < width - 50);
      for (const tick of inner) line(context, [[placeOf(tick), 0], [placeOf(tick), ground]], colours.line);
      context.fillStyle = colours.accent;
      counts.forEach((count, i) => context.fillRect(xOf(i), yOf(count), Math.max(xOf(1) - 0.5, 0.5), ground - yOf(count)));
      if (expected) line(context, Array.from(expected, (count, i) => [xOf(i + 0.5), yOf(count)]), colours.ink, 2);
      for (const [tick, align] of [[low, "left"], ...inner.map((tick) => [tick, "center"]), [high, "right"]]) {
        write(context, format(tick, 3), placeOf(tick), tall - 9, colours.muted, { size: 11, align });
      }
    },
    [counts, low, high, expected],
  );
  const overlay = useCallback(
    (context, { width, height: tall, colours }) => {
      if (at === null) return;
      context.strokeStyle = colours.ink;
      context.strokeRect((at * width) / bins, 1, width / bins, tall - FOOT);
    },
    [at, bins],
  );
  const edge = (bin) => format(low + ((high - low) * bin) / bins, 3);
  return html`<${Picture} draw=${draw} overlay=${overlay} height=${height} handle=${handle} label=${label}
    readout=${at === null ? "" : describe(at, `${edge(at)} to ${edge(at + 1)}`)}
    onPoint=${(x, _, width) => point(x === null ? null : Math.floor((x / width) * bins))} onKey=${onKey} />`;
}
