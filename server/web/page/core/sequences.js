// The input tokens of each stack of the model.
import { useLook } from "./fetching.js";
import { useEffect } from "./html.js";
import { textsOf, useCapabilities, useTokens } from "./model.js";
import { seenOf } from "./seen.js";
import { select, state, useSelection } from "./state.js";

const NOBODY = [];

/** The tokens of each stack, and of the one that predicts. The decoder of a pair has a start token: the server returns the ids. */
export function useSequences() {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const isPair = capabilities.kind === "encoder-decoder";
  const alone = useTokens(isPair ? "" : selection.text);
  const body = { ...textsOf(selection, capabilities), points: ["decoder.hook_embed"], positions: 0, dtype: "float16" };
  const pair = useLook(isPair && selection.text ? "v1/trace" : null, body);
  if (isPair) {
    const { entry, error, loading } = pair;
    const last = entry?.tokens ?? NOBODY;
    return { encoder: entry?.encoder_tokens ?? NOBODY, decoder: last, last, error, loading };
  }
  const { tokens, error, loading } = alone;
  return { encoder: NOBODY, decoder: NOBODY, [capabilities.kind]: tokens, last: tokens, error, loading };
}

const MASK = /^(\[MASK\]|<mask>)$/;

/** Select an encoder's first mask token, or else its last word, if no position is selected. */
export function useMaskedPlace() {
  const { text, query } = useSelection();
  const isAsked = useCapabilities().kind === "encoder" && query === -1;
  const { tokens, offsets, loading } = useTokens(isAsked ? text : "");
  useEffect(() => {
    if (!isAsked || loading || tokens.length === 0) return;
    const masked = tokens.findIndex((token) => MASK.test(token.trim()));
    const place = masked < 0 ? offsets.findLastIndex(([begin, end]) => end > begin) : masked;
    const now = seenOf(state.value); // changed since this rendering: the text is another, or a position is selected
    if (place >= 0 && now.text === text && now.query === -1) select({ query: place });
  }, [isAsked, loading, tokens]);
}

/** The selected query as a position in the text of `part`; null while the tokens are counted. -1 needs no count. */
export function useQueryOf(part) {
  const { query } = useSelection();
  const count = useSequences()[part === "encoder" ? "encoder" : "decoder"].length;
  if (query === -1) return query;
  if (count === 0) return null;
  return query < 0 ? Math.max(query, -count) : Math.min(query, count - 1);
}
