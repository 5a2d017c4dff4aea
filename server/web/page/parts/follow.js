// Scrolling to the words that a model writes.
import { useEffect, useRef } from "../core/html.js";

const HANDS = ["wheel", "touchmove", "keydown"]; // the reader scrolls

/**
 * Keep the end of an element in view while `length` grows: the words written so far, 0 when nothing is written. It stops
 * when the reader scrolls.
 */
export function useFollow(box, length) {
  const isLeft = useRef(false);
  const isOn = length > 0;
  useEffect(() => {
    const leave = () => (isLeft.current = true);
    isLeft.current = false;
    if (isOn) HANDS.forEach((name) => addEventListener(name, leave, { passive: true }));
    return () => HANDS.forEach((name) => removeEventListener(name, leave));
  }, [isOn]);
  useEffect(() => {
    if (isOn && !isLeft.current) box.current?.scrollIntoView({ block: "end" });
  }, [length]);
}
