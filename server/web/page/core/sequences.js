// The tokens that each stack of the model reads.
import { useLook } from "./fetching.js";
import { useEffect } from "./html.js";
import { textsOf, useCapabilities, useTokens } from "./model.js";
import { select, useSelection } from "./state.js";

const NOBODY = [];

/**
 * {encoder, decoder, last, error, loading}: the tokens of each stack ([] for one that the model lacks, or while they
 * come), and of the one that predicts. Those of an encoder-decoder's decoder begin with its start token, so the server is
 * asked.
 */
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

/** Choose the first masked place of an encoder's text, or else its last word, where no place was chosen: its end says nothing. */
export function useMaskedPlace() {
  const { text, query } = useSelection();
  const isAsked = useCapabilities().kind === "encoder" && query === -1;
  const { tokens, offsets, loading } = useTokens(isAsked ? text : "");
  useEffect(() => {
    if (!isAsked || loading || tokens.length === 0) return;
    const masked = tokens.findIndex((token) => MASK.test(token.trim()));
    const place = masked < 0 ? offsets.findLastIndex(([begin, end]) => end > begin) : masked;
    if (place >= 0) select({ query: place });
  }, [isAsked, loading, tokens]);
}

/**
 * The chosen query as a position of the text that `part` reads: where another text, part or model left it past the end,
 * the last token. Null while the tokens are counted; -1 is the last of any text and need not wait.
 */
export function useQueryOf(part) {
  const { query } = useSelection();
  const count = useSequences()[part === "encoder" ? "encoder" : "decoder"].length;
  if (query === -1) return query;
  if (count === 0) return null;
  return query < 0 ? Math.max(query, -count) : Math.min(query, count - 1);
}
