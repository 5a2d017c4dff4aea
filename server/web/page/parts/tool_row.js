// The controls of a view in one row; those without room are behind the button More.
import { classes, html, useLayoutEffect, useRef, useState } from "../core/html.js";

/** children: the controls, the most used ones first. A long choice scrolls to its chosen part. With a problem all are shown. */
export function ToolRow({ children }) {
  const [isOpen, setOpen] = useState(false);
  const [isCut, setCut] = useState(false);
  const row = useRef(null);
  useLayoutEffect(() => {
    const fit = () => {
      const all = [...row.current.children];
      const isWhole = isOpen || row.current.querySelector(".problem");
      for (const one of all) one.inert = !isWhole && one.offsetTop > all[0].offsetHeight;
      if (isWhole) return;
      const long = [...row.current.querySelectorAll(".segments")].filter((one) => one.scrollWidth > one.clientWidth);
      for (const one of long) one.scrollLeft = (one.querySelector("[aria-pressed=true]")?.offsetLeft ?? 0) - one.offsetLeft - 24;
      setCut(long.length > 0 || all.some((one) => one.inert));
    };
    const observer = new ResizeObserver(fit);
    observer.observe(row.current);
    fit();
    return () => observer.disconnect();
  });
  return html`<div class=${classes("one-row", isOpen && "open")}><div class="toolbar" ref=${row}>${children}</div>
    ${isCut && html`<button class="quiet" aria-expanded=${isOpen}
      onClick=${() => setOpen(!isOpen)}>${isOpen ? "Less" : "More"}</button>`}</div>`;
}
