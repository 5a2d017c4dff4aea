// Scrolling to the words that a model writes.
import { listen, useEffect, useRef } from "../core/html.js";

/** Keep the end of an element in view while `length` grows from 0, until the reader scrolls. */
export function useFollow(box, length) {
  const isLeft = useRef(false);
  const isOn = length > 0;
  useEffect(() => {
    const leave = () => (isLeft.current = true);
    isLeft.current = false;
    return isOn ? listen(window, { wheel: leave, touchmove: leave, keydown: leave }, { passive: true }) : undefined;
  }, [isOn]);
  useEffect(() => {
    if (isOn && !isLeft.current) box.current?.scrollIntoView({ block: "end" });
  }, [length]);
}
