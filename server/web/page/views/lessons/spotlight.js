// The frame around what a step of a lesson speaks of, and the corner of the screen where the card hides the least of it.
import { useEffect, useState } from "../../core/html.js";

/** The CSS of a frame around a place on the screen. */
export const pixels = ({ left, top, width, height }) =>
  ({ left: `${left - 6}px`, top: `${top - 6}px`, width: `${width + 12}px`, height: `${height + 12}px` });

/**
 * Where on the screen the step's target is, followed frame by frame: views load, and people scroll. It is brought into
 * sight until somebody scrolls by hand.
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

/** What a step's frame goes around: the first of its selectors that is there, or else the view's first card. */
const framed = ({ view, frame }) =>
  [...[frame ?? []].flat(), `#view-${view} .card`].map((selector) => document.querySelector(selector)).find(Boolean);

const [CARD_WIDE, CARD_TALL] = [380, 260]; // about the card's size
const WEIGHT_OF_CONTROLS = 20; // a hidden button is worse than so much of a picture

/** What it speaks of goes to the top where a card would else lie on it: on a phone, which it fills by half, and if tall. */
function bringIntoSight(element) {
  const { top, height } = element.getBoundingClientRect();
  const low = isNarrow() ? innerHeight * 0.5 : innerHeight;
  const isTall = height > (isNarrow() ? low : innerHeight - 2 * CARD_TALL);
  if (top >= 0 && (isTall ? top < 12 : top + height <= low)) return;
  const above = isNarrow() || isTall ? 10 : (innerHeight - height) / 2;
  scrollTo({ top: scrollY + top - above });
}

/** The corner of the screen where the card hides the least of the target and of the view's controls; CSS places it. */
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
