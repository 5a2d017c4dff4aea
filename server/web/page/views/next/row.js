// One row of logits at a position of the text, for the whole vocabulary, and the sampling distribution from it.
import { useAnswer, useJson } from "../../core/fetching.js";
import { useMemo } from "../../core/html.js";
import { useCapabilities } from "../../core/model.js";
import { descending, grouped, rankAt } from "../../core/numbers.js";
import { useSequences } from "../../core/sequences.js";
import { useSelection } from "../../core/state.js";
import { distribution, fetchRow, filtersOf, ranksOf } from "./distribution.js";

const NAMED = 100; // tokens with names in the response; names of others are fetched when needed

/**
 * {answer, body, row, drawn} of the selected position of an input (null: no request), at the sliders' options
 * {temperature, topK, topP, minP}. row and drawn (see distribution.js) are null until they have arrived. row is
 * {tokens, ids, position, actual, logits [V], order, ranks, isTied(token), rankOf(token), nameOf(token)}: actual is the
 * text's token there, undefined past its end; rankOf returns a rank as text, with = if tokens share it; nameOf returns
 * null for a token that is not among the likeliest.
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

/** The name of a token: from the row, or fetched. */
export function useName(row, token) {
  const known = token === null ? "" : row.nameOf(token);
  const { data } = useJson(known === null ? "detokenize" : null, { tokens: [token] });
  return known ?? data?.prompt ?? "…";
}
