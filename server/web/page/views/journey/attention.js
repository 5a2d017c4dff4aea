// The numbers of the journey's attention: products of all pairs, masked ones too, and the weights at any temperature.
import { softmax } from "../../core/numbers.js";

/**
 * {dots, scaled, scores, isMasked}: row-major [shown, all keys]. dots: q . k of every pair before any mask (the
 * network does not use masked ones); scores: the network's scores, -inf where masked.
 */
export function productsOf({ queries, explain, scores, shown }) {
  const width = queries.shape.at(-1);
  const numKeys = explain.arrays.k.shape[0];
  const keys = explain.arrays.k.data;
  const dots = new Float64Array(shown.length * numKeys);
  for (let row = 0; row < shown.length; row += 1) {
    for (let key = 0; key < numKeys; key += 1) {
      let sum = 0;
      for (let i = 0; i < width; i += 1) sum += queries.data[row * width + i] * keys[key * width + i];
      dots[row * numKeys + key] = sum;
    }
  }
  return {
    numKeys,
    dots,
    scaled: dots.map((dot) => dot * explain.scale),
    scores: scores.data,
    isMasked: Array.from(scores.data, (score) => !Number.isFinite(score)),
  };
}

/**
 * The weights [shown, all keys] at a temperature: softmax(scores / T) of each row, with the head's sink if it has
 * one.
 */
export function weightsAt({ scores, numKeys }, sink, temperature) {
  const weights = new Float64Array(scores.length);
  for (let first = 0; first < scores.length; first += numKeys) {
    const row = softmax(scores.subarray(first, first + numKeys), temperature);
    weights.set(sink === null ? row : row.map((weight) => weight * shareBeside(sink, scores, first, numKeys, temperature)), first);
  }
  return weights;
}

/** The total weight of a row's keys next to the head's sink; the temperature does not change the sink's score. */
function shareBeside(sink, scores, first, numKeys, temperature) {
  const scaled = Array.from(scores.subarray(first, first + numKeys), (score) => score / temperature);
  const sum = temperature === 0 ? 1 : scaled.reduce((total, score) => total + Math.exp(score), 0);
  return sum / (sum + Math.exp(sink));
}

/** The weighted sum of the values of all keys: the head's output at these weights. */
export function mixed(values, weights, numKeys) {
  const width = values.length / numKeys;
  const sum = new Float64Array(width);
  for (let key = 0; key < numKeys; key += 1) {
    for (let i = 0; i < width; i += 1) sum[i] += weights[key] * values[key * width + i];
  }
  return sum;
}
