// Default pair of views without a chosen one: the largest weight that is informative.
import { useLook } from "./fetching.js";
import { useEffect } from "./html.js";
import { clamp, useHead, useInput } from "./model.js";
import { seenOf } from "./seen.js";
import { select, state, useSelection } from "./state.js";

/** Choose a pair of the selected head if the address names no key; keepsQuery: with its query. Returns the pending answer, or null. */
export function useStrongestPair({ keepsQuery = false } = {}) {
  const selection = useSelection();
  const { part, layer, head } = useHead();
  const isOpen = selection.text !== "" && selection.key === null;
  const body = { ...useInput(), part, layers: layer, heads: head, kind: "pattern", dtype: "float32" };
  const answer = useLook(isOpen ? "v1/attention" : null, body);
  const { entry, loading } = answer;
  useEffect(() => {
    // The selection may have changed since this was drawn: closing a lesson restores the user's own pair.
    const now = seenOf(state.value);
    const isStill = ["text", "part", "layer", "head", "query", "key"].every((name) => now[name] === selection[name]);
    if (isOpen && entry && !loading && isStill) select(strongest(entry, part, selection.query, keepsQuery));
  }, [isOpen, entry, loading]);
  return isOpen && !answer.error ? { ...answer, data: null, loading: true } : null;
}

/** The largest weight whose key is neither the first token, which often gets unused weight, nor the query itself. */
function strongest(entry, part, wanted, keepsQuery) {
  const [queries, keys] = entry.shape.slice(-2);
  const { data } = entry.arrays.attention;
  const rows = wanted === -1 && !keepsQuery ? Array.from({ length: queries }, (_, i) => i) : [clamp(wanted, queries)];
  let best = { key: 0 };
  let most = 0;
  for (const query of rows) {
    for (let key = 1; key < keys; key += 1) {
      if (data[query * keys + key] <= most || (part !== "cross" && key === query)) continue;
      most = data[query * keys + key];
      best = keepsQuery ? { key } : { query, key };
    }
  }
  return best;
}
