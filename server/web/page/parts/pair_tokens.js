// The tokens of an encoder-decoder's two texts: who looks and who is looked at depends on the part.
import { html } from "../core/html.js";
import { clamp, useHead } from "../core/model.js";
import { useSequences } from "../core/sequences.js";
import { select, useSelection } from "../core/state.js";
import { Problem, Progress } from "./problem.js";
import { Tokens } from "./tokens.js";

const LOOKS = {
  encoder: { encoder: ["query", "key"], decoder: [] },
  decoder: { encoder: [], decoder: ["query", "key"] },
  cross: { encoder: ["key"], decoder: ["query"] },
};

/** only: the part that the view looks at, whichever is selected (default: the selected one). */
export function PairTokens({ only }) {
  const { encoder, decoder, error, loading } = useSequences();
  const { text } = useSelection();
  const { part: selected } = useHead();
  const part = only ?? selected;
  if (error) return html`<${Problem} error=${error} />`;
  if (text === "") return html`<p class="hint">Write something above.</p>`;
  if (encoder.length === 0) return html`<${Progress} active=${loading} />`;
  const says = part === "cross" ? "the decoder's words look at the encoder's"
    : `the ${part}'s words at each other (shift-click for orange)`;
  return html`<div class="text-tokens pair-tokens">
    <${OneText} name="encoder" tokens=${encoder} looks=${LOOKS[part].encoder} />
    <${OneText} name="decoder" tokens=${decoder} looks=${LOOKS[part].decoder} />
    <p class="hint"><b class="query">blue</b> looks, <b class="key">orange</b> is looked at: ${says}.</p>
  </div>`;
}

/** looks: which of query and key are tokens of this text; a click chooses the first of them, with shift the last. */
function OneText({ name, tokens, looks }) {
  const selection = useSelection();
  const at = (role) => (looks.includes(role) ? clamp(selection[role], tokens.length) : null);
  const pick = (position, event) => select({ [event.shiftKey ? looks.at(-1) : looks[0]]: position });
  return html`<div class="pair-text"><span class="hint">${name}, ${tokens.length} tokens</span>
    <${Tokens} tokens=${tokens} query=${at("query")} key_=${at("key")} onPick=${looks.length > 0 ? pick : null}
      label=${`Tokens of the ${name}`} /></div>`;
}
