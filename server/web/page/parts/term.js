// A word of the field that explains itself: pointed at, focused or tapped, it says what it means. Escape closes it.
import { html, useLayoutEffect, useRef, useState } from "../core/html.js";
import { TERMS } from "./terms.js";

const EDGE = 8; // CSS pixels that stay free beside the explanation

/** of: a name of TERMS; its words stand as `children`, or as the name itself. Of each word, a view marks the first place. */
export function Term({ of, children = of }) {
  const [open, setOpen] = useState(null); // null, "shown" while pointed at or focused, "kept" once it was clicked
  const button = useRef(null);
  const says = useRef(null);
  useLayoutEffect(() => {
    if (open) placeBelow(says.current, button.current);
  }, [open]);
  useLayoutEffect(() => { // with what is shown: Escape may come before the next frame
    if (!open) return undefined;
    const close = () => setOpen(null);
    const follow = () => placeBelow(says.current, button.current); // what gets the focus is scrolled into sight
    const outside = (event) => button.current.parentElement.contains(event.target) || close();
    const escape = (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation(); // it would close what the word stands in
      close();
    };
    document.addEventListener("pointerdown", outside);
    document.addEventListener("keydown", escape, true);
    document.addEventListener("scroll", follow, true);
    return () => {
      document.removeEventListener("pointerdown", outside);
      document.removeEventListener("keydown", escape, true);
      document.removeEventListener("scroll", follow, true);
    };
  }, [open]);
  const turn = () => setOpen(open === "kept" ? null : "kept");
  const press = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    turn();
  };
  const isMouse = (event) => event.pointerType === "mouse";
  // no <button>: lines break at both sides of one, between a word and the bracket or comma that follows
  return html`<dfn class="term-place" onPointerEnter=${(event) => isMouse(event) && setOpen((now) => now ?? "shown")}
      onPointerLeave=${(event) => isMouse(event) && setOpen((now) => (now === "kept" ? now : null))}><span
    role="button" tabindex="0" class="term" ref=${button} aria-expanded=${open !== null} aria-description=${TERMS[of]}
    onClick=${turn} onKeyDown=${press} onBlur=${() => setOpen(null)}
    onFocus=${(event) => event.target.matches(":focus-visible") && setOpen((now) => now ?? "shown")}
    >${children}</span><i class="term-says" role="tooltip" ref=${says} hidden=${!open}>${open && TERMS[of]}</i></dfn>`;
}

/** Put the explanation under its word, or above it where there is no room, within the window. */
function placeBelow(says, word) {
  const at = word.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = says;
  says.style.left = `${Math.max(EDGE, Math.min(at.left, document.documentElement.clientWidth - width - EDGE))}px`;
  const isBelow = at.bottom + height + EDGE <= innerHeight || at.top < height + EDGE;
  says.style.top = `${isBelow ? at.bottom : at.top - height}px`;
}
