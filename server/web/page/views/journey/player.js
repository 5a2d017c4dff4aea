// Playback of a film: play, travel to a stop, scrub. It draws nothing and is independent of components.
import { between, eased, progressAt, secondsAt, secondsOf } from "./camera.js";

const TRAVEL_MS = 900; // for travelling to a selected stop

const wantsLessMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

export class Player {
  #frame = null;
  #timer = null;
  progress = 0;
  goal = 0; // target, or current place
  count = 1;
  isPlaying = false;

  /** onMove(progress): at each moment to draw; onRest(progress): when it has stopped; onPlay(isPlaying). */
  constructor({ onMove, onRest, onPlay }) {
    Object.assign(this, { onMove, onRest, onPlay });
  }

  #show(progress) {
    this.progress = Math.max(0, Math.min(this.count - 1, progress));
    if (this.isPlaying) this.goal = this.progress;
    this.onMove(this.progress);
  }

  #end() {
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#timer);
    this.#frame = this.#timer = null;
    if (this.isPlaying) {
      this.isPlaying = false;
      this.onPlay(false);
    }
  }

  /** Call step(milliseconds since the beginning) in each frame until it returns true. */
  #run(step) {
    let began = null;
    const frame = (now) => {
      began ??= now;
      if (step(now - began)) {
        this.#end();
        this.onRest(this.progress);
      } else {
        this.#frame = requestAnimationFrame(frame);
      }
    };
    this.#frame = requestAnimationFrame(frame);
  }

  /** Stop at the current place. */
  pause() {
    const wasMoving = this.#frame !== null || this.#timer !== null;
    this.#end();
    this.goal = this.progress;
    if (wasMoving) this.onRest(this.progress);
  }

  /** Move to a progress at once. */
  seek(progress) {
    this.#end();
    this.#show(progress);
    this.goal = this.progress;
  }

  /** Travel to a progress; at once with the system setting for reduced motion. */
  travel(progress) {
    this.#end();
    const from = this.progress;
    const to = Math.max(0, Math.min(this.count - 1, progress));
    this.goal = to;
    if (wantsLessMotion() || from === to) {
      this.#show(to);
      this.onRest(this.progress);
      return;
    }
    this.#run((ms) => {
      const share = Math.min(1, ms / TRAVEL_MS);
      this.#show(share === 1 ? to : between(from, to, eased(share)));
      return share === 1;
    });
  }

  /**
   * Play from here, or from the beginning if this is the end; with reduced motion, from stop to stop without
   * travelling.
   */
  play() {
    this.#end();
    if (this.progress >= this.count - 1) this.#show(0);
    this.isPlaying = true;
    this.onPlay(true);
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
      if (this.progress < this.count - 1) {
        this.#leap();
      } else {
        this.#end();
        this.onRest(this.progress);
      }
    }, 4000);
  }

  close() {
    this.onPlay = this.onRest = () => {};
    this.#end();
  }
}
