// Named points in a plane, with the same unit on both axes.
import { html, useCallback, useRef, useState } from "../../core/html.js";
import { extent, format } from "../../core/numbers.js";
import { Picture } from "../../parts/picture.js";

const MARGIN = 26;
const DOT = 4.5; // CSS pixels, the radius of a point
const LINE = 15; // and the height of a name
const LENGTHS = [34, 18, 11]; // characters of a name, longest first: the longest that fits is used
const NEAR = 24; // CSS pixels within which the pointer selects a point

function frameOf(points, width, height) {
  const [left, right] = extent(points.map(([x]) => x));
  const [low, high] = extent(points.map(([, y]) => y));
  const scale = Math.min((width - 2 * MARGIN) / (right - left || 1), (height - 2 * MARGIN) / (high - low || 1));
  const middle = [(left + right) / 2, (low + high) / 2];
  return ([x, y]) => [width / 2 + (x - middle[0]) * scale, height / 2 - (y - middle[1]) * scale];
}

/** points: [[x, y]] with their names; chosen: the index of one; onPick(index). */
export function Plane({ points, names, chosen, onPick, handle, height = 380 }) {
  const [pointed, setHovered] = useState(null);
  const hovered = pointed !== null && pointed < points.length ? pointed : null; // there may be fewer texts now
  const place = useRef(null);
  const draw = useCallback(
    (context, { width, height: tall, colours }) => {
      const at = frameOf(points, width, tall);
      place.current = at;
      context.font = "12px system-ui, sans-serif";
      context.textBaseline = "middle";
      const dots = points.map(at);
      context.fillStyle = colours.accent;
      for (const [x, y] of dots) {
        context.beginPath();
        context.arc(x, y, DOT, 0, 2 * Math.PI);
        context.fill();
      }
      context.textAlign = "left";
      context.fillStyle = colours.ink;
      for (const { text, left, middle } of placeNames(context, names, dots, width, tall)) context.fillText(text, left, middle);
    },
    [points, names],
  );
  const overlay = useCallback(
    (context, { width, height: tall, colours }) => {
      const at = frameOf(points, width, tall);
      for (const [index, colour] of [[chosen, colours.accent], [hovered, colours.muted]]) {
        if (index === null) continue;
        context.strokeStyle = colour;
        context.lineWidth = 2.5;
        context.beginPath();
        context.arc(...at(points[index]), 9, 0, 2 * Math.PI);
        context.stroke();
      }
    },
    [points, chosen, hovered],
  );
  const nearest = (x, y) => {
    let best = null;
    let least = NEAR;
    points.forEach((point, i) => {
      const [px, py] = place.current(point);
      const distance = Math.hypot(px - x, py - y);
      if (distance < least) [best, least] = [i, distance];
    });
    return best;
  };
  const step = (by) => setHovered(((hovered ?? chosen) + by + points.length) % points.length);
  const shown = hovered ?? chosen;
  const said = `“${names[shown]}” at ${points[shown].map((value) => format(value, 3)).join(", ")}`;
  return html`<${Picture} draw=${draw} overlay=${overlay} height=${height} handle=${handle}
    label=${`${points.length} texts as points in the plane of their two largest principal components`}
    onPoint=${(x, y) => setHovered(x === null ? null : nearest(x, y))}
    onPick=${(x, y) => nearest(x, y) !== null && onPick(nearest(x, y))}
    onKey=${(key) => {
      if (key === "ArrowRight" || key === "ArrowDown") step(1);
      else if (key === "ArrowLeft" || key === "ArrowUp") step(-1);
      else if (key === "Enter" && hovered !== null) onPick(hovered);
      else return false;
      return true;
    }}
    readout=${said} tip=${hovered === null ? "" : said} tipAt=${() => pointAt(place.current(points[shown]))} />`;
}

const pointAt = ([x, y]) => ({ x, y });

/**
 * [{text, left, middle}]: names right, left, above or below of their points, at the first place that overlaps no
 * point and no earlier name. A name without such a place is shortened, then omitted: the readout has it.
 */
function placeNames(context, names, dots, width, height) {
  const taken = dots.map(([x, y]) => ({ left: x - DOT, top: y - DOT, right: x + DOT, bottom: y + DOT }));
  const isFree = (box) =>
    box.left > 2 && box.right < width - 2 && box.top > 2 && box.bottom < height - 2 &&
    !taken.some((one) => box.left < one.right && one.left < box.right && box.top < one.bottom && one.top < box.bottom);
  const boxAt = ([left, middle], wide) => ({ left, right: left + wide, top: middle - LINE / 2, bottom: middle + LINE / 2 });
  const placed = [];
  for (const most of LENGTHS) {
    dots.forEach((dot, i) => {
      if (placed[i] || (most < LENGTHS[0] && names[i].length <= most)) return; // already tried
      const text = names[i].length > most ? `${names[i].slice(0, most - 1).trimEnd()}…` : names[i];
      const wide = context.measureText(text).width;
      const place = placesBeside(dot, wide).find((one) => isFree(boxAt(one, wide)));
      if (!place) return;
      taken.push(boxAt(place, wide));
      placed[i] = { text, left: place[0], middle: place[1] };
    });
  }
  return placed.filter(Boolean);
}

/** The possible places of a name of that width (left end, middle of its height), the best first. */
function placesBeside([x, y], wide) {
  const [right, left, centre] = [x + 9, x - 9 - wide, x - wide / 2];
  const [below, above] = [y + LINE, y - LINE];
  return [
    [right, y], [left, y], [centre, below], [centre, above],
    [right, y + LINE / 2], [right, y - LINE / 2], [left, y + LINE / 2], [left, y - LINE / 2],
    [x - 4, below], [x - 4, above], [x + 4 - wide, below], [x + 4 - wide, above],
  ];
}
