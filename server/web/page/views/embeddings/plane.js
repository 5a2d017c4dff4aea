// Named points in a plane, with the same unit on both axes.
import { html, useCallback } from "../../core/html.js";
import { extent, format } from "../../core/numbers.js";
import { dot, write } from "../../parts/ink.js";
import { Points, placedNames } from "../../parts/points.js";

const MARGIN = 26;
const DOT = 4.5;
const LENGTHS = [34, 18, 11]; // characters of a name: the longest that fits is used
const NEAR = 24; // CSS pixels within which the pointer selects a point
const HEIGHT = 380;

export function Plane({ points, names, chosen, onPick }) {
  const placesOf = useCallback(
    (width) => {
      const [left, right] = extent(points.map(([x]) => x));
      const [low, high] = extent(points.map(([, y]) => y));
      const scale = Math.min((width - 2 * MARGIN) / (right - left || 1), (HEIGHT - 2 * MARGIN) / (high - low || 1));
      const [middle, centre] = [(left + right) / 2, (low + high) / 2];
      return points.map(([x, y]) => ({ x: width / 2 + (x - middle) * scale, y: HEIGHT / 2 - (y - centre) * scale }));
    },
    [points],
  );
  const draw = useCallback(
    (context, size, places) => {
      for (const { x, y } of places) dot(context, x, y, DOT, size.colours.accent);
      context.font = "12px system-ui, sans-serif"; // in which the names are measured
      const named = places.map((place, i) => ({ ...place, names: shortened(names[i]) }));
      for (const { text, x, y } of placedNames(context, named, DOT, size)) write(context, text, x, y, size.colours.ink);
    },
    [placesOf, names],
  );
  return html`<${Points} placesOf=${placesOf} count=${points.length} draw=${draw} chosen=${chosen} reach=${NEAR} onPick=${onPick}
    height=${HEIGHT}
    label=${`${points.length} texts as points in the plane of their two largest principal components`}
    describe=${(index) => `“${names[index]}” at ${points[index].map((value) => format(value, 3)).join(", ")}`} />`;
}

const shortened = (name) =>
  LENGTHS.map((most, i) => (name.length <= most ? (i && name.length <= LENGTHS[i - 1] ? undefined : name)
    : `${name.slice(0, most - 1).trimEnd()}…`)).filter(Boolean);
