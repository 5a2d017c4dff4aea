// What all views look at: the text, its tokens, the part of the model, the layer and head.
import { useDecoderText } from "../core/decoder_text.js";
import { html, useEffect, useState } from "../core/html.js";
import { clamp, useCapabilities, useHead, useTokens } from "../core/model.js";
import { select, useSelection } from "../core/state.js";
import { PairTokens } from "./pair_tokens.js";
import { Problem } from "./problem.js";
import { Tokens } from "./tokens.js";

const EXAMPLES = [
  "Once upon a time there was a little girl who lived with her grandmother in a house in the wood.",
  "The king said to the queen: The queen said to the",
  "The old fox saw the young fox, and the young fox saw the old",
  "A fluffy blue creature roamed the green forest.",
];

// Views that look at no text, or bring their own.
const WITHOUT_TEXT = new Set(["write", "embeddings", "weights", "server"]);
const WITH_HEAD = new Set(["attention", "why", "contributions", "heads", "flow", "stacks"]);

/** The bar above every view that looks at the shared text. */
export function SharedBar({ view }) {
  const { kind } = useCapabilities();
  const hasHead = WITH_HEAD.has(view.id);
  if (WITHOUT_TEXT.has(view.id)) return null;
  return html`<section class="shared" aria-label="What is looked at">
    <${TextField} />
    ${kind === "encoder-decoder" ? html`<${PairTokens} only=${hasHead ? undefined : "decoder"} />` : html`<${TextTokens} />`}
    ${hasHead && html`<${HeadPicker} />`}
  </section>`;
}

/** The shared text; it is taken over a moment after the last key, or with Enter. */
function TextField() {
  const { text, decoder } = useSelection();
  const capabilities = useCapabilities();
  const writing = useDecoderText();
  return html`<div class="text-fields">
    <${DelayedText} label=${capabilities.kind === "encoder-decoder" ? "Text (the encoder reads it)" : "Text"} value=${text} onText=${(value) => select({ text: value, query: -1, key: 0 })} />
    ${capabilities.kind === "encoder-decoder" &&
    html`<${DelayedText} label=${writing.loading ? "The decoder reads… the model is writing it" : "The decoder reads (empty: what the model writes)"} value=${decoder} onText=${(value) => select({ decoder: value })} />`}
    <label class="examples"><span class="unseen">Examples</span>
      <select value="" onChange=${(event) => event.target.value && select({ text: event.target.value, query: -1, key: 0 }, { remember: true })}>
        <option value="">Examples…</option>
        ${EXAMPLES.map((example) => html`<option value=${example}>${example}</option>`)}
      </select>
    </label>
  </div>`;
}

/** A text that is taken over a moment after the last key, or at once with Enter; keepsLines: Enter starts a line. */
export function DelayedText({ label, value, onText, rows = 2, keepsLines = false }) {
  const [typed, setTyped] = useState(value);
  useEffect(() => setTyped(value), [value]);
  useEffect(() => {
    if (typed === value) return undefined;
    const timer = setTimeout(() => onText(typed), 400);
    return () => clearTimeout(timer);
  }, [typed]);
  const onKeyDown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || keepsLines) return;
    event.preventDefault();
    onText(typed);
  };
  return html`<label class="text-field"><span>${label}</span>
    <textarea rows=${rows} spellcheck=${false} value=${typed} onInput=${(event) => setTyped(event.target.value)} onKeyDown=${onKeyDown}></textarea>
  </label>`;
}

function TextTokens() {
  const { text, query, key } = useSelection();
  const { tokens, error } = useTokens(text);
  if (error) return html`<${Problem} error=${error} />`;
  if (tokens.length === 0) return html`<p class="hint">Write something above.</p>`;
  const pick = (position, event) => select(event.shiftKey ? { key: position } : { query: position });
  return html`<div class="text-tokens">
    <${Tokens} tokens=${tokens} query=${clamp(query, tokens.length)} key_=${clamp(key, tokens.length)} onPick=${pick} label="Tokens of the text" />
    <p class="hint"><b class="query">blue</b> looks (click), <b class="key">orange</b> is looked at (shift-click). ${tokens.length} tokens.</p>
  </div>`;
}

/** Which part, layer and head; arrow keys walk them too. */
export function HeadPicker() {
  const { parts } = useCapabilities().attention;
  const { part, layer, head, numLayers, numHeads } = useHead();
  const numbers = (count) => Array.from({ length: count }, (_, i) => html`<option value=${i}>${i}</option>`);
  return html`<div class="head-picker">
    ${parts.length > 1 &&
    html`<label>Part <select value=${part} onChange=${(event) => select({ part: event.target.value })}>${parts.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>`}
    <label>Layer <select id="layer" value=${layer} onChange=${(event) => select({ layer: Number(event.target.value) })}>${numbers(numLayers)}</select></label>
    <label>Head <select id="head" value=${head} onChange=${(event) => select({ head: Number(event.target.value) })}>${numbers(numHeads)}</select></label>
    <span class="hint wide">arrow keys: ↑ ↓ layers, ← → heads</span>
  </div>`;
}
