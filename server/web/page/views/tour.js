// A short walk through the first views, on whatever model is served: a card that outlines what it speaks of.
import { html, useEffect, useRef, useState } from "../core/html.js";
import { useCapabilities } from "../core/model.js";
import { select } from "../core/state.js";
import { Store, useStore } from "../core/store.js";
import { VIEWS } from "../views.js";

const place = new Store(null); // the number of the step, or null: no tour

let opener = null; // what had the focus before

export function startTour() {
  opener = document.activeElement;
  place.set(0);
}

function endTour() {
  place.set(null);
  opener?.focus();
}

export function Tour() {
  const at = useStore(place);
  return at === null ? null : html`<${Walk} at=${at} />`;
}

/** The steps of the views that this model has, and the facts that they tell; null until they are here. */
function useSteps() {
  const capabilities = useCapabilities();
  const [steps, setSteps] = useState(null);
  const [facts, setFacts] = useState(null);
  useEffect(() => {
    const isThere = ({ view }) => !VIEWS.find(({ id }) => id === view).lacks?.(capabilities);
    import("./tour/steps.js").then(({ STEPS }) => setSteps(STEPS.filter(isThere)), endTour);
    import("./tour/facts.js").then(({ findFacts }) => findFacts(capabilities)).then(setFacts, () => setFacts({}));
  }, [capabilities]);
  return { steps, facts };
}

function Walk({ at }) {
  const { steps, facts } = useSteps();
  const card = useRef(null);
  const step = steps?.[Math.min(at, steps.length - 1)];
  const isReady = step && (facts || at === 0);
  useEffect(() => {
    if (isReady) select({ view: step.view, ...step.look(facts ?? {}) });
  }, [step, isReady]);
  useEffect(() => card.current?.focus({ preventScroll: true }), [step]);
  useEffect(() => {
    const close = (event) => event.key === "Escape" && endTour();
    addEventListener("keydown", close);
    return () => removeEventListener("keydown", close);
  }, []);
  const target = useTarget(isReady ? step : null);
  if (!step) return null;
  const go = (by) => place.set(Math.max(0, Math.min(steps.length - 1, at + by)));
  const isLast = at >= steps.length - 1;
  const onKeyDown = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    go(by);
  };
  return html`
    ${target && html`<div class="tour-outline" aria-hidden="true" style=${pixels(target)}></div>`}
    <div class=${`tour card ${cornerAwayFrom(target)}`} role="dialog" aria-labelledby="tour-title" tabindex="-1"
      ref=${card} onKeyDown=${onKeyDown}>
      <div class="tour-head"><h2 id="tour-title">${step.title}</h2><span class="hint">${at + 1} of ${steps.length}</span>
        <button type="button" class="quiet" aria-label="Close the tour" onClick=${endTour}>✕</button></div>
      <p aria-live="polite">${isReady ? step.say(facts ?? {}) : "Asking the model…"}</p>
      <div class="toolbar">
        <button type="button" disabled=${at === 0} onClick=${() => go(-1)}>Back</button>
        <button type="button" class="primary" onClick=${isLast ? endTour : () => go(1)}>${isLast ? "Done" : "Next"}</button>
        ${step.isOfHead && html`<button type="button" onClick=${() => select({ change_open: true })}>Change this head…</button>`}
        <span class="hint wide">← → walk, Esc closes</span>
      </div>
    </div>`;
}

const pixels = ({ left, top, width, height }) =>
  ({ left: `${left - 6}px`, top: `${top - 6}px`, width: `${width + 12}px`, height: `${height + 12}px` });

/**
 * Where on the screen the step's target is, followed frame by frame: views load, and people scroll. It is brought into
 * sight until somebody scrolls by hand.
 */
function useTarget(step) {
  const [edge, setEdge] = useState(null);
  useEffect(() => {
    if (!step) {
      setEdge(null);
      return undefined;
    }
    let [frame, seen, isFree] = [0, "", false];
    const follow = () => {
      const element = step.targets.map((target) => document.querySelector(target)).find(Boolean);
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
function cornerAwayFrom(target) {
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
