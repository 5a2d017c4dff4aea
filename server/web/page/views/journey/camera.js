// The camera of the journey: a rectangle of the scene, and the path from one rectangle to the next.

const CURVATURE = 1.3; // zoom-out of the camera on a long way: the rho of van Wijk and Nuij 2003
const NEAR = 1e-6;

export const clamp01 = (value) => Math.max(0, Math.min(1, value));
export const between = (from, to, share) => from + (to - from) * share;
/** Ease from 0 to 1, slow at both ends. */
export const eased = (share) => share * share * (3 - 2 * share);

/**
 * {x, y, span}: the centre of a rectangle, and the visible width of the scene when the whole rectangle fits the view.
 */
export function cameraOver({ x, y, width, height }, view) {
  const scale = Math.min(view.width / width, view.height / height);
  return { x: x + width / 2, y: y + height / 2, span: view.width / scale };
}

/**
 * The camera at `share` of the way between two rectangles, along the path with evenly perceived pan and zoom (van
 * Wijk and Nuij, "Smooth and efficient zooming and panning", 2003).
 */
export function cameraBetween(from, to, share) {
  if (share <= 0) return from;
  if (share >= 1) return to;
  const distance = Math.hypot(to.x - from.x, to.y - from.y);
  if (distance < NEAR * from.span) {
    return { x: to.x, y: to.y, span: from.span * (to.span / from.span) ** share };
  }
  const square = CURVATURE ** 2;
  const turn = (at, sign) => {
    const b = (to.span ** 2 - from.span ** 2 + sign * square ** 2 * distance ** 2) / (2 * at * square * distance);
    return Math.log(Math.sqrt(b * b + 1) - b);
  };
  const [start, end] = [turn(from.span, 1), turn(to.span, -1)];
  const place = start + (share * (end - start));
  const gone = (from.span / square) * (Math.cosh(start) * Math.tanh(place) - Math.sinh(start));
  return {
    x: between(from.x, to.x, gone / distance),
    y: between(from.y, to.y, gone / distance),
    span: (from.span * Math.cosh(start)) / Math.cosh(place),
  };
}

const DWELL = 3.4; // seconds at a stop, to read its text
const TRAVEL = 1.8; // seconds on the way to the next

/** The seconds that the whole journey takes. */
export const secondsOf = (numStops) => numStops * DWELL + (numStops - 1) * TRAVEL;

/** The progress of the journey after that many seconds: a whole number at a stop. */
export function progressAt(seconds, numStops) {
  const stop = Math.floor(seconds / (DWELL + TRAVEL));
  const rest = seconds - stop * (DWELL + TRAVEL);
  return Math.min(numStops - 1, stop + Math.max(0, (rest - DWELL) / TRAVEL));
}

/** The time in seconds of a progress; at a stop, with most of the reading time left. */
export function secondsAt(progress) {
  const stop = Math.floor(progress);
  const gone = progress - stop;
  return stop * (DWELL + TRAVEL) + (gone > 0 ? DWELL + gone * TRAVEL : 0);
}
