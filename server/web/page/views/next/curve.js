// The whole vocabulary as one falling curve with logarithmic axes; the filled part has the tokens that can be
// sampled.
import { html, useCallback, useRef, useState } from "../../core/html.js";
import { shownToken } from "../../core/model.js";
import { grouped, percent } from "../../core/numbers.js";
import { select } from "../../core/state.js";
import { Picture } from "../../parts/picture.js";
import { SaveMenu } from "../../parts/tools.js";
import { useName } from "./row.js";

const MARGIN = { left: 58, right: 14, top: 14, bottom: 36 };
const HEIGHT = 300;
const SMALLEST = 1e-10; // below that, the axis ends

/** found: a token to mark, or null. */
export function Curve({ row, drawn, found }) {
  const [hovered, setHovered] = useState(null); // a rank, from 1
  const picture = useRef(null);
  const count = row.order.length;
  const token = hovered === null ? found : row.order[hovered - 1];
  const name = useName(row, token);
  const axes = axesOf(drawn.probabilities[row.order[count - 1]], drawn.kept[row.order[0]], count);
  const draw = useCallback((context, size) => drawCurve(context, size, { row, drawn, axes, found }), [row, drawn, found]);
  const overlay = useCallback(
    (context, { width, colours }) => {
      if (hovered === null) return;
      const x = axes.x(hovered, width);
      context.strokeStyle = colours.ink;
      strokeLine(context, [x, MARGIN.top], [x, HEIGHT - MARGIN.bottom]);
    },
    [hovered, drawn],
  );
  const move = (rank) => setHovered(Math.max(1, Math.min(count, rank)));
  const step = (rank, by) => (by > 0 ? Math.max(rank + 1, Math.round(rank * 1.1)) : Math.min(rank - 1, Math.round(rank / 1.1)));
  return html`<section class="card">
    <header><h2>The whole vocabulary, sorted</h2>
      <${SaveMenu} picture=${picture} name="next-token" arrays=${[{
        label: "probabilities by id",
        array: { data: together(drawn), shape: [2, count] },
        rows: ["softmax", "drawn"],
      }]} />
    </header>
    <${Picture} draw=${draw} overlay=${overlay} height=${HEIGHT} handle=${picture}
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
  </section>`;
}

function told(row, drawn, token, name) {
  const cut = drawn.cutBy(token);
  const fate = cut ? `cut by ${cut}` : `drawn with ${percent(drawn.kept[token])}`;
  return `rank ${grouped(row.ranks[token])} “${shownToken(name)}”: ${percent(drawn.probabilities[token])}, ${fate}`;
}

/** Both distributions under each other, float32, [2, V]. */
function together({ probabilities, kept }) {
  const both = new Float32Array(2 * kept.length);
  both.set(probabilities);
  both.set(kept, kept.length);
  return both;
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
  context.strokeStyle = colours.accent;
  context.lineWidth = 2.5;
  path(context, after);
  context.stroke();
  context.strokeStyle = colours.ink;
  context.lineWidth = 1.2;
  path(context, before);
  context.stroke();
  if (drawn.numKept < row.order.length) drawEdge(context, end, width, colours, drawn.numKept);
  if (found !== null) drawFound(context, axes.x(row.ranks[found], width), axes.y(drawn.probabilities[found]), colours);
}

/** The cut of the truncation, with its label on the side with more space. */
function drawEdge(context, x, width, colours, numKept) {
  context.strokeStyle = colours.ink;
  context.lineWidth = 1.5;
  const ground = HEIGHT - MARGIN.bottom;
  for (let y = MARGIN.top; y < ground; y += 7) strokeLine(context, [x, y], [x, Math.min(y + 4, ground)]);
  const isLeft = x > width * 0.6;
  context.fillStyle = colours.ink;
  context.font = "600 11px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = isLeft ? "right" : "left";
  context.fillText(isLeft ? `${grouped(numKept)} kept | rest cut` : `${grouped(numKept)} kept, the rest cut →`,
    x + (isLeft ? -6 : 6), MARGIN.top + 8);
}

function drawFound(context, x, y, colours) {
  context.fillStyle = colours.ink;
  context.beginPath();
  context.arc(x, y, 5, 0, 2 * Math.PI);
  context.fill();
}

function drawAxes(context, width, colours, { low, high, widest, x, y }) {
  context.font = "11px system-ui, sans-serif";
  context.lineWidth = 1;
  context.textBaseline = "middle";
  context.textAlign = "right";
  const step = Math.max(1, Math.ceil((high - low) / 6));
  for (let power = high; power >= low; power -= step) {
    context.strokeStyle = colours.line;
    strokeLine(context, [MARGIN.left, y(10 ** power)], [width - MARGIN.right, y(10 ** power)]);
    context.fillStyle = colours.muted;
    context.fillText(power > -5 ? percent(10 ** power) : `10${raised(power)}`, MARGIN.left - 6, y(10 ** power));
  }
  context.textAlign = "center";
  for (let power = 0; power <= widest; power += 1) {
    context.strokeStyle = colours.line;
    strokeLine(context, [x(10 ** power, width), MARGIN.top], [x(10 ** power, width), HEIGHT - MARGIN.bottom]);
    context.fillStyle = colours.muted;
    context.fillText(grouped(10 ** power), x(10 ** power, width), HEIGHT - 24);
  }
  context.fillStyle = colours.muted;
  context.fillText("rank", (MARGIN.left + width) / 2, HEIGHT - 8);
}

const raised = (power) => String(power).replace("-", "⁻").replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);

/** The ranks with a point: one per pixel, the first ones all. */
function ranksPerPixel(axes, width, count) {
  const ranks = [];
  for (let x = MARGIN.left; x <= width - MARGIN.right; x += 1) {
    const rank = Math.min(count, Math.max(1, axes.rankAt(x, width)));
    if (ranks.at(-1) !== rank) ranks.push(rank);
  }
  return ranks;
}

function path(context, points) {
  context.beginPath();
  points.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
}

function strokeLine(context, from, to) {
  path(context, [from, to]);
  context.stroke();
}
