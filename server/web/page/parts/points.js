// Points of a plane: the nearest one is pointed at, and names are next to them without overlaps.
import { html, useCallback } from "../core/html.js";
import { ring } from "./ink.js";
import { Picture, usePointed } from "./picture.js";

const NAME = 12;
const RING = 8.5;

/**
 * placesOf(width): [{x, y}] of all points, constant while nothing changes; draw(context, size, places); mark(context, place,
 * size): further marks of the pointed one; chosen: the index of a ringed one, or null; reach: CSS pixels within which a point
 * is pointed at; walk(index, key): the index after an arrow key (default: the next or previous one). Others: see Picture.
 */
export function Points({ placesOf, count, draw, mark, chosen = null, reach, describe, onPick, walk, ...more }) {
  const { at, point, onKey } = usePointed(count, { from: chosen, onPick, isFlat: true });
  const shown = at ?? chosen;
  const paint = useCallback((context, size) => draw(context, size, placesOf(size.width)), [draw, placesOf]);
  const overlay = useCallback(
    (context, size) => {
      const places = placesOf(size.width);
      for (const [index, width] of [[chosen, 2.5], [at, 1.5]]) {
        if (index !== null) ring(context, places[index].x, places[index].y, RING, size.colours.ink, width);
      }
      if (at !== null) mark?.(context, places[at], size);
    },
    [placesOf, at, chosen],
  );
  const nearest = (x, y, width) => {
    const distances = placesOf(width).map((place) => Math.hypot(place.x - x, place.y - y));
    const best = distances.indexOf(Math.min(...distances));
    return distances[best] <= reach ? best : null;
  };
  const said = shown === null ? "" : describe(shown);
  return html`<${Picture} draw=${paint} overlay=${overlay} ...${more} readout=${said} tip=${at === null ? "" : said}
    tipAt=${(width) => placesOf(width)[shown]}
    onPoint=${(x, y, width) => point(x === null ? null : nearest(x, y, width))}
    onPick=${onPick && ((x, y, width) => nearest(x, y, width) !== null && onPick(nearest(x, y, width)))}
    onKey=${(key) => (walk && key.startsWith("Arrow") ? (point(walk(shown, key)), true) : onKey(key))} />`;
}

/**
 * [{text, x, y}]: names next to points [{x, y, names}] of that radius: the first of its `names` that overlaps no point and
 * no earlier name. A name without a place is omitted.
 */
export function placedNames(context, points, radius, { width, height }) {
  const taken = points.map(({ x, y }) => ({ left: x - radius, top: y - radius, right: x + radius, bottom: y + radius }));
  const isFree = (box) =>
    box.left > 2 && box.right < width - 2 && box.top > 2 && box.bottom < height - 2 &&
    !taken.some((one) => box.left < one.right && one.left < box.right && box.top < one.bottom && one.top < box.bottom);
  const boxAt = ([left, middle], wide) => ({ left, right: left + wide, top: middle - NAME / 2, bottom: middle + NAME / 2 });
  const placed = new Map();
  for (let length = 0; length < Math.max(...points.map(({ names }) => names.length)); length += 1) {
    for (const point of points) {
      const text = point.names[length];
      if (placed.has(point) || text === undefined) continue;
      const wide = context.measureText(text).width;
      const place = placesBeside(point, wide, radius + 5).find((one) => isFree(boxAt(one, wide)));
      if (!place) continue;
      taken.push(boxAt(place, wide));
      placed.set(point, { text, x: place[0], y: place[1] });
    }
  }
  return [...placed.values()];
}

function placesBeside({ x, y }, wide, gap) {
  const [right, left, centre] = [x + gap, x - gap - wide, x - wide / 2];
  const [below, above] = [y + gap + NAME / 2, y - gap - NAME / 2];
  return [
    [right, y], [left, y], [centre, below], [centre, above],
    [right, y + NAME / 2], [right, y - NAME / 2], [left, y + NAME / 2], [left, y - NAME / 2],
    [x - 4, below], [x - 4, above], [x + 4 - wide, below], [x + 4 - wide, above],
  ];
}
