// The journey's canvas: one moment of the film, with scrubbing, playback and keys; its place is in the address.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../../core/html.js";
import { shownToken } from "../../core/model.js";
import { select, useSelection } from "../../core/state.js";
import { Store, useStore } from "../../core/store.js";
import { palette, theme } from "../../core/theme.js";
import { savers } from "../../parts/picture.js";
import { progressAt, secondsOf } from "./camera.js";
import { described, paint } from "./film.js";
import { Player } from "./player.js";
import { foundAt, saysOf } from "./pointing.js";

const COLOURS = ["ink", "muted", "line", "paper", "raised", "sunk", "query", "key", "value", "accent", "positive", "negative"];

/** The colours of the page as plain strings: reading them from the style in each frame takes longer than drawing. */
function coloursNow() {
  const named = palette();
  return Object.fromEntries(COLOURS.map((name) => [name, named[name]]));
}

const ABOVE = 440; // CSS pixels of the page above the canvas on a wide screen

/** The canvas's height for its width, in CSS pixels: on one screen with the shared text. */
const heightFor = (width) => (width < 600 ? 480 : Math.max(440, Math.min(innerHeight - ABOVE, Math.round(width * 0.55))));

/** The progress that the address names. */
function placeOf(film, { journey_stop: stop, journey_between: rest }) {
  return film.indexOf(stop) + rest;
}

/** No pan or zoom by the user; restored at the next stop. */
const NOT_ASIDE = { x: 0, y: 0, zoom: 1 };

/**
 * {canvas, scrubber, player, look, stop, isPlaying, drawAt, seconds, savers}: shared by the stage's parts. canvas and
 * scrubber: refs; look({x, y, zoom}): pans the picture by CSS pixels and zooms it; stop: the index of the nearest
 * stop; drawAt(share): draws on the canvas at that share of the film's time, 0 to 1, for recording; seconds: the
 * film's length.
 */
export function useStage(film) {
  const canvas = useRef(null);
  const scrubber = useRef(null);
  const selection = useSelection();
  const mode = useStore(theme);
  const latest = useRef({});
  const [nearest, playing] = useMemo(() => [new Store(0), new Store(false)], []);
  const aside = useRef(NOT_ASIDE);
  const drawMoment = (progress) => {
    const { film: shown, colours } = latest.current;
    if (shown && canvas.current?.width) drawOn(canvas.current, shown, progress, { colours, aside: aside.current });
  };
  const look = ({ x = 0, y = 0, zoom = 1 }) => {
    const now = aside.current;
    const scale = latest.current.film.pen.scale;
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
  const width = useWidth(canvas, film !== null);
  useLayoutEffect(() => {
    if (!film || !width) return;
    latest.current = { film, colours: coloursNow() };
    const isNew = player.count !== film.stops.length;
    player.count = film.stops.length;
    sized(canvas.current, width);
    if (isNew) player.seek(placeOf(film, selection));
    else player.onMove(player.progress);
    if (!isNew || !selection.journey_plays) return;
    select({ journey_plays: false });
    player.play();
  }, [film, width, mode]);
  useEffect(() => {
    if (!film || player.isPlaying) return;
    const wanted = placeOf(film, selection);
    if (Math.abs(wanted - player.progress) > 0.006) player.travel(wanted);
  }, [selection.journey_stop, selection.journey_between]);
  return {
    canvas, scrubber, player, look,
    stop: useStore(nearest),
    isPlaying: useStore(playing),
    seconds: film ? secondsOf(film.stops.length) : 0,
    drawAt: (share) => drawMoment(progressAt(share * secondsOf(film.stops.length), film.stops.length)),
    savers: film && savers((context, size) => paint(context, film, player.progress,
      { ...size, colours: coloursNow(), aside: aside.current }),
      width, heightFor(width), mode),
  };
}

/** Write the place to the address: the stop, and the progress after it. */
function remember(film, progress) {
  const stop = Math.min(film.stops.length - 1, Math.floor(progress + 0.005));
  const rest = Math.max(0, Math.round((progress - stop) * 100) / 100);
  select({ journey_stop: stop === 0 ? "" : film.stops[stop].id, journey_between: rest });
}

/** The width of the box around the canvas, in whole CSS pixels; 0 until there is one. */
function useWidth(canvas, isThere) {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    if (!isThere) return undefined;
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(canvas.current.parentElement);
    return () => observer.disconnect();
  }, [isThere]);
  return width;
}

function sized(canvas, width) {
  const scale = devicePixelRatio || 1;
  const height = heightFor(width);
  const [wide, tall] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width === wide && canvas.height === tall) return;
  [canvas.width, canvas.height] = [wide, tall];
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
}

function drawOn(canvas, film, progress, options) {
  const scale = devicePixelRatio || 1;
  const context = canvas.getContext("2d", { alpha: false });
  context.setTransform(scale, 0, 0, scale, 0, 0);
  paint(context, film, progress, { width: canvas.width / scale, height: canvas.height / scale, ...options });
}

const ZOOMS = { "+": 1.5, "=": 1.5, "-": 1 / 1.5 };
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/** Handle a key on the canvas; returns true if it was used. */
function keyPressed(stage, key) {
  const { player } = stage;
  const last = player.count - 1;
  const go = (to) => player.travel(Math.max(0, Math.min(last, to)));
  if (key in STEPS) go(nextOf(player.goal, STEPS[key]));
  else if (/^[0-9]$/.test(key)) go(key === "0" ? 9 : Number(key) - 1);
  else if (key in ZOOMS) stage.look({ zoom: ZOOMS[key] });
  else if (key === "Home") go(0);
  else if (key === "End") go(last);
  else if (key === " " || key === "Enter") (player.isPlaying ? player.pause() : player.play());
  else if (key === "Escape") (player.isPlaying ? player.pause() : go(0));
  else return false;
  return true;
}

/** The next stop from a progress in a direction. */
export const nextOf = (progress, step) => (step > 0 ? Math.floor(progress + 0.01) + 1 : Math.ceil(progress - 0.01) - 1);

/** The canvas with its keys, and its description for screen readers. */
export function Canvas({ stage, film }) {
  const { canvas, stop } = stage;
  const onKeyDown = (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || !keyPressed(stage, event.key)) return;
    event.preventDefault();
    event.stopPropagation();
  };
  const [pointed, setPointed] = useState(null);
  const at = (event) => {
    const edge = canvas.current.getBoundingClientRect();
    return foundAt(film, event.clientX - edge.left, event.clientY - edge.top);
  };
  const drag = useRef(null);
  const move = (event) => {
    setPointed(at(event));
    if (!(event.buttons & 1) || event.pointerType !== "mouse" || !drag.current) return; // a finger scrolls the page
    const [x, y] = [drag.current.x - event.clientX, drag.current.y - event.clientY];
    if (!drag.current.isMoving && Math.hypot(x, y) < 4) return;
    drag.current = { x: event.clientX, y: event.clientY, isMoving: true };
    stage.look({ x, y });
  };
  const zoom = (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    stage.look({ zoom: event.deltaY < 0 ? 1.15 : 1 / 1.15 });
  };
  const pick = (event) => {
    const found = drag.current?.isMoving ? null : at(event);
    if (found) select(found);
  };
  const word = shownToken(film.data.tokens[film.data.query]);
  const label = `The journey of “${word}” through the model, ${film.stops.length} stops; ` +
    "arrow keys go from one to the next, space plays";
  return html`<div class="journey-canvas">
    <canvas ref=${canvas} role="application" aria-roledescription="film" tabindex="0" onKeyDown=${onKeyDown}
      onClick=${pick} onWheel=${zoom} onPointerMove=${move} onPointerLeave=${() => setPointed(null)}
      onPointerDown=${(event) => { drag.current = { x: event.clientX, y: event.clientY, isMoving: false }; }}
      aria-label=${label} aria-describedby="journey-said"></canvas>
    <p class="readout" aria-hidden="true">${pointed ? saysOf(film, pointed) : "\u00a0"}</p>
    <p class="unseen" id="journey-said" aria-live="polite">${stage.isPlaying || !film.stops[stop] ? "" : described(film, stop)}</p>
  </div>`;
}
