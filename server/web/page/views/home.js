// The first view: a text, one strong head's attention in it, the likeliest next words, and the ways into the other views.
import { onEnter, useDraft } from "../core/draft.js";
import { json, useJson, useLook } from "../core/fetching.js";
import { classes, html, useEffect, useMemo, useRef, useState } from "../core/html.js";
import { inputOf, lackOf, shownToken, useCapabilities } from "../core/model.js";
import { percent } from "../core/numbers.js";
import { isEmbedded, saved } from "../core/place.js";
import { initialState, select, state, useSelection } from "../core/state.js";
import { Problem } from "../parts/problem.js";
import { Temperature } from "../parts/slider.js";
import { Term } from "../parts/term.js";
import { Ideas, Ways } from "./home/ideas.js";
import { Picture } from "./home/picture.js";
import { strongestHead, wordsOf } from "./home/words.js";

const HIGHEST = 2; // temperature
const STOPS = Array.from({ length: 20 * HIGHEST + 1 }, (_, i) => i / 20); // of the slider
const NUM_TOKENS = 5;
const NOTED = 0.1; // least weight of the first word with a note
const MASK = /\[MASK\]|<mask>/;

/** A typed text is taken as soon as the requests for the previous one have ended. */
export function View() {
  const selection = useSelection();
  const draft = useDraft(selection.text, (text) => select({ text, query: -1, key: null }));
  useMaskedText(selection);
  const attention = useAttention(selection);
  const next = useNext(selection, draft.isTyped);
  useEffect(() => {
    if (draft.isTyped && !attention.loading && !next.loading) draft.take();
  });
  const [isPaused, setPaused] = useState(false);
  const { kind } = useCapabilities();
  const { head, words, from, unused } = attention;
  const write = (token) => {
    const text = kind === "encoder" ? selection.text.replace(MASK, token.trim()) : shortened(selection) + token;
    select({ text, query: -1, key: null }, { remember: true });
  };
  const canWrite = !saved && (kind === "decoder" || (kind === "encoder" && MASK.test(selection.text)));
  const problem = attention.error ?? next.error;
  return html`<div class="home">
    <${Ask} selection=${selection} draft=${draft} hasSlider=${!next.lack} />
    <section class=${classes("card", "home-stage", (attention.isStale || next.isStale) && "stale")}
      aria-label="Attention and the next word" aria-busy=${attention.loading || next.loading || next.isCounting}>
      <${Problem} error=${problem} retry=${attention.error ? attention.retry : next.retry} />
      ${selection.text.trim() === "" ? html`<p class="lack">Type the beginning of a sentence above.</p>`
        : html`<${Picture} words=${words} weights=${head?.weights} from=${from} unused=${unused} rows=${next.rows} isPaused=${isPaused}
            columns=${[WHAT_COMES[kind], "probability"]} onPick=${canWrite ? (i) => next.isStale || write(next.tokens[i]) : undefined}>
            ${next.lack && html`<p class="lack">${next.lack}</p>`}<//>`}
      <div class="home-said">${head && html`<p><${Said} ...${attention} /></p>
        <button class="quiet home-pause" onClick=${() => setPaused(!isPaused)}>${isPaused
          ? "Move" : "Pause"}</button>`}</div>
    </section>
    ${!saved && html`<${Ways} text=${shortened(selection)} place=${head?.place} />`}
    ${!saved && !isEmbedded && html`<${Ideas} />`}
  </div>`;
}

const WHAT_COMES = { decoder: "next word", encoder: "word in its place", "encoder-decoder": "first word of its answer" };

/** The first text of an encoder that fills in words gets a mask token at its end. */
function useMaskedText({ text }) {
  const capabilities = useCapabilities();
  const isFirst = text === initialState.text && capabilities.kind === "encoder" && !lackOf(capabilities, "/v1/next");
  useEffect(() => {
    if (!isFirst || saved) return;
    json("tokenize", { prompt: "[MASK]", add_special_tokens: false }).then(({ count }) => {
      if (state.value.text === text) select({ text: `${text} ${count === 1 ? "[MASK]" : "<mask>"}.`, query: -1, key: null });
    }, () => {}); // the text stays as it is
  }, [isFirst]);
}

/** Spaces at the end are typed before the next word: a single space would be a token. */
const shortened = ({ text }) => text.trimEnd();

/** position: it looks and predicts; null for no request. */
function useInput(selection) {
  const capabilities = useCapabilities();
  const text = shortened(selection);
  const isEncoder = capabilities.kind === "encoder";
  if (text === "" || (isEncoder && selection.query < 0)) return null; // see useMaskedPlace
  return { input: inputOf({ ...selection, text, decoder: "" }, capabilities), position: isEncoder ? selection.query : -1 };
}

function useAttention(selection) {
  const capabilities = useCapabilities();
  const asked = useInput(selection);
  const { kind, attention: { parts } } = capabilities;
  const part = parts.includes("cross") ? "cross" : parts[0];
  const body = asked && { ...asked.input, part, kind: "pattern", dtype: "float16", query_positions: asked.position };
  const answer = useLook(asked && !lackOf(capabilities, "/v1/attention") ? "v1/attention" : null, body);
  const { entry, asked: old } = answer;
  const found = useMemo(() => {
    if (!entry) return null;
    const isCross = part === "cross";
    const words = wordsOf(entry.key_tokens ?? entry.tokens, entry.key_offsets ?? entry.offsets, old.input);
    const position = entry.query_positions[0];
    const from = isCross ? -1 : words.findIndex(({ first, end }) => first <= position && position < end);
    const head = strongestHead(entry, words, from);
    const place = { part: parts.length > 1 ? part : "", layer: head.layer, head: head.head, query: position, key: head.key };
    return { words, from, unused: kind === "decoder" ? 0 : -1, head: { ...head, place } };
  }, [entry]);
  const typed = useMemo(() => shortened(selection).split(/\s+/).map((text) => ({ text })), [selection.text]);
  return { ...answer, words: typed, from: -1, unused: -1, head: null, ...found };
}

/** The first request has only the slider's temperature; the second one has all, so that the bars move without a request. */
function useNext(selection, isTyped) {
  const capabilities = useCapabilities();
  const lack = lackOf(capabilities, "/v1/next");
  const asked = useInput(selection);
  const temperature = Math.min(HIGHEST, selection.next_temperature);
  const { input, position } = asked ?? {};
  const body = { ...input, position, num_tokens: NUM_TOKENS };
  const key = JSON.stringify(body);
  const first = useRef({});
  if (first.current.key !== key) first.current = { key, temperature };
  const one = useJson(asked && !lack ? "v1/next" : null, { ...body, temperatures: [first.current.temperature] });
  const isReady = one.data && !one.loading && !isTyped;
  const all = useJson(isReady ? "v1/next" : null, { ...body, temperatures: STOPS });
  const at = ({ data }) => data?.data[0].temperatures.find((each) => each.temperature === temperature)?.tokens;
  const found = at(all) ?? at(one);
  const last = useRef(undefined); // shown until the new ones have come
  if (found || !asked || one.error) last.current = found;
  const tokens = last.current;
  const rows = useMemo(() => tokens?.map(({ token, token_id: key, probability: value }) =>
    ({ key, name: shownToken(token), value, isFixed: token.includes("\ufffd") })) ?? null, [tokens]);
  return { ...one, rows, tokens: tokens?.map(({ token }) => token), lack, isCounting: all.loading, error: one.error ?? all.error,
    retry: one.error ? one.retry : all.retry, isStale: one.isStale || tokens !== found };
}

function Ask({ selection, draft, hasSlider }) {
  return html`<div class="home-ask">
    ${saved ? html`<p class="home-text">${selection.text}</p>` : html`<label class="text-field"><span>Your text</span>
      <textarea id="home-text" rows="2" spellcheck=${false} value=${draft.text} onInput=${(event) => draft.write(event.target.value)}
        onKeyDown=${onEnter(draft.take)} onBlur=${draft.take}></textarea></label>`}
    ${hasSlider && html`<${Temperature} value=${Math.min(HIGHEST, selection.next_temperature)} high=${HIGHEST}
      onPick=${(next_temperature) => select({ next_temperature })} />`}
  </div>`;
}

function Said({ words, from, head, unused }) {
  const share = (i) => percent(head.weights[i]);
  const name = `head ${head.head} of layer ${head.layer}`;
  return html`${from < 0 ? "The beginning of the answer" : html`<b class="query">${words[from].text}</b>`} looks at${" "}
    <b class="key">${words[head.best].text}</b> with ${share(head.best)} of its <${Term} of="attention" />, in${" "}
    ${saved ? name : html`<button class="plain home-head" title="Open this head in Attention"
      onClick=${() => select({ view: "attention", ...head.place })}>${name}</button>`}.
    ${unused >= 0 && unused !== head.best && head.weights[unused] > NOTED && html`<span class="hint">${" "}The first word gets${" "}
      ${share(unused)}: heads <${Term} of="attention sink">put<//> the weight that they do not need there.</span>`}`;
}
