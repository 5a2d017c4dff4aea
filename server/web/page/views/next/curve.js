// The whole vocabulary as one falling curve with logarithmic axes; the filled part can be sampled.
import { html, useCallback, useState } from "../../core/html.js";
import { shownToken } from "../../core/model.js";
import { grouped, percent, within } from "../../core/numbers.js";
import { select } from "../../core/state.js";
import { dot, line, path, write } from "../../parts/ink.js";
import { Picture } from "../../parts/picture.js";
import { Card } from "../../parts/tools.js";
import { useName } from "./row.js";

const MARGIN = { left: 58, right: 14, top: 14, bottom: 36 };
const HEIGHT = 300;
const SMALLEST = 1e-10;

export function Curve({ row, drawn, found }) {
  const [hovered, setHovered] = useState(null); // a rank, from 1
  const count = row.order.length;
  const token = hovered === null ? found : row.order[hovered - 1];
  const name = useName(row, token);
  const axes = axesOf(drawn.probabilities[row.order[count - 1]], drawn.kept[row.order[0]], count);
  const draw = useCallback((context, size) => drawCurve(context, size, { row, drawn, axes, found }), [row, drawn, found]);
  const overlay = useCallback(
    (context, { width, colours }) => {
      if (hovered === null) return;
      const x = axes.x(hovered, width);
      line(context, [[x, MARGIN.top], [x, HEIGHT - MARGIN.bottom]], colours.ink);
    },
    [hovered, drawn],
  );
  const move = (rank) => setHovered(within(rank, 1, count));
  const step = (rank, by) => (by > 0 ? Math.max(rank + 1, Math.round(rank * 1.1)) : Math.min(rank - 1, Math.round(rank / 1.1)));
  const saved = { label: "probabilities by id", rows: ["softmax", "drawn"],
    lists: [drawn.probabilities, drawn.kept] };
  return html`<${Card} title="The whole vocabulary, sorted" save=${{ name: "next-token", arrays: [saved] }}>
    <${Picture} draw=${draw} overlay=${overlay} height=${HEIGHT}
      label=${`Probability of all ${count} tokens by rank, at temperature ${drawn.temperature}; ${drawn.numKept} are kept`}
      onPoint=${(x, _, width) => (x === null ? setHovered(null) : move(axes.rankAt(x, width)))}
      onPick=${() => hovered !== null && select({ next_find: `#${row.order[hovered - 1]}` })}
      onKey=${(key) => {
        if (key === "ArrowLeft") move(step(hovered ?? 2, -1));
        else if (key === "ArrowRight") move(step(hovered ?? 0, 1));
        else if (key === "Enter" && hovered !== null) select({ next_find: `#${row.order[hovered - 1]}` });
        else return false;
        return true;
      }}
      readout=${token === null ? "" : told(row, drawn, token, name)} />
    <p class="hint">Filled: the distribution for drawing. Thin line: only softmax. A straight line would be Zipf's law. Point to
      name a token, click to mark it.</p>
  <//>`;
}

function told(row, drawn, token, name) {
  const cut = drawn.cutBy(token);
  const fate = cut ? `cut by ${cut}` : `drawn with ${percent(drawn.kept[token])}`;
  return `rank ${grouped(row.ranks[token])} “${shownToken(name)}”: ${percent(drawn.probabilities[token])}, ${fate}`;
}

function axesOf(least, most, count) {
  const low = Math.floor(Math.log10(Math.max(least, SMALLEST)));
  const high = Math.log10(Math.max(most, SMALLEST)) > -1 ? 0 : Math.ceil(Math.log10(most));
  const widest = Math.log10(count);
  const room = (width) => width - MARGIN.left - MARGIN.right;
  return {
    low,
    high,
    widest,
    x: (rank, width) => MARGIN.left + (Math.log10(rank) / widest) * room(width),
    y: (p) => MARGIN.top + ((high - Math.max(Math.log10(p), low)) / (high - low)) * (HEIGHT - MARGIN.top - MARGIN.bottom),
    rankAt: (x, width) => Math.round(10 ** (((x - MARGIN.left) / room(width)) * widest)),
  };
}

function drawCurve(context, { width, colours }, { row, drawn, axes, found }) {
  drawAxes(context, width, colours, axes);
  const ranks = ranksPerPixel(axes, width, row.order.length);
  const before = ranks.map((rank) => [axes.x(rank, width), axes.y(drawn.probabilities[row.order[rank - 1]])]);
  const after = ranks
    .filter((rank) => rank <= drawn.numKept)
    .map((rank) => [axes.x(rank, width), axes.y(drawn.kept[row.order[rank - 1]])]);
  const end = axes.x(drawn.numKept, width);
  after.push([end, axes.y(drawn.kept[row.order[drawn.numKept - 1]])]);
  const ground = HEIGHT - MARGIN.bottom;
  context.fillStyle = colours.accent;
  context.globalAlpha = 0.2;
  path(context, [[MARGIN.left, ground], ...after, [end, ground]]);
  context.fill();
  context.globalAlpha = 1;
  line(context, after, colours.accent, 2.5);
  line(context, before, colours.ink, 1.2);
  if (drawn.numKept < row.order.length) drawEdge(context, end, width, colours, drawn.numKept);
  if (found !== null) dot(context, axes.x(row.ranks[found], width), axes.y(drawn.probabilities[found]), 5, colours.ink);
}

function drawEdge(context, x, width, colours, numKept) {
  context.setLineDash([4, 3]);
  line(context, [[x, MARGIN.top], [x, HEIGHT - MARGIN.bottom]], colours.ink, 1.5);
  context.setLineDash([]);
  const isLeft = x > width * 0.6;
  const text = isLeft ? `${grouped(numKept)} kept | rest cut` : `${grouped(numKept)} kept, the rest cut →`;
  write(context, text, x + (isLeft ? -6 : 6), MARGIN.top + 8, colours.ink, { size: 11, weight: "600", align: isLeft ? "right" : "left" });
}

function drawAxes(context, width, colours, { low, high, widest, x, y }) {
  const name = (text, left, middle, align = "center") => write(context, text, left, middle, colours.muted, { size: 11, align });
  const step = Math.max(1, Math.ceil((high - low) / 6));
  for (let power = high; power >= low; power -= step) {
    const middle = y(10 ** power);
    line(context, [[MARGIN.left, middle], [width - MARGIN.right, middle]], colours.line);
    name(power > -5 ? percent(10 ** power) : `10${raised(power)}`, MARGIN.left - 6, middle, "right");
  }
  for (let power = 0; power <= widest; power += 1) {
    const left = x(10 ** power, width);
    line(context, [[left, MARGIN.top], [left, HEIGHT - MARGIN.bottom]], colours.line);
    name(grouped(10 ** power), left, HEIGHT - 24);
  }
  name("rank", (MARGIN.left + width) / 2, HEIGHT - 8);
}

const raised = (power) => String(power).replace("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);

/** One per pixel, the first ones all. */
function ranksPerPixel(axes, width, count) {
  const ranks = [];
  for (let x = MARGIN.left; x <= width - MARGIN.right; x += 1) {
    const rank = Math.min(count, Math.max(1, axes.rankAt(x, width)));
    if (ranks.at(-1) !== rank) ranks.push(rank);
  }
  return ranks;
}
