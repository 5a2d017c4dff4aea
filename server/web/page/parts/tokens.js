// The text as its tokens, each one a place that can be chosen.
import { colourOf, inkOn } from "../core/colour.js";
import { classes, html, useLayoutEffect, useRef } from "../core/html.js";
import { format, percent } from "../core/numbers.js";
import { useStore } from "../core/store.js";
import { theme } from "../core/theme.js";

/**
 * tokens: strings; query, position of the one that looks, and key, of the one looked at (null: none).
 * weights: a number a token (null: none), shown as its ground from 0 to `largest`, or of both signs (isSigned). onPick(position, event), onHover(position | null).
 * generatedFrom: the first position that the model wrote.
 */
export function Tokens({ tokens, query = null, key_ = null, weights = null, largest = 1, isSigned = false, onPick, onHover, generatedFrom = null, label = "Tokens", write = percent }) {
  const mode = useStore(theme);
  const scale = isSigned ? [-largest, largest, "diverging", mode] : [0, largest, "sequential", mode];
  const onKeyDown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const next = event.target[step < 0 ? "previousElementSibling" : "nextElementSibling"];
    next?.focus();
    event.preventDefault();
    event.stopPropagation();
  };
  const focusable = query ?? 0;
  const box = useRef(null);
  // A long text scrolls in its box, and what is chosen may be far down.
  useLayoutEffect(() => showToken(box.current, key_), [key_, tokens]);
  useLayoutEffect(() => showToken(box.current, query), [query, tokens]);
  return html`<div class="tokens" ref=${box} role="group" aria-label=${label} onKeyDown=${onKeyDown} onPointerLeave=${onHover && (() => onHover(null))}>
    ${tokens.map((token, position) => {
      const weight = weights?.[position];
      const isWeighed = weights !== null && Number.isFinite(weight);
      const ground = isWeighed
        ? { background: colourOf(weight, ...scale), color: inkOn(weight, ...scale) }
        : {};
      const note = isWeighed ? `, ${write(weight)}` : "";
      return html`<button
        type="button"
        key=${position}
        class=${classes("token", position === query && "is-query", position === key_ && "is-key", generatedFrom !== null && position >= generatedFrom && "generated", token.includes("\n") && "breaks")}
        style=${ground}
        title=${`${position}: ${JSON.stringify(token)}${isWeighed ? ` ${format(weight)}` : ""}`}
        aria-label=${`token ${position}, ${token.trim() || "space"}${note}`}
        aria-pressed=${position === query}
        tabIndex=${position === focusable ? 0 : -1}
        onClick=${onPick && ((event) => onPick(position, event))}
        onPointerEnter=${onHover && (() => onHover(position))}
        onFocus=${onHover && (() => onHover(position))}
      >${token.replace(/\n/g, "↵").replace(/\t/g, "⇥") || "∅"}</button>`;
    })}
  </div>`;
}

/** Scroll the box, and nothing around it, so far that the token is seen. */
function showToken(box, position) {
  const token = position === null ? null : box.children[position];
  if (!token || box.scrollHeight <= box.clientHeight) return;
  const [seen, own] = [box.getBoundingClientRect(), token.getBoundingClientRect()];
  if (own.top < seen.top) box.scrollTop -= seen.top - own.top + own.height;
  else if (own.bottom > seen.bottom) box.scrollTop += own.bottom - seen.bottom + own.height;
}
