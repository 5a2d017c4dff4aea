// The journey's canvas: one moment of the film, with scrubbing, playback and keys; its place is in the address.
import { hasModifier, html, listen, used, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../../core/html.js";
import { shownToken } from "../../core/model.js";
import { select, state, useSelection } from "../../core/state.js";
import { Store, useStore } from "../../core/store.js";
import { palette, theme } from "../../core/theme.js";
import { savers, useDrag } from "../../parts/picture.js";
import { progressAt, secondsOf } from "./camera.js";
import { described, paint } from "./film.js";
import { Player } from "./player.js";
import { foundAt, saysOf } from "./pointing.js";

const placeOf = (film, { journey_stop: stop, journey_between: rest }) => film.indexOf(stop) + rest;

const NOT_ASIDE = { x: 0, y: 0, zoom: 1 }; // no pan or zoom by the user

const films = new WeakMap(); // by canvas
/** The film that a canvas shows; its pen has the texts of the last picture. */
export const filmOn = (canvas) => films.get(canvas);

/** look({x, y, zoom}): pans by CSS pixels and zooms; stop: the index of the nearest; drawAt(share): with a caption, for recording. */
export function useStage(film) {
  const canvas = useRef(null);
  const scrubber = useRef(null);
  const selection = useSelection();
  const mode = useStore(theme);
  const latest = useRef({});
  const [nearest, playing] = useMemo(() => [new Store(0), new Store(false)], []);
  const aside = useRef(NOT_ASIDE);
  const drawMoment = (progress, hasCaption = false) => {
    const { film: shown } = latest.current;
    const { current: to } = canvas;
    if (!shown || !to?.width) return;
    const scale = devicePixelRatio || 1;
    const context = to.getContext("2d", { alpha: false });
    context.setTransform(scale, 0, 0, scale, 0, 0);
    films.set(to, shown);
    const size = { width: to.width / scale, height: to.height / scale };
    paint(context, shown, progress, { ...size, colours: palette(), aside: aside.current, hasCaption });
  };
  const look = ({ x = 0, y = 0, zoom = 1 }) => {
    const now = aside.current;
    const { scale } = latest.current.film.pen;
    aside.current = { x: now.x + x / scale, y: now.y + y / scale, zoom: Math.max(0.2, Math.min(40, now.zoom * zoom)) };
    drawMoment(player.progress);
  };
  const player = useMemo(() => new Player({
    onMove: (progress) => {
      aside.current = NOT_ASIDE;
      drawMoment(progress);
      nearest.set(Math.round(progress));
      if (scrubber.current) scrubber.current.value = String(progress);
    },
    onRest: (progress) => remember(latest.current.film, progress),
    onPlay: (is) => playing.set(is),
  }), []);
  useEffect(() => () => player.close(), []);
  const { width, height } = useSize(canvas, film !== null);
  useLayoutEffect(() => {
    if (!film || !width) return;
    latest.current = { film };
    const isNew = player.count !== film.stops.length;
    player.count = film.stops.length;
    const scale = devicePixelRatio || 1;
    Object.assign(canvas.current, { width: Math.round(width * scale), height: Math.round(height * scale) });
    if (isNew) player.seek(placeOf(film, selection));
    else player.onMove(player.progress);
    if (!isNew || !selection.journey_plays) return;
    select({ journey_plays: false });
    player.play();
  }, [film, width, height, mode]);
  useEffect(() => {
    if (!film || player.isPlaying) return;
    const wanted = placeOf(film, state.value); // not of this render: a key may have moved the film since
    if (Math.abs(wanted - player.progress) > 0.006) player.travel(wanted);
  }, [selection.journey_stop, selection.journey_between]);
  useArrows(player);
  return {
    canvas, scrubber, player, look,
    stop: useStore(nearest),
    isPlaying: useStore(playing),
    drawAt: (share) => drawMoment(progressAt(share * secondsOf(film.stops.length), film.stops.length), true),
    savers: film && savers((context, size) => paint(context, film, player.progress,
      { ...size, aside: aside.current }), width, height, mode),
  };
}

/** From anywhere in the view. The document gets a key before the window, where arrows choose a head. */
function useArrows(player) {
  const press = (event) => event.target.closest?.(TAKEN) || keyPressed({ player }, event, STEPS);
  useEffect(() => listen(document, { keydown: press }), []);
}

function remember(film, progress) {
  const stop = Math.min(film.stops.length - 1, Math.floor(progress + 0.005));
  const rest = Math.max(0, Math.round((progress - stop) * 100) / 100);
  select({ journey_stop: stop === 0 ? "" : film.stops[stop].id, journey_between: rest });
}

function useSize(canvas, isThere) {
  const [size, setSize] = useState({ width: 0, height: 0 });
  useLayoutEffect(() => {
    if (!isThere) return undefined;
    const observer = new ResizeObserver(([{ contentRect }]) =>
      setSize({ width: Math.floor(contentRect.width), height: Math.floor(contentRect.height) }));
    observer.observe(canvas.current.parentElement);
    return () => observer.disconnect();
  }, [isThere]);
  return size;
}

const TAKEN = "input, textarea, select, [role=application], [role=dialog]"; // these use the arrow keys themselves
const ZOOMS = { "+": 1.5, "=": 1.5, "-": 1 / 1.5 };
const STEPS = { ArrowRight: 1, ArrowLeft: -1 };

/** All keys of the picture, or with `only` those in it. */
function keyPressed(stage, event, only = null) {
  const { key } = event;
  if (hasModifier(event) || event.defaultPrevented || (only && !(key in only))) return;
  const { player } = stage;
  const go = (to) => player.travel(to);
  if (key in STEPS) player.step(STEPS[key]);
  else if (/^[0-9]$/.test(key)) go(key === "0" ? 9 : Number(key) - 1);
  else if (key in ZOOMS) stage.look({ zoom: ZOOMS[key] });
  else if (key === "Home") go(0);
  else if (key === "End") go(Infinity);
  else if (key === " " || key === "Enter") (player.isPlaying ? player.pause() : player.play());
  else if (key === "Escape") (player.isPlaying ? player.pause() : go(0));
  else return;
  used(event);
}

export function Canvas({ stage, film }) {
  const { canvas, stop } = stage;
  const [pointed, setPointed] = useState(null);
  const at = (event) => {
    const edge = canvas.current.getBoundingClientRect();
    return foundAt(film, event.clientX - edge.left, event.clientY - edge.top);
  };
  const drag = useDrag((x, y) => stage.look({ x: -x, y: -y }));
  const move = (event) => {
    setPointed(at(event));
    if (event.pointerType === "mouse") drag.move(event); // a finger scrolls the page
  };
  const zoom = (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    stage.look({ zoom: event.deltaY < 0 ? 1.15 : 1 / 1.15 });
  };
  const pick = (event) => {
    const found = drag.isDrag() ? null : at(event);
    if (found) select(found);
  };
  const word = shownToken(film.data.tokens[film.data.query]);
  const label = `The journey of “${word}” through the model, ${film.stops.length} stops; ` +
    "arrow keys go from one to the next, space plays";
  return html`<div class="journey-canvas">
    <div><canvas ref=${canvas} role="application" aria-roledescription="film" tabindex="0" onKeyDown=${(event) => keyPressed(stage, event)}
      onClick=${pick} onWheel=${zoom} onPointerMove=${move} onPointerLeave=${() => setPointed(null)}
      onPointerDown=${drag.begin}
      aria-label=${label} aria-describedby="journey-said"></canvas></div>
    <p class="readout" aria-hidden="true">${pointed ? saysOf(film, pointed) : "\u00a0"}</p>
    <p class="unseen" id="journey-said" aria-live="polite">${stage.isPlaying || !film.stops[stop] ? "" : described(film, stop)}</p>
  </div>`;
}
