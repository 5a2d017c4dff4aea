// Default text of an encoder-decoder's decoder: the model's own greedy output.
import { useAnswer, json } from "./fetching.js";
import { useEffect } from "./html.js";
import { useCapabilities } from "./model.js";
import { select, state } from "./state.js";
import { useStore } from "./store.js";

const MAX_TOKENS = 48;

// The last generated decoder text, its model and its input text; another model or input text needs a new one.
let written = { model: null, text: null, decoder: null };

/** The prompt identifies answers to an older text. */
async function saidAfter(route, body, options) {
  const { text } = (await json(route, body, options)).choices[0];
  return { prompt: body.prompt, said: text.replaceAll("\ufffd", "") }; // incomplete characters would be tokenized differently
}

/** Fill the shared decoder text while it is empty. */
export function useDecoderText() {
  const { text, decoder } = useStore(state); // of the first of two texts: both are compared with the same decoder text
  const { kind, model } = useCapabilities();
  const isOurs = decoder === "" || (decoder === written.decoder && (text !== written.text || model !== written.model));
  const wants = kind === "encoder-decoder" && text !== "" && isOurs;
  const answer = useAnswer(saidAfter, wants ? "v1/completions" : null, {
    prompt: text,
    max_tokens: MAX_TOKENS,
    temperature: 0,
  });
  const { data } = answer;
  useEffect(() => {
    if (!wants || data?.prompt !== text) return;
    if (state.value.text !== text || state.value.decoder !== decoder) return; // changed since this rendering
    written = { model, text, decoder: data.said };
    select({ decoder: data.said });
  }, [wants, data, text, model]);
  return answer;
}
