// A box for content that may be wider than the screen: it scrolls sideways and fades at sides with hidden content.
import { html, useLayoutEffect, useRef } from "../core/html.js";

export function useMore(box) {
  useLayoutEffect(() => {
    const { current: element } = box;
    const tell = () => {
      const { scrollLeft, clientWidth, scrollWidth } = element;
      element.dataset.more = `${scrollLeft > 1 ? "left" : ""} ${scrollLeft + clientWidth < scrollWidth - 1 ? "right" : ""}`;
    };
    const observer = new ResizeObserver(tell);
    [element, ...element.children].forEach((each) => observer.observe(each));
    element.addEventListener("scroll", tell);
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", tell);
    };
  }, []);
}

export function Scrolled({ label, children }) {
  const box = useRef(null);
  useMore(box);
  return html`<div class="scrolled" tabindex="0" role="region" aria-label=${label} ref=${box}>${children}</div>`;
}
