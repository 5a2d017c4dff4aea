// The sampling distribution: softmax at a temperature, and the part of it that the server's filters keep.
import { json, look } from "../../core/fetching.js";
import { entropy, softmax } from "../../core/numbers.js";

const GREEDY_BELOW = 1e-5; // smaller temperatures are greedy in the sampler too

/** The enabled filters as fields of v1/next; {} if every token is kept. */
export const filtersOf = ({ topK, topP, minP }) => ({
  ...(topK > 0 ? { top_k: topK } : {}),
  ...(topP < 1 ? { top_p: topP } : {}),
  ...(minP > 0 ? { min_p: minP } : {}),
});

/**
 * Fetcher for `useAnswer`: {entry, filtered}, the row, and the result of the filters if there are any. The row's body
 * does not depend on the sliders, so it is fetched once; without filters, a temperature needs no request.
 */
export async function fetchRow(route, { row, filtered }, options) {
  const [[entry], answer] = await Promise.all([look(route, row, options), filtered && json(route, filtered, options)]);
  return { entry, filtered: answer && answer.data[0].temperatures[0] };
}

/**
 * One row of logits. order: the tokens by falling logit (see `descending`), independent of the temperature; ranks:
 * their places in it, from 1. filtered: the server's {num_kept, kept_entropy, num_passed} at that temperature, or
 * null without a filter. Filters keep the likeliest tokens. Returns {temperature, probabilities, kept, cutBy,
 * numKept, entropy, keptEntropy}: probabilities: [V], of the whole vocabulary; kept: [V], the sampling probabilities
 * (sum 1; removed tokens 0); cutBy(token): the filter that removed it, or null; entropies in nats.
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
