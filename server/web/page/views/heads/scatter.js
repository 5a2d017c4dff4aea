// All heads as points of two of their scores. Shape and colour of a mark identify its layer.
import { colourTable } from "../../core/colour.js";
import { html, useCallback, useMemo } from "../../core/html.js";
import { format, sum, within } from "../../core/numbers.js";
import { MONO, line, upwards, write } from "../../parts/ink.js";
import { Points, placedNames } from "../../parts/points.js";
import { MEASURES, shortName } from "./measures.js";

const MARGIN = { left: 58, right: 22, top: 18, bottom: 46 };
const NUM_TICKS = 5;
const RADIUS = 5.5;
const REACH = 18;

function roundedUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 7.5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

/** Up to the rounded largest score, at most to the largest possible one; for differences, symmetric around 0. */
function axisOf(measure, heads, isDifference) {
  const scores = heads.map((each) => each.scores[measure]).filter(Number.isFinite);
  const largest = Math.max(0, ...(isDifference ? scores.map(Math.abs) : scores));
  const end = Math.min(MEASURES[measure].most ?? Infinity, roundedUp(largest * 1.02));
  return { ...MEASURES[measure], low: isDifference ? -end : 0, end };
}

const shareOf = (score, { low, end }) => (score - low) / (end - low);
const tickOf = (share, { low, end }) => low + (end - low) * share;

/** The sequential scale without its palest end. */
export function layerColour(layer, numLayers, mode) {
  const table = colourTable("sequential", mode);
  const i = Math.round(100 + (numLayers < 2 ? 0.6 : layer / (numLayers - 1)) * 130) * 3;
  return `rgb(${table[i]} ${table[i + 1]} ${table[i + 2]})`;
}

const CROSS = [[-1.1, -0.42], [-0.42, -0.42], [-0.42, -1.1], [0.42, -1.1], [0.42, -0.42], [1.1, -0.42], [1.1, 0.42], [0.42, 0.42],
  [0.42, 1.1], [-0.42, 1.1], [-0.42, 0.42], [-1.1, 0.42]];
const CORNERS = [
  null, // a circle
  [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]],
  [[0, -1.15], [1.05, 0.85], [-1.05, 0.85]],
  [[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]],
  CROSS,
];

export function markPath(context, layer, x, y, radius) {
  const corners = CORNERS[layer % CORNERS.length];
  context.beginPath();
  if (!corners) return context.arc(x, y, radius, 0, 2 * Math.PI);
  corners.forEach(([right, down], i) => context[i === 0 ? "moveTo" : "lineTo"](x + right * radius, y + down * radius));
  return context.closePath();
}

function drawAxes(context, { width, height, colours }, axes) {
  const [right, bottom] = [width - MARGIN.right, height - MARGIN.bottom];
  const count = axes.x.low < 0 ? NUM_TICKS - 1 : NUM_TICKS; // so that one tick is 0
  const name = (text, x, y, align = "center") => write(context, text, x, y, colours.muted, { size: 11, align });
  for (let tick = 0; tick <= count; tick += 1) {
    const x = MARGIN.left + ((right - MARGIN.left) * tick) / count;
    const y = bottom - ((bottom - MARGIN.top) * tick) / count;
    line(context, [[MARGIN.left, y], [right, y]], colours.line);
    line(context, [[x, MARGIN.top], [x, bottom]], colours.line);
    name(format(tickOf(tick / count, axes.y), 3), MARGIN.left - 7, y, "right");
    name(format(tickOf(tick / count, axes.x), 3), x, bottom + 14);
  }
  const title = (axis, x, y) => write(context, `${axis.title} (${axis.unit}) →`, x, y, colours.ink, { weight: "600", align: "center" });
  title(axes.x, (MARGIN.left + right) / 2, height - 12);
  upwards(context, 14, (MARGIN.top + bottom) / 2, () => title(axes.y, 0, 0));
}

function drawMarks(context, points, numLayers, { width, height, colours, mode }) {
  for (const point of points) {
    context.fillStyle = layerColour(point.layer, numLayers, mode);
    context.strokeStyle = colours.raised;
    context.lineWidth = 1;
    markPath(context, point.layer, point.x, point.y, RADIUS);
    context.fill();
    context.stroke();
  }
  const mean = (name) => sum(points.map((point) => point[name])) / points.length;
  const [centreX, centreY] = [mean("x"), mean("y")];
  const away = ({ x, y }) => Math.hypot(x - centreX, y - centreY);
  const named = points.map((point) => ({ ...point, names: [shortName(point)] })).sort((a, b) => away(b) - away(a));
  context.font = `11px ${MONO}`; // in which the names are measured
  for (const { text, x, y } of placedNames(context, named, RADIUS, { width, height: height - MARGIN.bottom })) {
    write(context, text, x, y, colours.muted, { size: 11, family: MONO });
  }
}

function drawCross(context, { x, y }, { height, colours }) {
  context.globalAlpha = 0.45;
  line(context, [[MARGIN.left, y], [x, y], [x, height - MARGIN.bottom]], colours.ink);
  context.globalAlpha = 1;
}

const heightOf = (width) => Math.round(within(width * 0.7, 320, 560));

/** x, y: names of measures; a head without one of the two scores is not drawn. */
export function Scatter({ heads, x, y, isDifference = false, chosen, numLayers, onPick }) {
  const axes = useMemo(
    () => ({ x: axisOf(x, heads, isDifference), y: axisOf(y, heads, isDifference) }),
    [heads, x, y, isDifference],
  );
  const placed = useMemo(
    () => heads.filter((each) => Number.isFinite(each.scores[x]) && Number.isFinite(each.scores[y])),
    [heads, x, y],
  );
  const placesOf = useCallback(
    (width) => placed.map(({ layer, head, scores }) => ({
      layer, head,
      x: MARGIN.left + shareOf(scores[x], axes.x) * (width - MARGIN.left - MARGIN.right),
      y: heightOf(width) - MARGIN.bottom - shareOf(scores[y], axes.y) * (heightOf(width) - MARGIN.bottom - MARGIN.top),
    })),
    [placed, axes],
  );
  const draw = useCallback(
    (context, size, places) => {
      drawAxes(context, size, axes);
      drawMarks(context, places, numLayers, size);
    },
    [placesOf, axes, numLayers],
  );
  const mine = placed.findIndex((each) => each.layer === chosen.layer && each.head === chosen.head);
  const walk = (from, key) => {
    const isUp = key === "ArrowRight" || key === "ArrowUp";
    return next(placed, from, ["ArrowLeft", "ArrowRight"].includes(key) ? x : y, isUp);
  };
  const said = `Heads as points: ${axes.x.title} to the right, ${axes.y.title} upwards.`;
  return html`<${Points} placesOf=${placesOf} count=${placed.length} draw=${draw} mark=${drawCross} chosen=${mine < 0 ? null : mine}
    reach=${REACH} walk=${walk} onPick=${(index) => onPick(placed[index])} height=${heightOf}
    label=${`${said} Left and right walk by the first, up and down by the second; Enter opens the head.`}
    describe=${(index) => describe(placed[index])} />`;
}

/** The next larger (or smaller) score; heads with equal scores in their order. */
function next(placed, from, measure, isUp) {
  const order = placed.map((_, i) => i).sort((a, b) => placed[a].scores[measure] - placed[b].scores[measure] || a - b);
  return order[Math.max(0, Math.min(order.length - 1, order.indexOf(from) + (isUp ? 1 : -1)))];
}

const describe = ({ layer, head, scores }) =>
  `Layer ${layer}, head ${head}: ${Object.keys(MEASURES)
    .map((name) => `${MEASURES[name].title.toLowerCase()} ${format(scores[name])}`)
    .join(", ")}`;
