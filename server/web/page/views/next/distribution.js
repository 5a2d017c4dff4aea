// What a token is drawn from: softmax at a temperature, and of that what the server says its filters leave.
import { json, look } from "../../core/fetching.js";
import { entropy, softmax } from "../../core/numbers.js";

const GREEDY_BELOW = 1e-5; // smaller temperatures are greedy for the sampler too

/** The filters that are on, as fields of v1/next; {} where every token is kept. */
export const filtersOf = ({ topK, topP, minP }) => ({
  ...(topK > 0 ? { top_k: topK } : {}),
  ...(topP < 1 ? { top_p: topP } : {}),
  ...(minP > 0 ? { min_p: minP } : {}),
});

/**
 * What `useAnswer` fetches: {entry, filtered}, the row itself and, with filters, what they leave of it. The row's body
 * stays the same while sliders move, so that it is asked once; a temperature without filters asks nothing.
 */
export async function fetchRow(route, { row, filtered }, options) {
  const [[entry], answer] = await Promise.all([look(route, row, options), filtered && json(route, filtered, options)]);
  return { entry, filtered: answer && answer.data[0].temperatures[0] };
}

/**
 * One row of logits. order: the tokens by falling logit (see `descending`), which no temperature changes; ranks: their
 * places in it, from 1. filtered: the server's {num_kept, kept_entropy, num_passed} at that temperature, or null where no
 * filter is on. Tokens are kept or cut by value, so those that are kept are the likeliest.
 * {temperature, probabilities, kept, cutBy, numKept, entropy, keptEntropy}: probabilities [V] of the whole vocabulary, kept
 * [V] what is drawn from (the rest scaled to sum to 1, cut ones 0), cutBy(token) the filter that cut it, or null; nats.
 */
export function distribution(logits, order, ranks, temperature, filtered) {
  const probabilities = softmax(logits, temperature < GREEDY_BELOW ? 0 : temperature);
  const numKept = filtered?.num_kept ?? probabilities.reduce((count, p) => count + (p > 0), 0);
  const kept = probabilities.map((p, token) => (ranks[token] <= numKept ? p : 0));
  const held = kept.reduce((sum, p) => sum + p, 0);
  for (let token = 0; token < kept.length; token += 1) kept[token] /= held;
  const passed = Object.entries(filtered?.num_passed ?? {});
  const cutBy = (token) => passed.find(([, count]) => ranks[token] > count)?.[0].replace("_", "-") ?? null;
  const all = entropy(probabilities);
  return { temperature, probabilities, kept, cutBy, numKept, entropy: all, keptEntropy: filtered?.kept_entropy ?? all };
}

/** The place of each token in the order, 1 the likeliest. */
export function ranksOf(order) {
  const ranks = new Uint32Array(order.length);
  order.forEach((token, place) => {
    ranks[token] = place + 1;
  });
  return ranks;
}
