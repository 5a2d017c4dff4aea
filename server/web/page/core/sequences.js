// The tokens that each stack of the model reads.
import { useLook } from "./fetching.js";
import { inputOf, useCapabilities, useTokens } from "./model.js";
import { useSelection } from "./state.js";

const NOBODY = [];

/**
 * {encoder, decoder, error, loading}: the tokens of each stack ([] for one that the model lacks, or while they come).
 * Those of an encoder-decoder's decoder begin with its start token, so the server is asked.
 */
export function useSequences() {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const isPair = capabilities.kind === "encoder-decoder";
  const alone = useTokens(isPair ? "" : selection.text);
  const body = { ...inputOf(selection, capabilities), points: ["decoder.hook_embed"], positions: 0, dtype: "float16" };
  const pair = useLook(isPair && selection.text ? "v1/trace" : null, body);
  if (isPair) {
    const { entry, error, loading } = pair;
    return { encoder: entry?.encoder_tokens ?? NOBODY, decoder: entry?.tokens ?? NOBODY, error, loading };
  }
  const { tokens, error, loading } = alone;
  return { encoder: NOBODY, decoder: NOBODY, [capabilities.kind]: tokens, error, loading };
}
