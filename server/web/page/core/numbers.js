// Numerical functions of the page, and the formatting of numbers.

/**
 * Probabilities softmax(logits / temperature), in float64, with the largest logit subtracted first. At temperature 0
 * the largest logit (the first of equals) has probability 1.
 */
export function softmax(logits, temperature = 1) {
  const probabilities = new Float64Array(logits.length);
  let best = 0;
  for (let i = 1; i < logits.length; i += 1) if (logits[i] > logits[best]) best = i;
  if (temperature === 0) {
    probabilities[best] = 1;
    return probabilities;
  }
  let sum = 0;
  for (let i = 0; i < logits.length; i += 1) {
    probabilities[i] = Math.exp((logits[i] - logits[best]) / temperature);
    sum += probabilities[i];
  }
  for (let i = 0; i < logits.length; i += 1) probabilities[i] /= sum;
  return probabilities;
}

/** Entropy in nats: -sum p ln p. */
export function entropy(probabilities) {
  let sum = 0;
  for (const p of probabilities) if (p > 0) sum -= p * Math.log(p);
  return sum;
}

/** Indices by falling value; equal values keep their order. */
export function descending(values) {
  const order = new Uint32Array(values.length).map((_, i) => i);
  return order.sort((a, b) => values[b] - values[a] || a - b);
}

/** The indices of the `count` largest finite numbers, the largest first. */
export function largest(values, count) {
  const best = [];
  for (let i = 0; i < values.length; i += 1) {
    if (!Number.isFinite(values[i]) || (best.length === count && values[i] <= values[best[count - 1]])) continue;
    let place = best.length;
    while (place > 0 && values[best[place - 1]] < values[i]) place -= 1;
    best.splice(place, 0, i);
    if (best.length > count) best.pop();
  }
  return best;
}

/** The smallest and largest finite value, or [0, 0]. */
export function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 0];
}

const BITS = { bfloat16: 8, float16: 11 }; // of a number's significand
let bits = 24;
let significant = 4;

/** Take the significant digits of numbers, 4 at most, and which numbers are equal, from the model's compute dtype. */
export function setPrecision(dtype) {
  bits = BITS[dtype] ?? 24;
  significant = Math.min(4, Math.ceil(bits * Math.log10(2)));
}

/** Whether two numbers are equal within the model's precision: less than a unit of the last place apart. */
function areTied(a, b) {
  const size = Math.max(Math.abs(a), Math.abs(b));
  return a === b || Math.abs(a - b) < 2 ** (Math.floor(Math.log2(size)) + 1 - bits);
}

/**
 * {rank, isTied} of a place, from 0, in falling numbers: valueAt(place). Numbers that are equal within the model's
 * precision share the rank of the first of them.
 */
export function rankAt(valueAt, place, count) {
  const isLike = (other) => other >= 0 && other < count && areTied(valueAt(other), valueAt(place));
  let first = place;
  while (isLike(first - 1)) first -= 1;
  return { rank: first + 1, isTied: first < place || isLike(place + 1) };
}

/** The decimals of numbers up to that size, at most 2, that the model's precision supports. */
export const decimalsOf = (size) => Math.max(0, Math.min(2, significant - 1 - Math.floor(Math.log10(size || 1))));

/**
 * A formatted number: 4 significant digits (3 for bfloat16, all for integers), a true minus, exponents where needed.
 */
export function format(value, digits = significant) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return String(value).replace("-", "−");
  const isPlain = size >= 1e-3 && size < 1e6;
  const written = isPlain ? String(Number(value.toPrecision(digits))) : value.toExponential(digits - 2);
  return written.replace("-", "−");
}

/** A share as percent, with one digit less: a probability is less exact than its logit. */
export const percent = (share, digits = significant - 1) => `${format(share * 100, digits)} %`;

/** Whole numbers with thin spaces between thousands. */
export const grouped = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f");

/** A count with its noun: "1 token", "2 tokens". */
export const counted = (count, noun, nouns = `${noun}s`) => `${grouped(count)} ${count === 1 ? noun : nouns}`;

/** Bytes with a unit of 1024. */
export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let size = count;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${format(size, 3)} ${units[unit]}`;
}
