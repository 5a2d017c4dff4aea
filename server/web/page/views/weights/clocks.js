// Pairs of a query's numbers as clock hands, before and after rotation, and the same as a table.
import { html, useCallback } from "../../core/html.js";
import { format, grouped } from "../../core/numbers.js";
import { Headings } from "../../parts/headings.js";
import { Picture } from "../../parts/picture.js";
import { Scrolled } from "../../parts/scrolled.js";

const SIZE = 56; // CSS pixels of a clock and its name
const MOST = 16;

/** At most MOST pairs, evenly from the fastest to the slowest. */
function some(pairs) {
  const step = Math.max(1, (pairs.length - 1) / (Math.min(MOST, pairs.length) - 1 || 1));
  return Array.from({ length: Math.min(MOST, pairs.length) }, (_, i) => Math.round(i * step));
}

/** pairs: [{angle, whole, before, after}]; isMeasured: whether the numbers of a query are available. */
export function Clocks({ pairs, isMeasured }) {
  const chosen = some(pairs);
  const perLine = (width) => Math.max(1, Math.floor(width / SIZE));
  const draw = useCallback((context, { width, colours }) => {
    context.font = "12px ui-monospace, monospace";
    context.textBaseline = "middle";
    context.textAlign = "center";
    chosen.forEach((place, i) => {
      const x = (i % perLine(width)) * SIZE + SIZE / 2;
      const y = Math.floor(i / perLine(width)) * (SIZE + 14) + SIZE / 2;
      const { before, after, whole } = pairs[place];
      context.strokeStyle = colours.line;
      context.lineWidth = 1;
      context.beginPath();
      context.arc(x, y, SIZE / 2 - 4, 0, 2 * Math.PI);
      context.stroke();
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

/** A hand with a tip: a ring if it is thin, else a dot. */
function hand(context, x, y, angle, colour, width) {
  const length = SIZE / 2 - 11;
  const [right, down] = [x + Math.cos(angle) * length, y - Math.sin(angle) * length];
  context.fillStyle = colour;
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(right, down);
  context.stroke();
  context.beginPath();
  context.arc(right, down, 3.5, 0, 2 * Math.PI);
  context[width < 2 ? "stroke" : "fill"]();
}

const TURN = 2 * Math.PI;
const degrees = (angle) => `${format((((angle % TURN) + TURN) % TURN) * (360 / TURN), 3)}°`;

/** The angle of each pair, the number of tokens for a whole turn, and the values measured for a query. */
export function PairTable({ pairs, position, isMeasured }) {
  const heads = ["pair", "radians a position", "tokens for a turn", `at position ${position}`,
    ...(isMeasured ? ["the query was turned by"] : [])];
  return html`<details><summary>All ${pairs.length} pairs in a table</summary><${Scrolled} label="The pairs">
    <table class="plain-table" aria-label="Angles of the pairs"><${Headings} names=${heads} />
    <tbody>${pairs.map(({ angle, whole, turned }, i) => html`<tr><th scope="row">${i}</th>
      <td class="number">${format(angle)}</td><td class="number">${angle ? grouped(Math.round(TURN / angle)) : "never"}</td>
      <td class="number">${degrees(whole)}</td>${isMeasured && html`<td class="number">${degrees(turned)}</td>`}</tr>`)}</tbody>
    </table><//></details>`;
}
