// An answer or a text as chips, one for each token, coloured by its probability.
import { classes, html, useCallback, useEffect, useMemo, useRef } from "../../core/html.js";
import { percent } from "../../core/numbers.js";
import { walkFocus } from "../../parts/tokens.js";

const FULL_SURPRISE = 6; // nats, a probability of 1 in 400: the darkest colour
const LONGEST_WORD = 6; // tokens
const CODE = /```|^(?: {2,}|\t)\S|[;{]\s*$/m; // a fence, an indented line, or a line that ends like a statement

export const isForced = (forced = [], place) =>
  forced.some((first, i) => i % 2 === 0 && place >= first && place < first + forced[i + 1]);

/** pieces: [[text, logprob]]; shown: the text before them; picked: a place or null; onPick: like a state's setter. */
export function Prose({ pieces, forced, shown, picked, onPick, hasKey }) {
  const pick = useCallback((place) => onPick((now) => (now === place ? null : place)), [onPick]);
  const isCode = CODE.test(shown + pieces.map(([text]) => text).join(""));
  const box = useRef(null);
  useEffect(() => { // the card is at the bottom
    if (picked !== null) box.current.querySelector(".picked")?.scrollIntoView({ block: "nearest" });
  }, [picked]);
  const within = (place, begin, end) => (place !== null && place >= begin && place < end ? place : null);
  return html`<div class=${classes("prose", isCode && "code")} ref=${box} role="group" aria-label="Tokens" onKeyDown=${walkFocus}>
    <span class="prompt">${shown}</span>
    ${wordsOf(pieces).map(([begin, end]) => html`<${Word} key=${begin} pieces=${pieces.slice(begin, end)} begin=${begin} forced=${forced}
      picked=${within(picked, begin, end)} focusable=${within(picked ?? 0, begin, end)} onPick=${pick} />`)}
  </div>
  ${hasKey && html`<p class="prose-key hint" aria-hidden="true">The bar under a token is its probability; the <span
    class="written surprising">warmer</span> its colour, the less likely it was;${" "}
    <span class="written forced">framed</span> tokens were chosen by you. Arrow keys walk, Enter opens.</p>`}`;
}

/** [begin, end) of tokens: a word with its ending and its comma. At most a few, because some scripts have no spaces. */
function wordsOf(pieces) {
  const begins = [];
  pieces.forEach(([text], i) => {
    const isBegin = i === 0 || /^\s/.test(text) || /\n$/.test(pieces[i - 1][0]) || i - begins.at(-1) >= LONGEST_WORD;
    if (isBegin) begins.push(i);
  });
  return begins.map((begin, i) => [begin, begins[i + 1] ?? pieces.length]);
}

/** Rendered again only when it changes, because each new token renders the whole text. */
function Word({ pieces, begin, forced, picked, focusable, onPick }) {
  return useMemo(
    () => html`<span class="written-word">${pieces.map((piece, i) =>
      html`<${Chip} key=${i} piece=${piece} isForced=${isForced(forced, begin + i)} isPicked=${picked === begin + i}
      isFocusable=${focusable === begin + i} onPick=${() => onPick(begin + i)} />`)}</span>`,
    [...pieces, picked, focusable, onPick],
  );
}

/** Incomplete characters are an empty place. */
const signs = (text) => text.replace(/\n/g, "↵").replace(/\ufffd/g, "◌") || "∅";

function Chip({ piece: [text, logprob], isForced: forced, isPicked, isFocusable, onPick }) {
  const chance = logprob === null ? null : Math.exp(logprob);
  const style = chance === null ? {} : { "--surprise": Math.min(1, -logprob / FULL_SURPRISE), "--chance": chance };
  const lines = text.match(/\n/g)?.length ?? 0;
  const said = chance === null ? "" : percent(chance);
  return html`<button class=${classes("written", forced && "forced", isPicked && "picked")} style=${style}
      title=${`${JSON.stringify(text)} ${said}`} aria-label=${[text.trim() || "space", said, forced && "forced"].filter(Boolean).join(", ")}
      aria-expanded=${isPicked} tabIndex=${isFocusable ? 0 : -1} onClick=${onPick}>${signs(text)}</button>${Array.from({ length: lines },
        () => html`<br />`)}`;
}
