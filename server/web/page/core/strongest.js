// The pair that views open with where none was chosen: the one with the largest weight that has something to tell.
import { useLook } from "./fetching.js";
import { useEffect } from "./html.js";
import { clamp, inputOf, useCapabilities, useHead } from "./model.js";
import { seenOf } from "./seen.js";
import { select, state, useSelection } from "./state.js";

/**
 * Choose a pair of the selected head where the address names no key: of the named query, if there is one; else of any query, or
 * with keepsQuery of the last token, after which the text goes on. Returns the answer that is awaited for it (see useAnswer),
 * without its data, or null where there is nothing to wait for.
 */
export function useStrongestPair({ keepsQuery = false } = {}) {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const { part, layer, head } = useHead();
  const isOpen = selection.text !== "" && selection.key === null;
  const body = { ...inputOf(selection, capabilities), part, layers: layer, heads: head, kind: "pattern", dtype: "float32" };
  const answer = useLook(isOpen ? "v1/attention" : null, body);
  const { entry, loading } = answer;
  useEffect(() => {
    // What is asked for may have changed since this was drawn: whoever leaves a lesson gets their own pair back.
    const now = seenOf(state.value);
    const isStill = ["text", "part", "layer", "head", "query", "key"].every((name) => now[name] === selection[name]);
    if (isOpen && entry && !loading && isStill) select(strongest(entry, part, selection.query, keepsQuery));
  }, [isOpen, entry, loading]);
  return isOpen && !answer.error ? { ...answer, data: null, loading: true } : null;
}

/**
 * {query, key} of the largest weight that is neither on the first token, where many heads park what they do not need, nor on
 * the query itself; {key} alone where the query is kept, and {key: 0} where no weight is left.
 */
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
