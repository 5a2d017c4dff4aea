// One row of logits: what the model gives after one position of the text, for the whole vocabulary.
import { useJson, useLook } from "../../core/fetching.js";
import { useMemo } from "../../core/html.js";
import { inputOf, useCapabilities } from "../../core/model.js";
import { descending } from "../../core/numbers.js";
import { useSequences } from "../../core/sequences.js";
import { useSelection } from "../../core/state.js";
import { ranksOf } from "./truncation.js";

const NAMED = 100; // tokens whose names come with the row; others are named when they are looked at

/**
 * {answer, body, row} of the selected position. row is null until it is there, then {tokens, ids, position,
 * logits [V], order, ranks, nameOf(token)}: nameOf gives null for a token that is not among the likeliest.
 */
export function useRow() {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const input = inputOf(selection, capabilities);
  const count = useSequences().decoder.length; // 0 while it is asked
  const { query } = selection;
  // A position from the end stays one: while the tokens of a new text are still counted, it is right already.
  const position = query < 0 ? Math.max(query, -(count || 1)) : Math.min(query, (count || 1) - 1);
  const body = { ...input, position, num_tokens: NAMED, full: true };
  const answer = useLook(count ? "v1/next" : null, body);
  const { entry } = answer;
  const row = useMemo(() => {
    if (!entry) return null;
    const order = descending(entry.arrays.logits.data);
    const names = new Map(entry.temperatures[0].tokens.map(({ token_id: id, token }) => [id, token]));
    entry.tokens.forEach((token, position) => names.set(entry.token_ids[position], token));
    return {
      tokens: entry.tokens,
      ids: entry.token_ids,
      position: entry.position,
      logits: entry.arrays.logits.data,
      order,
      ranks: ranksOf(order),
      nameOf: (token) => names.get(token) ?? null,
    };
  }, [entry]);
  return { answer, body, row };
}

/** The name of a token: known with the row, or asked for. */
export function useName(row, token) {
  const known = token === null ? "" : row.nameOf(token);
  const { data } = useJson(known === null ? "detokenize" : null, { tokens: [token] });
  return known ?? data?.prompt ?? "…";
}
