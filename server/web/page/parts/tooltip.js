// The tooltip: text about the part of a picture that is pointed at or reached by keys. One for all pictures, on top.
import { html, listen, useEffect, useLayoutEffect, useRef } from "../core/html.js";
import { Store, useStore } from "../core/store.js";

const AWAY = 14;
const EDGE = 6;

const tooltip = new Store(null); // {owner, text, x, y, follow}, with the place in the window; null: no tooltip

/** `owner` is the text's picture. follow(): the new place after scrolling; null at the pointer. */
export function showTooltip(owner, text, { x, y }, follow = null) {
  const now = tooltip.value;
  if (now?.owner === owner && now.text === text && now.x === x && now.y === y) return;
  tooltip.set({ owner, text, x, y, follow });
}

export function hideTooltip(owner) {
  if (tooltip.value?.owner === owner) tooltip.set(null);
}

/** Screen readers read the same text from the line below the picture. */
export function Tooltip() {
  const shown = useStore(tooltip);
  const box = useRef(null);
  useLayoutEffect(() => {
    if (shown) place(box.current, shown);
  }, [shown]);
  useEffect(() => {
    const hide = (event) => event.key === "Escape" && tooltip.set(null);
    const scrolled = () => {
      const now = tooltip.value;
      if (now) tooltip.set(now.follow && { ...now, ...now.follow() });
    };
    return listen(window, { keydown: hide, scroll: scrolled }, { capture: true, passive: true });
  }, []);
  return shown && html`<div class="tooltip" aria-hidden="true" ref=${box}>${shown.text}</div>`;
}

/** Above the place if there is space, else below it. */
function place(element, { x, y }) {
  const { offsetWidth: width, offsetHeight: height } = element;
  const { clientWidth, clientHeight } = document.documentElement;
  const above = y - AWAY - height;
  const top = above >= EDGE ? above : Math.min(y + AWAY, clientHeight - height - EDGE);
  element.style.left = `${Math.max(EDGE, Math.min(x + AWAY, clientWidth - width - EDGE))}px`;
  element.style.top = `${top}px`;
}
