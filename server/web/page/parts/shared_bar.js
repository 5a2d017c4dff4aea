// The selection that all views share: the text, its tokens, the part of the model, the layer and head.
import { useDecoderText } from "../core/decoder_text.js";
import { onEnter, useDraft } from "../core/draft.js";
import { classes, hasModifier, html, listen, useEffect, useRef, useState } from "../core/html.js";
import { clamp, useCapabilities, useHead, useTokens } from "../core/model.js";
import { counted } from "../core/numbers.js";
import { saved } from "../core/place.js";
import { initialState, select, useSelection } from "../core/state.js";
import { Select } from "./choices.js";
import { PairTokens } from "./pair_tokens.js";
import { PickRole, roleOf } from "./pick_role.js";
import { Problem, Progress } from "./problem.js";
import { Term } from "./term.js";
import { Tokens } from "./tokens.js";

const EXAMPLES = [
  initialState.text,
  "Once upon a time there was a little girl who lived with her grandmother in a house in the wood.",
  "The king said to the queen: The queen said to the",
  "The old fox saw the young fox, and the young fox saw the old",
  "A fluffy blue creature roamed the green forest.",
];

const WITHOUT_TEXT = new Set(["chat", "embeddings", "server"]);
const WITH_HEAD = new Set(["attention", "journey", "why", "moves", "heads", "flow"]);

export function SharedBar({ view }) {
  const { kind } = useCapabilities();
  const hasHead = WITH_HEAD.has(view.id);
  const selection = useSelection();
  const [isOpen, setOpen] = useState(false); // on a phone, where the bar is one line until it is opened
  if (!(view.usesText?.(selection) ?? !WITHOUT_TEXT.has(view.id))) return null;
  return html`<section class=${classes("shared", isOpen && "open")} aria-label="What is looked at">
    <${Fold} isOpen=${isOpen} onTurn=${() => setOpen(!isOpen)} hasHead=${hasHead} />
    ${!saved && html`<${TextFields} isPair=${kind === "encoder-decoder"} />`}
    ${kind === "encoder-decoder" ? html`<${PairTokens} only=${hasHead ? undefined : "decoder"} />`
      : html`<${TextTokens} />`}
    ${hasHead && html`<${HeadPicker} />`}
  </section>`;
}

function Fold({ isOpen, onTurn, hasHead }) {
  const { text } = useSelection();
  const { layer, head } = useHead();
  return html`<button class="fold quiet" aria-expanded=${isOpen} onClick=${onTurn}>
    <span>${text || "No text yet"}</span>${hasHead && html`<b>layer ${layer}, head ${head}</b>`}
    <i>${isOpen ? "Close" : "Edit"}</i></button>`;
}

const WRITING = "The decoder reads… the model is writing it";
const WRITTEN = "The decoder reads (empty: the model's answer)";

function TextFields({ isPair }) {
  const { text, decoder } = useSelection();
  const writing = useDecoderText();
  const take = (value, options) => select({ text: value, query: -1, key: null }, options);
  return html`<div class="text-fields">
    <${DelayedText} label=${isPair ? "Text (the encoder reads it)" : "Text"} value=${text} onText=${(value) => take(value)} />
    ${isPair && html`<${DelayedText} label=${writing.loading ? WRITING : WRITTEN} value=${decoder}
      onText=${(value) => select({ decoder: value })} />`}
    <label class="examples"><span class="unseen">Examples</span>
      <select value="" onChange=${(event) => event.target.value && take(event.target.value, { remember: true })}>
        <option value="">Examples…</option>
        ${EXAMPLES.map((example) => html`<option value=${example}>${example}</option>`)}
      </select>
    </label>
  </div>`;
}

/** A text that is committed a moment after the last key, by Enter or when it loses focus; keepsLines: Enter starts a line. */
export function DelayedText({ label, value, onText, rows = 2, keepsLines = false }) {
  const { text, write, take } = useDraft(value, onText);
  useEffect(() => {
    const timer = setTimeout(take, 400);
    return () => clearTimeout(timer);
  }, [text]);
  return html`<label class="text-field"><span>${label}</span>
    <textarea rows=${rows} spellcheck=${false} value=${text} onInput=${(event) => write(event.target.value)}
      onKeyDown=${keepsLines ? undefined : onEnter(take)} onBlur=${take}></textarea>
  </label>`;
}

function TextTokens() {
  const { text, query, key } = useSelection();
  const { tokens, offsets, error, loading } = useTokens(text);
  if (error) return html`<${Problem} error=${error} />`;
  if (text === "") return html`<p class="hint">Write something above.</p>`;
  if (tokens.length === 0) return html`<${Progress} active=${loading} />`;
  const pick = (position, event) => select({ [roleOf(event)]: position });
  return html`<div class="text-tokens">
    <${Tokens} tokens=${tokens} query=${clamp(query, tokens.length)} key_=${clamp(key, tokens.length)} onPick=${pick}
      label="Tokens of the text" />
    <p class="hint">${tokens.length}${" "}
      <${Term} of="token">${tokens.length === 1 ? "token" : "tokens"}<//>. <${PickRole} /></p>
    <${TooLong} text=${text} offsets=${offsets} />
  </div>`;
}

function TooLong({ text, offsets }) {
  const { max_model_len: most } = useCapabilities();
  const excess = offsets.length - most;
  if (!most || excess <= 0) return null;
  const own = offsets.filter(([begin, end]) => end > begin); // of the text, without special tokens
  const end = own.at(-excess - 1)?.[1] ?? 0;
  return html`<p class="hint too-long"><button onClick=${() => select({ text: cut(text, end) }, { remember: true })}>
    Keep the first ${counted(most, "token")}</button> The model reads no more.</p>`;
}

/** The first characters of a text; the server counts code points. */
const cut = (text, count) => Array.from(text).slice(0, count).join("");

export function HeadPicker() {
  const { parts } = useCapabilities().attention;
  const { part, layer, head, numLayers, numHeads } = useHead();
  useHeadKeys();
  const pick = (field) => (value) => select({ [field]: value });
  return html`<div class="head-picker">
    ${parts.length > 1 && html`<${Select} label="Part" value=${part} onPick=${pick("part")}
      options=${parts.map((name) => [name, name])} />`}
    <${Select} label="Layer" id="layer" value=${layer} options=${numLayers} onPick=${pick("layer")} />
    <${Select} label="Head" id="head" value=${head} options=${numHeads} onPick=${pick("head")} />
    <span class="hint wide">keys: ← → heads, Shift + ↑ ↓${" "}
      <${Term} of="layer">layers<//></span>
  </div>`;
}

/** Left and right select heads, Shift with up and down layers, unless an element uses these keys. */
function useHeadKeys() {
  const latest = useRef(null);
  latest.current = useHead(); // keys may arrive before effects have run
  useEffect(() => {
    const walk = (event) => {
      if (hasModifier(event) || event.defaultPrevented) return;
      if (event.target.closest?.("input, textarea, select, [role=application], [role=slider], [role=grid]")) return;
      const steps = event.shiftKey ? { ArrowUp: [-1, 0], ArrowDown: [1, 0] } : { ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      const step = steps[event.key];
      if (!step) return;
      event.preventDefault();
      const { layer, head, numLayers, numHeads } = latest.current;
      select({ layer: (layer + step[0] + numLayers) % numLayers, head: (head + step[1] + numHeads) % numHeads });
    };
    return listen(window, { keydown: walk });
  }, []);
}
