// Playback of a film: play, travel to a stop, scrub. It draws nothing.
import { between, eased, progressAt, secondsAt, secondsOf } from "./camera.js";

const TRAVEL_MS = 900; // for travelling to a selected stop
const STILL_MS = 4000; // at each stop, with reduced motion

const wantsLessMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

export class Player {
  #frame = null;
  #timer = null;
  progress = 0;
  goal = 0; // target, or current place
  count = 1;
  isPlaying = false;

  /** onMove(progress), onRest(progress), onPlay(isPlaying). */
  constructor(handlers) {
    Object.assign(this, handlers);
  }

  #within = (progress) => Math.max(0, Math.min(this.count - 1, progress));

  #show(progress) {
    this.progress = this.#within(progress);
    if (this.isPlaying) this.goal = this.progress;
    this.onMove(this.progress);
  }

  #end() {
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#timer);
    this.#frame = this.#timer = null;
    if (this.isPlaying) this.onPlay(this.isPlaying = false);
  }

  #rest() {
    this.#end();
    this.onRest(this.progress);
  }

  /** Call step(milliseconds) in each frame until it returns true. */
  #run(step) {
    let began = null;
    const frame = (now) => {
      if (step(now - (began ??= now))) this.#rest();
      else this.#frame = requestAnimationFrame(frame);
    };
    this.#frame = requestAnimationFrame(frame);
  }

  pause() {
    this.goal = this.progress;
    if (this.#frame !== null || this.#timer !== null) this.#rest();
  }

  seek(progress) {
    this.#end();
    this.#show(progress);
    this.goal = this.progress;
  }

  /** At once with reduced motion. */
  travel(progress) {
    const from = this.progress;
    const to = this.#within(progress);
    if (wantsLessMotion() || from === to) {
      this.seek(to);
      this.onRest(to);
      return;
    }
    this.#end();
    this.goal = to;
    this.#run((ms) => {
      const share = Math.min(1, ms / TRAVEL_MS);
      this.#show(share === 1 ? to : between(from, to, eased(share)));
      return share === 1;
    });
  }

  step(by) {
    this.travel(by > 0 ? Math.floor(this.goal + 0.01) + 1 : Math.ceil(this.goal - 0.01) - 1);
  }

  play() {
    this.#end();
    if (this.progress >= this.count - 1) this.#show(0);
    this.onPlay(this.isPlaying = true);
    if (wantsLessMotion()) {
      this.#leap();
      return;
    }
    const start = secondsAt(this.progress);
    this.#run((ms) => {
      const seconds = start + ms / 1000;
      const progress = progressAt(seconds, this.count);
      if (progress !== this.progress) this.#show(progress); // at a stop nothing moves
      return seconds >= secondsOf(this.count);
    });
  }

  #leap() {
    this.#timer = setTimeout(() => {
      this.#show(Math.floor(this.progress) + 1);
      if (this.progress < this.count - 1) this.#leap();
      else this.#rest();
    }, STILL_MS);
  }

  close() {
    this.onPlay = this.onRest = () => {};
    this.#end();
  }
}
