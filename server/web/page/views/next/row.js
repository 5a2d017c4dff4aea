// One row of logits at a position of the text, for the whole vocabulary, and the sampling distribution from it.
import { json, look, useAnswer, useJson } from "../../core/fetching.js";
import { useMemo } from "../../core/html.js";
import { useCapabilities } from "../../core/model.js";
import { descending, entropy, grouped, rankAt, softmax, sum } from "../../core/numbers.js";
import { useSequences } from "../../core/sequences.js";
import { useSelection } from "../../core/state.js";

const NAMED = 100; // tokens with names in the response; names of others are fetched when needed

/**
 * The selected position of an input (null: no request), at the options {temperature, topK, topP, minP}; row and drawn are null
 * until they have arrived. rankOf(token): as text, with = if tokens share it; nameOf(token): null if it is not among the likeliest.
 */
export function useRow(options, input) {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const count = useSequences().last.length; // 0 until it is known
  const { query } = selection;
  // A position from the end stays one: while the tokens of a new text are still counted, it is right already.
  const position = query < 0 ? Math.max(query, -(count || 1)) : Math.min(query, (count || 1) - 1);
  const body = { ...input, position, num_tokens: NAMED, full: true };
  const filters = filtersOf(options);
  const filtered = Object.keys(filters).length > 0
    ? { ...input, position, num_tokens: 0, temperatures: [options.temperature], ...filters }
    : null;
  const answer = useAnswer(fetchRow, count && input ? "v1/next" : null, { row: body, filtered });
  const entry = answer.data?.entry;
  const row = useMemo(() => {
    if (!entry) return null;
    const order = descending(entry.arrays.logits.data);
    const names = new Map(entry.temperatures[0].tokens.map(({ token_id: id, token }) => [id, token]));
    entry.tokens.forEach((token, position) => names.set(entry.token_ids[position], token));
    const { data: logits } = entry.arrays.logits;
    const ranks = ranksOf(order);
    const placeOf = (token) => rankAt((place) => logits[order[place]], ranks[token] - 1, order.length);
    return {
      tokens: entry.tokens,
      ids: entry.token_ids,
      position: entry.position,
      actual: entry.token_ids[entry.position + (capabilities.kind === "encoder" ? 0 : 1)],
      logits,
      order,
      ranks,
      isTied: (token) => placeOf(token).isTied,
      rankOf: (token) => `${placeOf(token).isTied ? "=" : ""}${grouped(placeOf(token).rank)}`,
      nameOf: (token) => names.get(token) ?? null,
    };
  }, [entry, capabilities]);
  // Until the answer for new filters arrives, all numbers are of the previous ones, the temperature too.
  const temperature = answer.asked?.filtered?.temperatures[0] ?? options.temperature;
  const left = answer.data?.filtered ?? null;
  const drawn = useMemo(
    () => row && distribution(row.logits, row.order, row.ranks, temperature, left),
    [row, temperature, left],
  );
  return { answer, body, row, drawn };
}

export function useName(row, token) {
  const known = token === null ? "" : row.nameOf(token);
  const { data } = useJson(known === null ? "detokenize" : null, { tokens: [token] });
  return known ?? data?.prompt ?? "…";
}

const GREEDY_BELOW = 1e-5; // smaller temperatures are greedy in the sampler too

/** {} if every token is kept. */
export const filtersOf = ({ topK, topP, minP }) => ({
  ...(topK > 0 ? { top_k: topK } : {}),
  ...(topP < 1 ? { top_p: topP } : {}),
  ...(minP > 0 ? { min_p: minP } : {}),
});

/** The row, and the result of the filters if there are any: the row does not depend on the sliders, and is fetched once. */
async function fetchRow(route, { row, filtered }, options) {
  const [[entry], answer] = await Promise.all([look(route, row, options), filtered && json(route, filtered, options)]);
  return { entry, filtered: answer && answer.data[0].temperatures[0] };
}

/**
 * order, ranks: the tokens by falling logit, and their places from 1. filtered: the server's {num_kept, kept_entropy,
 * num_passed}, or null. kept: the sampling probabilities, 0 for removed tokens; cutBy(token): the filter that removed it, or null.
 */
function distribution(logits, order, ranks, temperature, filtered) {
  const probabilities = softmax(logits, temperature < GREEDY_BELOW ? 0 : temperature);
  const numKept = filtered?.num_kept ?? probabilities.reduce((count, p) => count + (p > 0), 0);
  const kept = probabilities.map((p, token) => (ranks[token] <= numKept ? p : 0));
  const held = sum(kept);
  for (let token = 0; token < kept.length; token += 1) kept[token] /= held;
  const passed = Object.entries(filtered?.num_passed ?? {});
  const cutBy = (token) => passed.find(([, count]) => ranks[token] > count)?.[0].replace("_", "-") ?? null;
  const all = entropy(probabilities);
  return { temperature, probabilities, kept, cutBy, numKept, entropy: all, keptEntropy: filtered?.kept_entropy ?? all };
}

function ranksOf(order) {
  const ranks = new Uint32Array(order.length);
  order.forEach((token, place) => {
    ranks[token] = place + 1;
  });
  return ranks;
}
