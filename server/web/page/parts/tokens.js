// The tokens of the text; each can be selected.
import { charactersOf } from "../core/bytes.js";
import { colourOf, inkOn } from "../core/colour.js";
import { classes, hasModifier, html, used, useCallback, useLayoutEffect, useMemo, useRef } from "../core/html.js";
import { format, percent } from "../core/numbers.js";
import { useStore } from "../core/store.js";
import { theme } from "../core/theme.js";

const RUN = 64; // tokens rendered together

/**
 * query, key_: positions or null (`key` is reserved by preact). weights: a number per token as background, from 0 to
 * `largest`, or with both signs (isSigned).
 */
export function Tokens(props) {
  const { tokens, query = null, key_ = null, weights = null, largest = 1, isSigned = false } = props;
  const { onPick, label, write = percent } = props;
  const latest = useRef(null);
  latest.current = onPick;
  const pick = useCallback((position, event) => latest.current?.(position, event), []);
  const shown = { tokens, weights, largest, isSigned, write, pick };
  const box = useRef(null);
  // A long text scrolls in its box, and the chosen token may be far down.
  useLayoutEffect(() => showToken(box.current, key_), [key_, tokens]);
  useLayoutEffect(() => showToken(box.current, query), [query, tokens]);
  const begins = Array.from({ length: Math.ceil(tokens.length / RUN) }, (_, i) => i * RUN);
  const within = (position, begin) => (position !== null && position >= begin && position < begin + RUN ? position : null);
  return html`<div class="tokens" ref=${box} role="group" aria-label=${label} onKeyDown=${walkFocus}>
    ${begins.map((begin) => html`<${Run} key=${begin} begin=${begin} ...${shown} query=${within(query, begin)}
      key_=${within(key_, begin)} focusable=${within(query ?? 0, begin)} />`)}
  </div>`;
}

/** A handler of keys: the arrows move the focus between the buttons of a group with one tab stop. */
export function walkFocus(event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!step || hasModifier(event)) return;
  const all = [...event.currentTarget.querySelectorAll("button")];
  all[all.indexOf(event.target) + step]?.focus();
  used(event);
}
/** A group of tokens, rendered again only when it changes: a text may have thousands. */
function Run({ begin, tokens, query, key_, focusable, weights, largest, isSigned, write, pick }) {
  const mode = useStore(theme);
  return useMemo(() => {
    const scale = isSigned ? [-largest, largest, "diverging", mode] : [0, largest, "sequential", mode];
    const drawn = tokens.slice(begin, begin + RUN).map((token, i) => {
      const position = begin + i;
      const weight = Number.isFinite(weights?.[position]) ? weights[position] : null;
      const ground = weight === null ? {} : { background: colourOf(weight, ...scale), color: inkOn(weight, ...scale) };
      const marks = [position === query && "is-query", position === key_ && "is-key", token.includes("\n") && "breaks"];
      return html`<button key=${position}
        class=${classes("token", ...marks)}
        style=${ground}
        title=${`${position}: ${JSON.stringify(token)}${weight === null ? "" : ` ${format(weight)}`}`}
        aria-label=${`token ${position}, ${token.trim() || "space"}${weight === null ? "" : `, ${write(weight)}`}`}
        aria-pressed=${position === query}
        tabIndex=${position === focusable ? 0 : -1}
        onClick=${(event) => pick(position, event)}
      >${token.replace(/\n/g, "↵").replace(/\t/g, "⇥") || "∅"}</button>`;
    });
    return grouped(drawn, begin, tokens);
  }, [begin, tokens, query, key_, focusable, weights, largest, isSigned, write, pick, mode]);
}

/** The buttons of tokens that form one character get a frame with it. */
function grouped(drawn, begin, tokens) {
  const end = begin + drawn.length;
  const groups = charactersOf(tokens).filter((group) => group.first < end && group.end > begin);
  for (const { first, end: last, text } of groups.reverse()) {
    const from = Math.max(first - begin, 0);
    const own = drawn.slice(from, last - begin);
    const said = `${text.trim()}: one character, ${last - first} tokens`;
    drawn.splice(from, own.length, html`<span class="character" key=${`character ${first}`} role="group" aria-label=${said}
      title=${said}><span aria-hidden="true">${text.trim()}</span>${own}</span>`);
  }
  return drawn;
}

function showToken(box, position) {
  const token = position === null ? null : box.getElementsByClassName("token")[position];
  if (!token || box.scrollHeight <= box.clientHeight) return;
  const [seen, own] = [box.getBoundingClientRect(), token.getBoundingClientRect()];
  if (own.top < seen.top) box.scrollTop -= seen.top - own.top + own.height;
  else if (own.bottom > seen.bottom) box.scrollTop += own.bottom - seen.bottom + own.height;
}
