// The text as its tokens, each one a place that can be chosen.
import { colourOf, inkOn } from "../core/colour.js";
import { classes, html } from "../core/html.js";
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
  return html`<div class="tokens" role="group" aria-label=${label} onKeyDown=${onKeyDown} onPointerLeave=${onHover && (() => onHover(null))}>
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
