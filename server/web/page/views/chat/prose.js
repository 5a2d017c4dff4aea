// The text during generation: the prompt, then a chip for each token, coloured by its probability.
import { classes, html, useCallback, useEffect, useMemo, useRef } from "../../core/html.js";
import { percent } from "../../core/numbers.js";

const FULL_SURPRISE = 6; // nats, a probability of 1 in 400: the darkest colour
const LONGEST_WORD = 6; // tokens
const CODE = /```|^(?: {2,}|\t)\S|[;{]\s*$/m; // a fence, an indented line, or a line that ends like a statement

/** picked: the place of the selected token, or null; onPick(change) changes it, like a state's setter; hasKey: of the colours. */
export function Prose({ branch, picked, onPick, hasKey = true }) {
  const { prompt } = branch;
  const onKeyDown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const chips = Array.from(event.currentTarget.querySelectorAll("button"));
    chips[chips.indexOf(event.target) + step]?.focus();
    event.preventDefault();
    event.stopPropagation();
  };
  const pick = useCallback((place) => onPick((now) => (now === place ? null : place)), [onPick]);
  const isCode = CODE.test(prompt.shown + branch.tokens.map((token) => token.text).join(""));
  const box = useRef(null);
  useEffect(() => { // on a phone the card is at the bottom
    if (picked !== null) box.current.querySelector(".picked")?.scrollIntoView({ block: "nearest" });
  }, [picked]);
  return html`<div class=${classes("prose", isCode && "code")} ref=${box} role="group" aria-label="What was written" onKeyDown=${onKeyDown}>
    <span class="prompt">${prompt.shown}</span>
    ${wordsOf(branch.tokens).map(([begin, end]) =>
      html`<${Word} key=${begin} tokens=${branch.tokens.slice(begin, end)} begin=${begin}
      picked=${within(picked, begin, end)} focusable=${within(picked ?? 0, begin, end)} onPick=${pick} />`)}
  </div>
  ${hasKey && html`<p class="prose-key hint" aria-hidden="true">The bar under a token is its probability; the <span
    class="written surprising">warmer</span> its colour, the less likely it was;${" "}
    <span class="written forced">framed</span> tokens were chosen by you. Arrow keys walk, Enter opens.</p>`}`;
}

/**
 * [begin, end) of tokens that must be on one line: a word with its ending and its comma. At most a few, because some
 * scripts have no spaces.
 */
function wordsOf(tokens) {
  const begins = [];
  tokens.forEach(({ text }, i) => {
    const isBegin = i === 0 || /^\s/.test(text) || /\n$/.test(tokens[i - 1].text) || i - begins.at(-1) >= LONGEST_WORD;
    if (isBegin) begins.push(i);
  });
  return begins.map((begin, i) => [begin, begins[i + 1] ?? tokens.length]);
}

const within = (place, begin, end) => (place !== null && place >= begin && place < end ? place : null);

/** The chips of one word; rendered again only when it changes, because each new token renders the whole text. */
function Word({ tokens, begin, picked, focusable, onPick }) {
  return useMemo(
    () => html`<span class="written-word">${tokens.map((token, i) =>
      html`<${Chip} key=${i} token=${token} isPicked=${picked === begin + i}
      isFocusable=${focusable === begin + i} onPick=${() => onPick(begin + i)} />`)}</span>`,
    [...tokens, picked, focusable, onPick],
  );
}

/** Line ends as symbols, and incomplete characters as an empty place. */
const shown = (text) => text.replace(/\n/g, "↵").replace(/\ufffd/g, "◌") || "∅";

function Chip({ token, isPicked, isFocusable, onPick }) {
  const chance = token.logprob === null ? null : Math.exp(token.logprob);
  const style = chance === null ? {} : { "--surprise": Math.min(1, -token.logprob / FULL_SURPRISE), "--chance": chance };
  const lines = token.text.match(/\n/g)?.length ?? 0;
  const said = `${token.text.trim() || "space"}${chance === null ? "" : `, ${percent(chance)}`}${token.isForced ? ", forced" : ""}`;
  return html`<button type="button" class=${classes("written", token.isForced && "forced", isPicked && "picked")} style=${style}
      title=${`${JSON.stringify(token.text)} ${chance === null ? "" : percent(chance)}`} aria-label=${said}
        aria-expanded=${isPicked}
      tabIndex=${isFocusable ? 0 : -1} onClick=${onPick}>${shown(token.text)}</button>${Array.from({ length: lines },
        () => html`<br />`)}`;
}
