// A box for what may be wider than the screen: it scrolls sideways by itself, and fades where there is more.
import { html, useLayoutEffect, useRef } from "../core/html.js";

/** Note in data-more at which sides of a box, "left" and "right", some of what is in it is out of sight. */
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

/** label: what is in it, for those who do not see it. With the keyboard it scrolls too. */
export function Scrolled({ label, children }) {
  const box = useRef(null);
  useMore(box);
  return html`<div class="scrolled" tabindex="0" role="region" aria-label=${label} ref=${box}>${children}</div>`;
}
