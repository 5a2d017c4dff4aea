// A canvas with pointing, keyboard navigation, a description for screen readers, and saving as PNG or SVG.
import { createContext, hasModifier, html, used, useContext, useEffect, useLayoutEffect, useRef, useState } from "../core/html.js";
import { useStore } from "../core/store.js";
import { SvgContext } from "../core/svg.js";
import { palette, theme } from "../core/theme.js";
import { hideTooltip, showTooltip } from "./tooltip.js";

const UNSEEN_WAIT = 150; // ms of delay when a picture off the screen follows the pointer (it may still be printed)

let lastId = 0;
function newId() {
  lastId += 1;
  return `picture-${lastId}`;
}

export const SavedPicture = createContext(null);

/**
 * draw(context, {width, height, colours, mode}) paints the picture, in CSS pixels, with methods of SvgContext only; overlay
 * paints what changes while pointing, on a canvas above. height: CSS pixels, or a function of the width. label, summary: for
 * screen readers. onPoint(x, y, width): the pointer has moved (x and y null when it leaves); onKey(key, event) returns true
 * if it used the key; onDrag(dx, dy): in CSS pixels since the last call. inView(width): {y, height}, the part to scroll to in
 * a box that is less high, or null. readout: text about the pointed part, read aloud. tip: text of the tooltip at the
 * pointer; keyTip: after keys (default: the readout); tipAt(width): its place {x, y} (default: the middle). handle: a ref
 * that gets {png(), svg(), canvas, paint(draw)}; paint draws another picture, until the next one.
 */
export function Picture(props) {
  const { draw, overlay, height, label, summary, readout, handle, inView } = props;
  const [summaryId] = useState(newId);
  const box = useRef(null);
  const below = useRef(null);
  const above = useRef(null);
  const [width, setWidth] = useState(0);
  const mode = useStore(theme);
  const tall = typeof height === "function" ? height(width) : height;

  useWidth(box, setWidth);

  useLayoutEffect(() => {
    if (width > 0) paint(below.current, draw, width, tall, mode);
  }, [draw, width, tall, mode]);

  const isSeen = useSeen(box);
  useLayoutEffect(() => {
    if (width === 0 || !overlay) return undefined;
    const show = () => paint(above.current, overlay, width, tall, mode);
    if (isSeen) {
      show();
      return undefined;
    }
    const timer = setTimeout(show, UNSEEN_WAIT);
    return () => clearTimeout(timer);
  }, [overlay, width, tall, mode, isSeen]);

  useInView(box, inView, width);

  useSavers(handle, box, () => ({ ...savers(draw, width, tall, mode), canvas: below.current,
    paint: (other) => paint(below.current, other, width, tall, mode) }));

  const events = usePointing(props, above);
  return html`<figure class="picture">
    <div class="canvases" ref=${box} style=${{ height: `${tall}px` }}>
      <canvas ref=${below} aria-hidden="true" />
      <canvas ref=${above} role=${events ? "application" : "img"} aria-roledescription="picture"
        aria-label=${label} aria-describedby=${summary ? summaryId : undefined} ...${events ?? {}} />
    </div>
    ${summary && html`<p class="unseen" id=${summaryId}>${summary}</p>`}
    ${readout !== undefined && html`<figcaption class="readout" aria-live="polite">${readout || "\u00a0"}</figcaption>`}
  </figure>`;
}

/** Call set(width) with the width of an element now, and when it changes. */
export function useWidth(box, set) {
  useLayoutEffect(() => {
    const observer = new ResizeObserver(([entry]) => set(Math.floor(entry.contentRect.width)));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
}
/** Keep the picture's savers in its handle, or in the shared handle of a Card if no other picture uses it. */
function useSavers(handle, owner, make) {
  const shared = useContext(SavedPicture);
  const target = handle ?? shared;
  useEffect(() => {
    if (target && (target.owner ?? owner) === owner) Object.assign(target, { owner, current: make() });
  });
  useEffect(() => () => target?.owner === owner && Object.assign(target, { owner: null, current: null }), []);
}

function usePointing(props, canvas) {
  const { onPoint, onPick, onKey, onWheel, onDrag, readout } = props;
  const { tip = readout, keyTip = readout ?? tip, tipAt } = props;
  const drag = useDrag(onDrag);
  const tooltip = useTooltip(canvas, { tip, keyTip, tipAt });
  const point = usePerFrame(onPoint);
  const at = (event) => {
    const edge = canvas.current.getBoundingClientRect();
    return [event.clientX - edge.left, event.clientY - edge.top, edge.width];
  };
  if (!onPoint && !onPick && !onKey) return null;
  return {
    tabIndex: 0,
    style: onDrag && { touchAction: "none", cursor: "grab" },
    onPointerDown: drag.begin,
    onPointerMove: (event) => {
      drag.move(event);
      tooltip.point(event.clientX, event.clientY);
      if (onPoint) point(...at(event));
    },
    onPointerLeave: () => {
      tooltip.leave();
      if (onPoint) point(null, null, null);
    },
    onFocus: (event) => event.target.matches(":focus-visible") && tooltip.walk(),
    onBlur: tooltip.leave,
    onClick: onPick && ((event) => drag.isDrag() || onPick(...at(event))),
    onWheel: onWheel && ((event) => onWheel(event, ...at(event))),
    onKeyDown:
      onKey &&
      ((event) => {
        if (!hasModifier(event) && onKey(event.key, event)) {
          tooltip.walk();
          used(event);
        }
      }),
  };
}

/** {point(x, y), walk(), leave()} of a picture's tooltip: at the pointer or, after keys, at `tipAt`. */
function useTooltip(canvas, { tip, keyTip, tipAt }) {
  const now = useRef(null); // the pointer's place, or "keys"; null: nothing is pointed at
  const owner = canvas;
  const show = () => {
    const text = now.current === "keys" ? keyTip : tip;
    if (now.current === null || !text) return hideTooltip(owner);
    if (now.current !== "keys") return showTooltip(owner, text, now.current);
    const place = () => {
      const edge = canvas.current.getBoundingClientRect();
      const { x, y } = tipAt?.(edge.width) ?? { x: edge.width / 2, y: 0 };
      return { x: edge.left + x, y: edge.top + y };
    };
    return showTooltip(owner, text, place(), place);
  };
  useLayoutEffect(show);
  useEffect(() => () => hideTooltip(owner), []);
  const set = (place) => {
    now.current = place;
    show();
  };
  return { point: (x, y) => set({ x, y }), walk: () => set("keys"), leave: () => set(null) };
}

/** Scroll the box to a new `inView`, after the canvas is painted: before that, the box has no height to scroll. */
function useInView(box, inView, width) {
  useLayoutEffect(() => {
    const wanted = width > 0 && inView ? inView(width) : null;
    if (wanted) scrollTo(box.current, wanted);
  }, [inView, width > 0]);
}

export function scrollTo(box, { y, height }) {
  const isSeen = y >= box.scrollTop && y + height <= box.scrollTop + box.clientHeight;
  if (!isSeen) box.scrollTop = y - box.clientHeight / 2;
}

export const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/**
 * {at, point(index), onKey(key)} of the pointed one of `count` parts. Arrow keys walk from it, or else from the part `from`,
 * or else from an end; isFlat: up and down too. Enter calls onPick(index).
 */
export function usePointed(count, { from = null, onPick, isFlat = false } = {}) {
  const [pointed, setPointed] = useState(null);
  const at = pointed !== null && pointed < count ? pointed : null; // there may be fewer parts now
  const point = (index) => setPointed(index === null ? null : Math.max(0, Math.min(count - 1, index)));
  const onKey = (key) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ...(isFlat && { ArrowUp: -1, ArrowDown: 1 }) }[key];
    if (step) point((at ?? from ?? (step > 0 ? -1 : count)) + step);
    else if (onPick && (key === "Enter" || key === " ") && (at ?? from) !== null) onPick(at ?? from);
    else return false;
    return true;
  };
  return { at, point, onKey };
}

export const savers = (draw, width, height, mode) => ({
  png: () => pngOf(draw, width, height, mode),
  svg: async () => svgOf(draw, width, height, mode),
});

/** {begin(event), move(event), isDrag()} of pointer events; a movement of less than 4 CSS pixels is a click. */
export function useDrag(onDrag) {
  const drag = useRef(null);
  return {
    begin: (event) => {
      drag.current = { x: event.clientX, y: event.clientY, isMoving: false };
    },
    move: (event) => {
      if (!onDrag || !drag.current || !(event.buttons & 1)) return;
      const [dx, dy] = [event.clientX - drag.current.x, event.clientY - drag.current.y];
      if (!drag.current.isMoving && Math.hypot(dx, dy) < 4) return;
      drag.current = { x: event.clientX, y: event.clientY, isMoving: true };
      onDrag(dx, dy);
    },
    isDrag: () => Boolean(drag.current?.isMoving),
  };
}

/** Whether it is on the screen: pictures off the screen follow the pointer later. */
function useSeen(element) {
  const [isSeen, setSeen] = useState(true);
  useEffect(() => {
    const observer = new IntersectionObserver((entries) => setSeen(entries.at(-1).isIntersecting));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return isSeen;
}

function usePerFrame(call) {
  const latest = useRef(call);
  latest.current = call;
  const waiting = useRef(null);
  useEffect(() => () => cancelAnimationFrame(waiting.current?.frame), []);
  return (...values) => {
    if (waiting.current) {
      waiting.current.values = values;
      return;
    }
    const frame = requestAnimationFrame(() => {
      const { values: last } = waiting.current;
      waiting.current = null;
      latest.current?.(...last);
    });
    waiting.current = { frame, values };
  };
}

function paint(canvas, draw, width, height, mode) {
  const scale = devicePixelRatio || 1;
  const [wide, tall] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== wide || canvas.height !== tall) {
    canvas.width = wide;
    canvas.height = tall;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  draw(context, { width, height, colours: palette(), mode });
}

function pngOf(draw, width, height, mode) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width * 2, height * 2];
  const context = canvas.getContext("2d");
  context.scale(2, 2);
  const colours = palette();
  context.fillStyle = colours.paper;
  context.fillRect(0, 0, width, height);
  draw(context, { width, height, colours, mode });
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function svgOf(draw, width, height, mode) {
  const context = new SvgContext(document.createElement("canvas").getContext("2d"));
  const colours = palette();
  draw(context, { width, height, colours, mode });
  return new Blob([context.document(width, height, colours.paper)], { type: "image/svg+xml" });
}

const SMALLEST = 0.75; // of a type's size

/**
 * Write the text in the context's font and at most `room` CSS pixels: a longer one gets a smaller font, and then ends
 * with …. Widths of fonts differ by a fifth between machines.
 */
export function fillFitted(context, text, room, x, y) {
  const { font } = context;
  const wide = context.measureText(text).width;
  if (wide > room) context.font = font.replace(/[\d.]+px/, (size) => `${parseFloat(size) * Math.max(SMALLEST, room / wide)}px`);
  let shown = text;
  while (shown.length > 1 && context.measureText(shown).width > room + 0.5) shown = `${shown.slice(0, -2)}…`;
  context.fillText(shown, x, y);
  context.font = font;
}
