// Named points in a plane, one unit as long up as across.
import { html, useCallback, useRef, useState } from "../../core/html.js";
import { extent, format } from "../../core/numbers.js";
import { Picture } from "../../parts/picture.js";

const MARGIN = 26;
const NEAR = 24; // CSS pixels within which the pointer means a point

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
  const hovered = pointed !== null && pointed < points.length ? pointed : null; // texts may have become fewer
  const place = useRef(null);
  const draw = useCallback(
    (context, { width, height: tall, colours }) => {
      const at = frameOf(points, width, tall);
      place.current = at;
      context.font = "12px system-ui, sans-serif";
      context.textBaseline = "middle";
      const taken = [];
      points.forEach((point, i) => {
        const [x, y] = at(point);
        context.fillStyle = colours.query;
        context.beginPath();
        context.arc(x, y, 4.5, 0, 2 * Math.PI);
        context.fill();
        nameBeside(context, names[i], [x, y], width, taken, colours);
      });
    },
    [points, names],
  );
  const overlay = useCallback(
    (context, { width, height: tall, colours }) => {
      const at = frameOf(points, width, tall);
      for (const [index, colour] of [[chosen, colours.query], [hovered, colours.ink]]) {
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
    readout=${`“${names[shown]}” at ${points[shown].map((value) => format(value, 3)).join(", ")}`} />`;
}

/** The name right, left, below or above of the point, wherever it covers no other; else it is left to the readout. */
function nameBeside(context, name, [x, y], width, taken, colours) {
  const shown = name.length > 34 ? `${name.slice(0, 33)}…` : name;
  const long = context.measureText(shown).width;
  const places = [[x + 9, y], [x - 9 - long, y], [x - long / 2, y + 15], [x - long / 2, y - 15]];
  const free = places.find(
    ([left, middle]) =>
      left > 2 && left + long < width - 2 &&
      !taken.some((box) => left < box[0] + box[2] && box[0] < left + long && Math.abs(middle - box[1]) < 15),
  );
  if (!free) return;
  taken.push([free[0], free[1], long]);
  context.textAlign = "left";
  context.fillStyle = colours.ink;
  context.fillText(shown, ...free);
}
