// The camera of the journey: a rectangle of the scene, the path from one rectangle to the next, and the film's time.
import { within } from "../../core/numbers.js";

const EDGES = { x: 20, above: 40, below: 24 }; // CSS pixels around a subject, for its names
const DWELL = 3.4; // seconds at a stop, to read its text
const TRAVEL = 1.8; // seconds on the way to the next

export const between = (from, to, share) => from + (to - from) * share;
export const eased = (share) => share * share * (3 - 2 * share);

/** 0 when the previous stop is left, 1 at the stop; 1 for all at the first stop, which shows the results. */
export const arrival = (progress, index) => within(Math.max(progress - index + 1, 1 - progress * 2), 0, 1);

/** {x, y, span}: the centre and the visible width of the scene when the rectangle fits the view. */
export function cameraOver({ x, y, width, height }, view) {
  const scale = Math.min((view.width - 2 * EDGES.x) / width, (view.height - EDGES.above - EDGES.below) / height);
  return { x: x + width / 2, y: y + height / 2 - (EDGES.above - EDGES.below) / 2 / scale, span: view.width / scale };
}

/** On a long way the camera zooms out, so that both ends are in view. */
export function cameraBetween(from, to, share) {
  const distance = Math.hypot(to.x - from.x, to.y - from.y);
  const out = Math.max(0, distance / Math.max(from.span, to.span) - 0.4);
  return {
    x: between(from.x, to.x, share),
    y: between(from.y, to.y, share),
    span: from.span * (to.span / from.span) ** share * (1 + out * Math.sin(Math.PI * share) ** 2),
  };
}

export const secondsOf = (numStops) => numStops * DWELL + (numStops - 1) * TRAVEL;

export function progressAt(seconds, numStops) {
  const stop = Math.floor(seconds / (DWELL + TRAVEL));
  const rest = seconds - stop * (DWELL + TRAVEL);
  return Math.min(numStops - 1, stop + Math.max(0, (rest - DWELL) / TRAVEL));
}

/** At a stop, with most of the reading time left. */
export function secondsAt(progress) {
  const stop = Math.floor(progress);
  const gone = progress - stop;
  return stop * (DWELL + TRAVEL) + (gone > 0 ? DWELL + gone * TRAVEL : 0);
}
