// The frame around a lesson step's target, and the corner of the screen where the card hides the least of it.
import { useEffect, useState } from "../../core/html.js";

/** The CSS of a frame around a place on the screen. */
export const pixels = ({ left, top, width, height }) =>
  ({ left: `${left - 6}px`, top: `${top - 6}px`, width: `${width + 12}px`, height: `${height + 12}px` });

/**
 * The place of the step's target on the screen, updated every frame because views load and users scroll. The target
 * is scrolled into view until the user scrolls.
 */
export function useTarget(step) {
  const [edge, setEdge] = useState(null);
  useEffect(() => {
    if (!step) {
      setEdge(null);
      return undefined;
    }
    let [frame, seen, isFree] = [0, "", false];
    const follow = () => {
      const element = framed(step);
      const { left, top, width, height } = element?.getBoundingClientRect() ?? { left: 0, top: 0, width: 0, height: 0 };
      const now = [left, top, width, height].join();
      if (now !== seen) {
        seen = now;
        setEdge(element ? { left, top, width, height } : null);
        if (element && !isFree) bringIntoSight(element);
      }
      frame = requestAnimationFrame(follow);
    };
    const free = () => {
      isFree = true;
    };
    const signs = ["wheel", "touchmove", "pointerdown"];
    signs.forEach((sign) => addEventListener(sign, free, { passive: true }));
    follow();
    return () => {
      cancelAnimationFrame(frame);
      signs.forEach((sign) => removeEventListener(sign, free));
    };
  }, [step]);
  return edge;
}

const isNarrow = () => innerWidth <= 760;

/** The element inside a step's frame: the first of its selectors with an element, or else the view's first card. */
const framed = ({ view, frame }) =>
  [...[frame ?? []].flat(), `#view-${view} .card`].map((selector) => document.querySelector(selector)).find(Boolean);

const [CARD_WIDE, CARD_TALL] = [380, 260]; // approximate size of the card
const WEIGHT_OF_CONTROLS = 20; // a hidden button counts like this many times its area of the target

/**
 * Scroll a target to the top if the card would hide it: if it is tall, or on a phone, where the card fills half the
 * screen.
 */
function bringIntoSight(element) {
  const { top, height } = element.getBoundingClientRect();
  const low = isNarrow() ? innerHeight * 0.5 : innerHeight;
  const isTall = height > (isNarrow() ? low : innerHeight - 2 * CARD_TALL);
  if (top >= 0 && (isTall ? top < 12 : top + height <= low)) return;
  const above = isNarrow() || isTall ? 10 : (innerHeight - height) / 2;
  scrollTo({ top: scrollY + top - above });
}

/** The corner where the card hides the least of the target and of the view's controls; CSS places it. */
export function cornerAwayFrom(target) {
  if (!target || isNarrow()) return "bottom-right";
  const corners = {
    "bottom-right": [innerWidth - CARD_WIDE, innerHeight - CARD_TALL],
    "top-right": [innerWidth - CARD_WIDE, 0],
    "bottom-left": [0, innerHeight - CARD_TALL],
  };
  const controls = [...document.querySelectorAll("[id^=view-] :is(button, input, select, textarea)")]
    .map((control) => control.getBoundingClientRect());
  const shared = ([x, y], { left, top, width, height }) =>
    Math.max(0, Math.min(x + CARD_WIDE, left + width) - Math.max(x, left)) *
    Math.max(0, Math.min(y + CARD_TALL, top + height) - Math.max(y, top));
  const hidden = (corner) =>
    controls.reduce((sum, control) => sum + WEIGHT_OF_CONTROLS * shared(corner, control), shared(corner, target));
  return Object.keys(corners).sort((a, b) => hidden(corners[a]) - hidden(corners[b]))[0];
}
