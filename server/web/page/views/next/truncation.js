// The distribution that a token is drawn from, as the sampler makes it: temperature, top-k, softmax, min-p, top-p.
import { entropy, softmax } from "../../core/numbers.js";

const GREEDY_BELOW = 1e-5; // smaller temperatures are greedy for the sampler too

/**
 * One row of logits at the given options. order: the tokens by falling logit (see `descending`), which no temperature
 * changes. Tokens are kept or cut by value, so that equally likely ones share their fate.
 * {probabilities, kept, cutBy, numKept, entropy, keptEntropy}: probabilities [V] of the whole vocabulary, kept [V] what
 * is drawn from (the rest scaled to sum to 1, cut ones 0), cutBy(token) the filter that cut it, or null; entropies in nats.
 */
export function distribution(logits, order, { temperature, topK, topP, minP }) {
  const isGreedy = temperature < GREEDY_BELOW;
  const probabilities = softmax(logits, isGreedy ? 0 : temperature);
  const kept = probabilities.slice();
  const edges = { topK: -Infinity, minP: 0, topP: 0 };
  // By logit: far down the tail the probabilities are equally 0.
  if (topK > 0 && topK < order.length && !isGreedy) edges.topK = logits[order[topK - 1]];
  edges.minP = minP * probabilities[order[0]];
  const passes = (token) => logits[token] >= edges.topK && probabilities[token] >= edges.minP;
  if (topP < 1) edges.topP = nucleusEdge(probabilities, order.filter(passes), topP);
  let held = 0;
  let numKept = 0;
  for (let token = 0; token < kept.length; token += 1) {
    if (!passes(token) || probabilities[token] < edges.topP) kept[token] = 0;
    held += kept[token];
    if (kept[token] > 0) numKept += 1;
  }
  for (let token = 0; token < kept.length; token += 1) kept[token] /= held;
  const cutBy = (token) => {
    if (logits[token] < edges.topK) return "top-k";
    if (probabilities[token] < edges.minP) return "min-p";
    return probabilities[token] < edges.topP ? "top-p" : null;
  };
  return { probabilities, kept, cutBy, numKept, entropy: entropy(probabilities), keptEntropy: entropy(kept) };
}

/** The smallest probability of the nucleus: a token is in it while the strictly likelier hold under topP of all. */
function nucleusEdge(probabilities, falling, topP) {
  let all = 0;
  for (const token of falling) all += probabilities[token];
  let held = 0;
  for (const token of falling) {
    held += probabilities[token];
    if (held >= topP * all) return probabilities[token];
  }
  return 0;
}

/** The place of each token in the order, 1 the likeliest. */
export function ranksOf(order) {
  const ranks = new Uint32Array(order.length);
  order.forEach((token, place) => {
    ranks[token] = place + 1;
  });
  return ranks;
}
