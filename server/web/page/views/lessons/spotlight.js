// The frame around a lesson step's target.
import { listen, useEffect, useState } from "../../core/html.js";

export const pixels = ({ left, top, width, height }) =>
  ({ left: `${left - 6}px`, top: `${top - 6}px`, width: `${width + 12}px`, height: `${height + 12}px` });

/** In every frame. The target is scrolled into view until the user scrolls. */
export function useTarget(step) {
  const [edge, setEdge] = useState(null);
  useEffect(() => {
    let [frame, seen, isFree] = [0, "", step === null];
    const follow = () => {
      const element = step && framed(step);
      const { left, top, width, height } = element?.getBoundingClientRect() ?? {};
      const now = [left, top, width, height].join();
      if (now !== seen) {
        seen = now;
        setEdge(element ? { left, top, width, height } : null);
        if (element && !isFree) bringIntoSight(top, height);
      }
      frame = requestAnimationFrame(follow);
    };
    const free = () => { isFree = true; };
    const end = listen(window, { wheel: free, touchmove: free, pointerdown: free }, { passive: true });
    follow();
    return () => {
      cancelAnimationFrame(frame);
      end();
    };
  }, [step]);
  return edge;
}

/** The first one that exists, or else the view's first card. */
const framed = ({ view, frame }) =>
  [...[frame ?? []].flat(), `#view-${view} .card`].map((selector) => document.querySelector(selector)).find(Boolean);

/** To the middle of the part of the window above the card, or to its top. */
function bringIntoSight(top, height) {
  const card = document.querySelector(".lesson").getBoundingClientRect();
  const room = card.left > 0 && card.width < innerWidth / 2 ? innerHeight : card.top;
  if (top < 0 || top + Math.min(height, room - 20) > room) scrollBy({ top: top - Math.max(10, (room - height) / 2) });
}
