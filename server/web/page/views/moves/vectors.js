// Linear algebra of the arrows: sums, and the axes of the plane or space.
import { dot, lengthOf } from "../../core/projection.js";

const ROUNDS = 30; // rounds of power iteration; more of them change the displayed share by less than 0.1 %

export const zeros = (width) => new Float64Array(width);

export function addTo(sum, vector, factor = 1) {
  for (let i = 0; i < sum.length; i += 1) sum[i] += factor * vector[i];
  return sum;
}

export const sumOf = (vectors, width) => vectors.reduce((sum, vector) => addTo(sum, vector), zeros(width));

/** The vector minus its components along the axes, scaled to length 1; null if nothing is left. */
function besides(vector, axes) {
  const rest = Float64Array.from(vector);
  const whole = lengthOf(rest);
  for (let round = 0; round < 2; round += 1) for (const axis of axes) addTo(rest, axis, -dot(rest, axis)); // twice, because of rounding
  const size = lengthOf(rest);
  if (!(size > 1e-6 * whole)) return null;
  return rest.map((value) => value / size);
}

/** The directions as orthonormal axes (Gram-Schmidt, in their order). */
export function orthonormal(wanted) {
  const axes = [];
  for (const vector of wanted) {
    const axis = besides(vector, axes);
    if (axis) axes.push(axis);
  }
  return axes;
}

/** Extend the axes to `count` by the directions with most of the vectors' squared lengths, as far as there are any. */
export function withPrincipal(axes, vectors, count) {
  const found = [...axes];
  while (found.length < count) {
    const next = strongest(vectors, found);
    if (next === null) break;
    found.push(next);
  }
  return found;
}

/** The direction, orthogonal to the axes, with the largest share of the squared lengths; null if the axes hold all. */
function strongest(vectors, axes) {
  let begin = null;
  let most = 0;
  for (const vector of vectors) {
    const rest = Math.sqrt(Math.max(0, dot(vector, vector) - axes.reduce((sum, axis) => sum + dot(vector, axis) ** 2, 0)));
    if (rest > most) [begin, most] = [vector, rest];
  }
  let axis = begin && besides(begin, axes);
  for (let round = 0; axis && round < ROUNDS; round += 1) {
    const turned = zeros(axis.length);
    for (const vector of vectors) addTo(turned, vector, dot(vector, axis));
    axis = besides(turned, axes);
  }
  return axis;
}

export const onAxes = (vector, axes) => [0, 1, 2].map((i) => (axes[i] ? dot(vector, axes[i]) : 0));

export function shareHeld(vectors, axes) {
  let held = 0;
  let all = 0;
  for (const vector of vectors) {
    all += dot(vector, vector);
    for (const axis of axes) held += dot(vector, axis) ** 2;
  }
  return all > 0 ? held / all : 1;
}
