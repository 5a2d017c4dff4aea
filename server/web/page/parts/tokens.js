// The tokens of the text; each can be selected.
import { charactersOf } from "../core/bytes.js";
import { colourOf, inkOn } from "../core/colour.js";
import { classes, hasModifier, html, useCallback, useLayoutEffect, useMemo, useRef } from "../core/html.js";
import { format, percent } from "../core/numbers.js";
import { useStore } from "../core/store.js";
import { theme } from "../core/theme.js";

const RUN = 64; // tokens rendered together

/**
 * query, key_: the positions of the query and the key (null: none; `key` is reserved by preact). weights: a number per
 * token (null: none), shown as background from 0 to `largest`, or with both signs (isSigned), and formatted by
 * write(weight). onPick(position, event).
 */
export function Tokens(props) {
  const { tokens, query = null, key_ = null, weights = null, largest = 1, isSigned = false } = props;
  const { onPick, label, write = percent } = props;
  const latest = useRef(null);
  latest.current = onPick;
  const pick = useCallback((position, event) => latest.current?.(position, event), []);
  const shown = { tokens, weights, largest, isSigned, write, pick };
  const box = useRef(null);
  const onKeyDown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || hasModifier(event)) return;
    const all = box.current.getElementsByClassName("token");
    all[Array.prototype.indexOf.call(all, event.target) + step]?.focus();
    event.preventDefault();
    event.stopPropagation();
  };
  // A long text scrolls in its box, and the chosen token may be far down.
  useLayoutEffect(() => showToken(box.current, key_), [key_, tokens]);
  useLayoutEffect(() => showToken(box.current, query), [query, tokens]);
  const begins = Array.from({ length: Math.ceil(tokens.length / RUN) }, (_, i) => i * RUN);
  const within = (position, begin) => (position !== null && position >= begin && position < begin + RUN ? position : null);
  return html`<div class="tokens" ref=${box} role="group" aria-label=${label} onKeyDown=${onKeyDown}>
    ${begins.map((begin) => html`<${Run} key=${begin} begin=${begin} ...${shown} query=${within(query, begin)}
      key_=${within(key_, begin)} focusable=${within(query ?? 0, begin)} />`)}
  </div>`;
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
      return html`<button
        type="button"
        key=${position}
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

/** The buttons from `begin` on; buttons of tokens that form one character are in a frame with this character. */
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
