// The numbers of the journey's attention, and the weights at any temperature.
import { softmax } from "../../core/numbers.js";
import { productsOf } from "../../core/projection.js";

/** Numbers of all pairs, [shown, all keys]. dots: q · k before any mask; scores: the network's, -inf if masked. */
export function pairsOf({ queries, explain: { arrays: { k }, scale }, scores }) {
  const dots = productsOf(queries, k);
  const isMasked = Array.from(scores.data, (score) => !Number.isFinite(score));
  return { numKeys: k.shape[0], dots, scaled: dots.map((dot) => dot * scale), scores: scores.data, isMasked };
}

/** softmax(scores / T) of each row, with the head's sink if it has one. */
export function weightsAt({ scores, numKeys }, sink, temperature) {
  const weights = new Float64Array(scores.length);
  for (let first = 0; first < scores.length; first += numKeys) {
    const row = scores.subarray(first, first + numKeys);
    // the temperature does not change the sink's score; at 0 the largest other score becomes 0
    const scaled = temperature === 0 ? softmax(row, 0).map(Math.log) : Float64Array.from(row, (score) => score / temperature);
    weights.set(softmax(sink === null ? scaled : [...scaled, sink]).subarray(0, numKeys), first);
  }
  return weights;
}

/** The weighted sum of all values: the head's output at these weights. */
export function mixed(values, weights, numKeys) {
  const width = values.length / numKeys;
  return Float64Array.from({ length: width }, (_, i) => weights.reduce((sum, weight, key) => sum + weight * values[key * width + i], 0));
}
