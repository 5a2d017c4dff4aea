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

/** On a phone the card takes the lower half, so what it speaks of goes to the top. */
function bringIntoSight(element) {
  const { top, height } = element.getBoundingClientRect();
  const low = isNarrow() ? innerHeight * 0.5 : innerHeight;
  if (top >= 0 && top + height <= low) return;
  if (top >= 0 && top < 80 && height > low) return;
  const above = isNarrow() || height > innerHeight * 0.8 ? 16 : (innerHeight - height) / 2;
  scrollTo({ top: scrollY + top - above });
}

/** The corner of the screen where the card hides the least of the target; CSS places it. */
export function cornerAwayFrom(target) {
  if (!target || isNarrow()) return "bottom-right";
  const [wide, tall] = [380, 260]; // about the card's size
  const corners = {
    "bottom-right": [innerWidth - wide, innerHeight - tall],
    "top-right": [innerWidth - wide, 0],
    "bottom-left": [0, innerHeight - tall],
  };
  const hidden = ([x, y]) =>
    Math.max(0, Math.min(x + wide, target.left + target.width) - Math.max(x, target.left)) *
    Math.max(0, Math.min(y + tall, target.top + target.height) - Math.max(y, target.top));
  return Object.keys(corners).sort((a, b) => hidden(corners[a]) - hidden(corners[b]))[0];
}
