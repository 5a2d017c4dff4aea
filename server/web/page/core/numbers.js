// Numerical functions of the page, and the formatting of numbers.

/** softmax(logits / temperature). At temperature 0 the largest logit (the first of equals) has probability 1. */
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

export const sum = (values) => values.reduce((all, value) => all + value, 0);

export const within = (value, low, high) => Math.max(low, Math.min(high, value));
/** Entropy in nats: -sum p ln p. */
export function entropy(probabilities) {
  let sum = 0;
  for (const p of probabilities) if (p > 0) sum -= p * Math.log(p);
  return sum;
}

export const indices = (count, first = 0) => Array.from({ length: count }, (_, i) => String(first + i));

/** `most` of `count` indices, from the first to the last; or all. */
export const evenly = (count, most) => indices(Math.min(count, most)).map((i, _, { length }) =>
  Math.round((i * (count - 1)) / Math.max(1, length - 1)));

/** Equal values keep their order. */
export function descending(values) {
  const order = new Uint32Array(values.length).map((_, i) => i);
  return order.sort((a, b) => values[b] - values[a] || a - b);
}

/** The largest finite numbers first. */
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

export const sizeOf = (values) => Math.max(...extent(values).map(Math.abs), 1e-30);

const BITS = { bfloat16: 8, float16: 11 }; // of a number's significand
let bits = 24;
let significant = 4;

/** Significant digits, 4 at most, and which numbers are equal, follow from the model's compute dtype. */
export function setPrecision(dtype) {
  bits = BITS[dtype] ?? 24;
  significant = Math.min(4, Math.ceil(bits * Math.log10(2)));
}

/** Whether less than a unit of the last place apart. */
function areTied(a, b) {
  const size = Math.max(Math.abs(a), Math.abs(b));
  return a === b || Math.abs(a - b) < 2 ** (Math.floor(Math.log2(size)) + 1 - bits);
}

/** {rank, isTied} of a place in falling numbers: valueAt(place). Tied numbers share the rank of the first of them. */
export function rankAt(valueAt, place, count) {
  const isLike = (other) => other >= 0 && other < count && areTied(valueAt(other), valueAt(place));
  let first = place;
  while (isLike(first - 1)) first -= 1;
  return { rank: first + 1, isTied: first < place || isLike(place + 1) };
}

/** The decimals, at most 2, that the model's precision supports. */
export const decimalsOf = (size) => Math.max(0, Math.min(2, significant - 1 - Math.floor(Math.log10(size || 1))));

/** 4 significant digits (3 for bfloat16, all for integers), a true minus, exponents where needed. */
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

/** Thin spaces between thousands. */
export const grouped = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f");

export const counted = (count, noun, nouns = `${noun}s`) => `${grouped(count)} ${count === 1 ? noun : nouns}`;

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
