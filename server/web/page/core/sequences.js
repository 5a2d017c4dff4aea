// The tokens that each stack of the model reads.
import { useLook } from "./fetching.js";
import { textsOf, useCapabilities, useTokens } from "./model.js";
import { useSelection } from "./state.js";

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
