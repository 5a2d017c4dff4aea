// The tokens of an encoder-decoder's two texts: the part determines which are queries and which are keys.
import { html } from "../core/html.js";
import { clamp, useHead } from "../core/model.js";
import { counted } from "../core/numbers.js";
import { useSequences } from "../core/sequences.js";
import { select, useSelection } from "../core/state.js";
import { PickRole, roleOf } from "./pick_role.js";
import { Problem, Progress } from "./problem.js";
import { Tokens } from "./tokens.js";

const LOOKS = {
  encoder: { encoder: ["query", "key"], decoder: [] },
  decoder: { encoder: [], decoder: ["query", "key"] },
  cross: { encoder: ["key"], decoder: ["query"] },
};

export function PairTokens({ only }) {
  const { encoder, decoder, error, loading } = useSequences();
  const { text } = useSelection();
  const { part: selected } = useHead();
  const part = only ?? selected;
  if (error) return html`<${Problem} error=${error} />`;
  if (text === "") return html`<p class="hint">Write something above.</p>`;
  if (encoder.length === 0) return html`<${Progress} active=${loading} />`;
  return html`<div class="text-tokens pair-tokens">
    <${OneText} name="encoder" tokens=${encoder} looks=${LOOKS[part].encoder} />
    <${OneText} name="decoder" tokens=${decoder} looks=${LOOKS[part].decoder} />
    <p class="hint">${part === "cross"
      ? html`The words of the decoder (<b class="query">blue</b>) attend to the words of the encoder (<b class="key">orange</b>).`
      : html`Attention between the words of the ${part}. <${PickRole} />`}</p>
  </div>`;
}

function OneText({ name, tokens, looks }) {
  const selection = useSelection();
  const at = (role) => (looks.includes(role) ? clamp(selection[role], tokens.length) : null);
  const pick = (position, event) => select({ [looks.length > 1 ? roleOf(event) : looks[0]]: position });
  return html`<div class="pair-text"><span class="hint">${name}, ${counted(tokens.length, "token")}</span>
    <${Tokens} tokens=${tokens} query=${at("query")} key_=${at("key")} onPick=${looks.length > 0 ? pick : null}
      label=${`Tokens of the ${name}`} /></div>`;
}
