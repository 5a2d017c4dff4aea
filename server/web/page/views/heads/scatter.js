// All heads as points of two of their scores. A mark's shape and colour, and the name next to it, identify the layer.
import { colourTable } from "../../core/colour.js";
import { html, useCallback, useMemo, useState } from "../../core/html.js";
import { format } from "../../core/numbers.js";
import { Picture } from "../../parts/picture.js";
import { MEASURES, shortName } from "./measures.js";

const MARGIN = { left: 58, right: 22, top: 18, bottom: 46 };
const NUM_TICKS = 5;
const RADIUS = 5.5;
const NAME_GAP = RADIUS + 5;
const REACH = 18; // CSS pixels within which a point is pointed at

/** The next larger number that divides into round ticks. */
function roundedUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 7.5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

/**
 * The axis of a measure, {low, end}: up to the rounded largest score, at most to the largest possible one; for
 * differences, symmetric around 0.
 */
function axisOf(measure, heads, isDifference) {
  const scores = heads.map((each) => each.scores[measure]).filter(Number.isFinite);
  const largest = Math.max(0, ...(isDifference ? scores.map(Math.abs) : scores));
  const end = Math.min(MEASURES[measure].most ?? Infinity, roundedUp(largest * 1.02));
  return { ...MEASURES[measure], low: isDifference ? -end : 0, end };
}

/** The relative place of a score on its axis, 0 to 1. */
const shareOf = (score, { low, end }) => (score - low) / (end - low);
const tickOf = (share, { low, end }) => low + (end - low) * share;

/** The colour of a layer: the sequential scale without its palest end. */
export function layerColour(layer, numLayers, mode) {
  const table = colourTable("sequential", mode);
  const i = Math.round(100 + (numLayers < 2 ? 0.6 : layer / (numLayers - 1)) * 130) * 3;
  return `rgb(${table[i]} ${table[i + 1]} ${table[i + 2]})`;
}

/** The mark of a layer, its path in the context: circle, square, triangle, diamond, cross, and again. */
export function markPath(context, layer, x, y, radius) {
  const corners = {
    1: [
      [-0.9, -0.9],
      [0.9, -0.9],
      [0.9, 0.9],
      [-0.9, 0.9],
    ],
    2: [
      [0, -1.15],
      [1.05, 0.85],
      [-1.05, 0.85],
    ],
    3: [
      [0, -1.25],
      [1.25, 0],
      [0, 1.25],
      [-1.25, 0],
    ],
    4: [
      [-1.1, -0.42],
      [-0.42, -0.42],
      [-0.42, -1.1],
      [0.42, -1.1],
      [0.42, -0.42],
      [1.1, -0.42],
      [1.1, 0.42],
      [0.42, 0.42],
      [0.42, 1.1],
      [-0.42, 1.1],
      [-0.42, 0.42],
      [-1.1, 0.42],
    ],
  }[layer % 5];
  context.beginPath();
  if (!corners) {
    context.arc(x, y, radius, 0, 2 * Math.PI);
    return;
  }
  corners.forEach(([right, down], i) => context[i === 0 ? "moveTo" : "lineTo"](x + right * radius, y + down * radius));
  context.closePath();
}

/** Names next to the points, outliers first; a name that would overlap something is omitted. */
function placedNames(context, points, { width: edge, height }) {
  const centre = {
    x: points.reduce((sum, at) => sum + at.x, 0) / points.length,
    y: points.reduce((sum, at) => sum + at.y, 0) / points.length,
  };
  const byDistance = [...points].sort(
    (a, b) => Math.hypot(b.x - centre.x, b.y - centre.y) - Math.hypot(a.x - centre.x, a.y - centre.y),
  );
  const taken = points.map(({ x, y }) => [x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS]);
  const names = [];
  for (const point of byDistance) {
    const name = shortName(point);
    const width = context.measureText(name).width;
    const places = [
      [NAME_GAP, 0],
      [-NAME_GAP - width, 0],
      [-width / 2, -NAME_GAP - 5],
      [-width / 2, NAME_GAP + 5],
    ];
    const free = places.find(([right, down]) => {
      const box = [point.x + right, point.y + down - 6, point.x + right + width, point.y + down + 6];
      if (box[0] < MARGIN.left || box[2] > edge || box[1] < 0 || box[3] > height - MARGIN.bottom) return false;
      return !taken.some((other) => box[0] < other[2] && box[2] > other[0] && box[1] < other[3] && box[3] > other[1]);
    });
    if (!free) continue;
    taken.push([point.x + free[0], point.y + free[1] - 6, point.x + free[0] + width, point.y + free[1] + 6]);
    names.push({ name, x: point.x + free[0], y: point.y + free[1] });
  }
  return names;
}

function drawAxes(context, { width, height, colours }, axes) {
  const [right, bottom] = [width - MARGIN.right, height - MARGIN.bottom];
  context.font = "11px system-ui, sans-serif";
  context.lineWidth = 1;
  const count = axes.x.low < 0 ? NUM_TICKS - 1 : NUM_TICKS; // so that one tick is 0
  for (let tick = 0; tick <= count; tick += 1) {
    const x = MARGIN.left + ((right - MARGIN.left) * tick) / count;
    const y = bottom - ((bottom - MARGIN.top) * tick) / count;
    context.strokeStyle = colours.line;
    context.beginPath();
    context.moveTo(MARGIN.left, y);
    context.lineTo(right, y);
    context.moveTo(x, MARGIN.top);
    context.lineTo(x, bottom);
    context.stroke();
    context.fillStyle = colours.muted;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText(format(tickOf(tick / count, axes.y), 3), MARGIN.left - 7, y);
    context.textAlign = "center";
    context.fillText(format(tickOf(tick / count, axes.x), 3), x, bottom + 14);
  }
  context.fillStyle = colours.ink;
  context.font = "600 12px system-ui, sans-serif";
  context.fillText(`${axes.x.title} (${axes.x.unit}) →`, (MARGIN.left + right) / 2, height - 12);
  context.save();
  context.translate(14, (MARGIN.top + bottom) / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(`${axes.y.title} (${axes.y.unit}) →`, 0, 0);
  context.restore();
}

/** The points of all heads, with as many names as fit. */
function drawMarks(context, points, numLayers, size) {
  for (const point of points) {
    context.fillStyle = layerColour(point.layer, numLayers, size.mode);
    context.strokeStyle = size.colours.raised;
    context.lineWidth = 1;
    markPath(context, point.layer, point.x, point.y, RADIUS);
    context.fill();
    context.stroke();
  }
  if (points.length === 0) return;
  context.font = "11px ui-monospace, monospace";
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillStyle = size.colours.muted;
  for (const { name, x, y } of placedNames(context, points, size)) context.fillText(name, x, y);
}

function drawRing(context, { x, y }, radius, lineWidth, colours) {
  context.strokeStyle = colours.ink;
  context.lineWidth = lineWidth;
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.stroke();
}

/** The pointed head, with lines to both axes. */
function drawHovered(context, point, { height, colours }) {
  drawRing(context, point, RADIUS + 2, 1.5, colours);
  context.globalAlpha = 0.45;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(MARGIN.left, point.y);
  context.lineTo(point.x, point.y);
  context.lineTo(point.x, height - MARGIN.bottom);
  context.stroke();
  context.globalAlpha = 1;
}

/**
 * heads: of headsOf; x, y: names of measures; chosen: {layer, head}; onPick(head). A head without one of the two
 * scores is not drawn.
 */
export function Scatter({ heads, x, y, isDifference = false, chosen, numLayers, onPick, handle }) {
  const [hovered, setHovered] = useState(null); // index into `placed`
  const axes = useMemo(
    () => ({ x: axisOf(x, heads, isDifference), y: axisOf(y, heads, isDifference) }),
    [heads, x, y, isDifference],
  );
  const placed = useMemo(
    () => heads.filter((each) => Number.isFinite(each.scores[x]) && Number.isFinite(each.scores[y])),
    [heads, x, y],
  );
  const height = (width) => Math.round(Math.max(320, Math.min(560, width * 0.7)));
  const placesOf = useCallback(
    (width) =>
      placed.map(({ layer, head, scores }) => ({
        layer,
        head,
        x: MARGIN.left + shareOf(scores[x], axes.x) * (width - MARGIN.left - MARGIN.right),
        y: height(width) - MARGIN.bottom - shareOf(scores[y], axes.y) * (height(width) - MARGIN.bottom - MARGIN.top),
      })),
    [placed, axes],
  );
  const draw = useCallback(
    (context, size) => {
      drawAxes(context, size, axes);
      drawMarks(context, placesOf(size.width), numLayers, size);
    },
    [placesOf, axes, numLayers],
  );
  const overlay = useCallback(
    (context, size) => {
      const points = placesOf(size.width);
      const mine = points.find((each) => each.layer === chosen.layer && each.head === chosen.head);
      if (mine) drawRing(context, mine, RADIUS + 3, 2.5, size.colours);
      if (points[hovered]) drawHovered(context, points[hovered], size);
    },
    [placesOf, hovered, chosen.layer, chosen.head],
  );
  const point = (px, py, width) => {
    if (px === null) return setHovered(null);
    const distances = placesOf(width).map((each) => Math.hypot(each.x - px, each.y - py));
    const nearest = distances.indexOf(Math.min(...distances));
    return setHovered(distances[nearest] <= REACH ? nearest : null);
  };
  const said = `Heads as points: ${axes.x.title} to the right, ${axes.y.title} upwards.`;
  const shown = placed[hovered] ?? placed.find((each) => each.layer === chosen.layer && each.head === chosen.head);
  return html`<${Picture} draw=${draw} overlay=${overlay} height=${height} handle=${handle}
    label=${`${said} Left and right walk by the first, up and down by the second; Enter opens the head.`}
    onPoint=${point} onPick=${() => placed[hovered] && onPick(placed[hovered])}
    onKey=${(key) => {
      if ((key === "Enter" || key === " ") && shown) onPick(shown);
      else if (["ArrowLeft", "ArrowRight"].includes(key)) setHovered(next(placed, shown, x, key === "ArrowRight"));
      else if (["ArrowUp", "ArrowDown"].includes(key)) setHovered(next(placed, shown, y, key === "ArrowUp"));
      else return false;
      return true;
    }}
    tipAt=${(width) => placesOf(width)[placed.indexOf(shown)]}
    readout=${shown ? describe(shown) : ""} tip=${placed[hovered] ? describe(shown) : ""} />`;
}

/** The index of the head with the next larger (or smaller) score; heads with equal scores in their order. */
function next(placed, from, measure, isUp) {
  const order = placed.map((_, i) => i).sort((a, b) => placed[a].scores[measure] - placed[b].scores[measure] || a - b);
  const at = order.indexOf(placed.indexOf(from));
  return order[Math.max(0, Math.min(order.length - 1, at + (isUp ? 1 : -1)))];
}

const describe = ({ layer, head, scores }) =>
  `Layer ${layer}, head ${head}: ${Object.keys(MEASURES)
    .map((name) => `${MEASURES[name].title.toLowerCase()} ${format(scores[name])}`)
    .join(", ")}`;
