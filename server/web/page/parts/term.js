// A technical term with an explanation, shown when it is pointed at, focused or tapped. Escape closes it.
import { html, listen, useLayoutEffect, useRef, useState } from "../core/html.js";
import { TERMS } from "./terms.js";

const EDGE = 8;

/** of: a name of TERMS; children: the displayed words. A view marks only the first use of a term. */
export function Term({ of, children = of }) {
  const [open, setOpen] = useState(null); // null, "shown" while pointed at or focused, "kept" once it was clicked
  const button = useRef(null);
  const says = useRef(null);
  useLayoutEffect(() => {
    if (open) placeBelow(says.current, button.current);
  }, [open]);
  useLayoutEffect(() => { // in the same frame as the explanation: Escape may be pressed before the next one
    if (!open) return undefined;
    const close = () => setOpen(null);
    const follow = () => placeBelow(says.current, button.current); // the browser scrolls a focused element into view
    const outside = (event) => button.current.parentElement.contains(event.target) || close();
    const escape = (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation(); // it would close the parent
      close();
    };
    return listen(document, { pointerdown: outside, keydown: escape, scroll: follow }, { capture: true });
  }, [open]);
  const turn = () => setOpen(open === "kept" ? null : "kept");
  const press = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    turn();
  };
  const isMouse = (event) => event.pointerType === "mouse";
  // no <button>: lines could break between it and an adjacent bracket or comma
  return html`<dfn class="term-place" onPointerEnter=${(event) => isMouse(event) && setOpen((now) => now ?? "shown")}
      onPointerLeave=${(event) => isMouse(event) && setOpen((now) => (now === "kept" ? now : null))}><span
    role="button" tabindex="0" class="term" ref=${button} aria-expanded=${open !== null} aria-description=${TERMS[of]}
    onClick=${turn} onKeyDown=${press} onBlur=${() => setOpen(null)}
    onFocus=${(event) => event.target.matches(":focus-visible") && setOpen((now) => now ?? "shown")}
    >${children}</span><i class="term-says" role="tooltip" ref=${says} hidden=${!open}>${open && TERMS[of]}</i></dfn>`;
}

/** Below its word, or above it where there is no room. */
function placeBelow(says, word) {
  const at = word.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = says;
  says.style.left = `${Math.max(EDGE, Math.min(at.left, document.documentElement.clientWidth - width - EDGE))}px`;
  const isBelow = at.bottom + height + EDGE <= innerHeight || at.top < height + EDGE;
  says.style.top = `${isBelow ? at.bottom : at.top - height}px`;
}
