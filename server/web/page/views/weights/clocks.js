// Pairs of a query's numbers as clock hands, before and after rotation, and the same as a table.
import { html, useCallback } from "../../core/html.js";
import { evenly, format, grouped } from "../../core/numbers.js";
import { dot, line, ring } from "../../parts/ink.js";
import { Picture } from "../../parts/picture.js";
import { Scrolled } from "../../parts/scrolled.js";
import { Table } from "../../parts/table.js";

const SIZE = 56; // CSS pixels of a clock and its name
const MOST = 16;

export function Clocks({ pairs, isMeasured }) {
  const chosen = evenly(pairs.length, MOST); // from the fastest to the slowest
  const perLine = (width) => Math.max(1, Math.floor(width / SIZE));
  const draw = useCallback((context, { width, colours }) => {
    context.font = "12px ui-monospace, monospace";
    context.textBaseline = "middle";
    context.textAlign = "center";
    chosen.forEach((place, i) => {
      const x = (i % perLine(width)) * SIZE + SIZE / 2;
      const y = Math.floor(i / perLine(width)) * (SIZE + 14) + SIZE / 2;
      const { before, after, whole } = pairs[place];
      ring(context, x, y, SIZE / 2 - 4, colours.line, 1);
      const start = before ? Math.atan2(before[1], before[0]) : 0;
      const end = after ? Math.atan2(after[1], after[0]) : whole;
      hand(context, x, y, start, colours.muted, 1.5);
      hand(context, x, y, end, colours.accent, 3);
      context.fillStyle = colours.ink;
      context.fillText(String(place), x, y + SIZE / 2 + 3);
    });
  }, [pairs, isMeasured]);
  return html`<${Picture} draw=${draw} height=${(width) => Math.ceil(chosen.length / perLine(width)) * (SIZE + 14) + 4}
      label="Pairs of a query's numbers before and after the rotation; the table below has their angles" />
    <ul class="legend"><li><b class="hint">○</b> before the rotation</li>
      <li><b>●</b> after; the number is the pair's</li></ul>`;
}

function hand(context, x, y, angle, colour, width) {
  const length = SIZE / 2 - 11;
  const tip = [x + Math.cos(angle) * length, y - Math.sin(angle) * length];
  line(context, [[x, y], tip], colour, width);
  if (width < 2) ring(context, ...tip, 3.5, colour, width);
  else dot(context, ...tip, 3.5, colour);
}

const TURN = 2 * Math.PI;
const degrees = (angle) => `${format((((angle % TURN) + TURN) % TURN) * (360 / TURN), 3)}°`;

export function PairTable({ pairs, position, isMeasured }) {
  const names = ["pair", "radians a position", "tokens for a turn", `at position ${position}`,
    ...(isMeasured ? ["the query was turned by"] : [])];
  const rows = pairs.map(({ angle, whole, turned }, i) => [i, format(angle), angle ? grouped(Math.round(TURN / angle)) : "never",
    degrees(whole), ...(isMeasured ? [degrees(turned)] : [])]);
  return html`<details><summary>All ${pairs.length} pairs in a table</summary><${Scrolled} label="The pairs">
    <${Table} aria-label="Angles of the pairs" names=${names} rows=${rows} /><//></details>`;
}
