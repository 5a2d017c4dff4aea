// Playback of the scene. The progress is a store, so that a frame redraws only the picture.
import { hasModifier, html, used, useEffect, useMemo, useRef, useState } from "../../core/html.js";
import { select, useSelection } from "../../core/state.js";
import { Store, useStore } from "../../core/store.js";
import { Select } from "../../parts/choices.js";
import { TURN } from "./scene.js";

const STEP_SECONDS = 0.7;
const [FEWEST_SECONDS, MOST_SECONDS] = [6, 60];
const SPEEDS = [0.5, 1, 2, 4];
const stillness = matchMedia("(prefers-reduced-motion: reduce)");

const secondsOf = (count) => Math.min(MOST_SECONDS, Math.max(FEWEST_SECONDS, (count * STEP_SECONDS) / TURN));

/** The progress at which `done` of `count` steps are complete. */
export const progressAt = (done, count) => (done > count ? 1 : (done / count) * TURN);

const stepAt = (round, nudge) => (progress, count) =>
  (progress > TURN + 1e-9 ? count + 1 : Math.min(count, round((progress / TURN) * count + nudge)));
/** The number of complete steps at a progress, or of the current step; count + 1 when all are drawn at once. */
const doneAt = stepAt(Math.floor, 1e-3);
const currentAt = stepAt(Math.ceil, -1e-3);

export function useCurrent(player, count) {
  const [done, setDone] = useState(() => currentAt(player.progress.value, count));
  useEffect(() => {
    const tell = (progress) => setDone(currentAt(progress, count));
    tell(player.progress.value);
    return player.progress.follow(tell);
  }, [count]);
  return done;
}

/** {progress: a store, isPlaying, toggle(), step(by), seek(progress)}; the progress is in the address when it stops. */
export function usePlayer(count) {
  const { motion_at: at, motion_speed: speed } = useSelection();
  const progress = useMemo(() => new Store(at), []);
  const [isPlaying, setPlaying] = useState(false);
  const latest = useRef(null);
  latest.current = { count, speed };
  useEffect(() => {
    if (!isPlaying && Math.abs(progress.value - at) > 5e-4) progress.set(at); // another address
  }, [at]);
  useEffect(() => (isPlaying ? play(progress, latest, () => setPlaying(false)) : undefined), [isPlaying]);
  useEffect(() => {
    if (!isPlaying) keep(progress.value);
  }, [isPlaying]);
  const seek = (value) => {
    setPlaying(false);
    progress.set(Math.max(0, Math.min(1, value)));
    keep(progress.value);
  };
  const step = (by) => {
    const here = doneAt(progress.value, count);
    const isBetween = currentAt(progress.value, count) > here;
    seek(progressAt(Math.max(0, here + by + (by < 0 && isBetween ? 1 : 0)), count));
  };
  const toggle = () => {
    if (!isPlaying && progress.value >= 1) progress.set(0);
    setPlaying(!isPlaying);
  };
  return { progress, isPlaying, toggle, step, seek };
}

const keep = (value) => select({ motion_at: Math.round(value * 1e4) / 1e4 });

/** Advance the progress to its end; with reduced motion, in whole steps. Returns a function that stops it. */
function play(progress, latest, onEnd) {
  let frame = null;
  let last = null;
  let waited = 0;
  const move = (now) => {
    const { count, speed } = latest.current;
    const share = last === null ? 0 : (((now - last) / 1000) * speed) / secondsOf(count);
    last = now;
    waited += share;
    const done = doneAt(progress.value, count);
    const next = progressAt(done + 1, count);
    if (!stillness.matches) progress.set(Math.min(1, progress.value + share));
    else if (waited >= next - progress.value) {
      waited = 0;
      progress.set(next);
    }
    if (progress.value >= 1) onEnd();
    else frame = requestAnimationFrame(move);
  };
  frame = requestAnimationFrame(move);
  return () => cancelAnimationFrame(frame);
}

export function Controls({ player, count, sentence }) {
  const { motion_speed: speed } = useSelection();
  return html`<div class="motion-controls" role="group" aria-label="Play the arrows">
    <button class="primary" onClick=${player.toggle}>${player.isPlaying ? "Pause" : "Play"}</button>
    <button aria-label="One step back" onClick=${() => player.step(-1)}>‹</button>
    <button aria-label="One step on" onClick=${() => player.step(1)}>›</button>
    <${Scrubber} player=${player} count=${count} sentence=${sentence} />
    <${Select} label="Speed" value=${speed} options=${SPEEDS.map((each) => [each, `${each} ×`])}
      onPick=${(value) => select({ motion_speed: Number(value) })} />
  </div>
  <${Sentence} player=${player} count=${count} sentence=${sentence} />`;
}

function Scrubber({ player, count, sentence }) {
  const progress = useStore(player.progress);
  const done = currentAt(progress, count);
  const onKeyDown = (event) => {
    const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
    if (!by || hasModifier(event)) return;
    used(event);
    player.step(by);
  };
  return html`<label class="scrubber"><span class="unseen">Where the arrows are</span>
    <input type="range" min="0" max="1" step="any" value=${progress} aria-valuetext=${sentence(done)}
      onKeyDown=${onKeyDown} onInput=${(event) => player.seek(Number(event.target.value))} /></label>`;
}

function Sentence({ player, count, sentence }) {
  const done = useCurrent(player, count);
  return html`<p class="readout motion-sentence" aria-live=${player.isPlaying ? "off" : "polite"}>${sentence(done)}</p>`;
}
