// The numbers of the journey's attention: products of all pairs, masked ones too, and the weights at any temperature.
import { softmax } from "../../core/numbers.js";

/** {dots, scaled, scores, isMasked}: [shown, all keys]. dots: q . k before any mask; scores: the network's, -inf if masked. */
export function productsOf({ queries, explain: { arrays: { k }, scale }, scores, shown }) {
  const width = queries.shape.at(-1);
  const numKeys = k.shape[0];
  const dots = Float64Array.from({ length: shown.length * numKeys }, (_, cell) => {
    const [query, key] = [Math.floor(cell / numKeys) * width, (cell % numKeys) * width];
    let sum = 0;
    for (let i = 0; i < width; i += 1) sum += queries.data[query + i] * k.data[key + i];
    return sum;
  });
  const isMasked = Array.from(scores.data, (score) => !Number.isFinite(score));
  return { numKeys, dots, scaled: dots.map((dot) => dot * scale), scores: scores.data, isMasked };
}

/** The weights [shown, all keys] at a temperature: softmax(scores / T) of each row, with the head's sink if it has one. */
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

/** The weighted sum of the values of all keys: the head's output at these weights. */
export function mixed(values, weights, numKeys) {
  const width = values.length / numKeys;
  return Float64Array.from({ length: width }, (_, i) => weights.reduce((sum, weight, key) => sum + weight * values[key * width + i], 0));
}
