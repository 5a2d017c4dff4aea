// The scene: arrows added one after another, then all at once. It is a function of a progress between 0 and 1, so
// that playback, scrubbing and recording give the same pictures.
import { Store } from "../../core/store.js";
import { palette } from "../../core/theme.js";
import { painterOf } from "./painters.js";

export const TURN = 0.8; // progress at which all steps are complete; after it, all arrows are drawn at once
const OF_KIND = { word: "key", head: "value", more: "key", embedding: "ink", state: "ink", mlp: "good", attention: "value" };
export const OF_WAY = ["query", "key", "good", "value"]; // the colours of several ways
const COLOURS = ["raised", "line", "muted", "ink", "query", "key", "value", "good"];
const MARGIN = { x: 76, y: 36 };
const SMALL = 11; // pixels of type
const LARGE = 13;
const NARROW = 600; // pixels
const MOST_LABELS = 16;

/** The scene on the page, or null: {canvas, drawAt(progress), seconds}, for recording. */
export const shownScene = new Store(null);

/**
 * The state of a way at a progress: {done: whole steps, part: of the current step, together: of all at once}, from 0
 * to 1.
 */
function phaseOf(way, progress) {
  const along = Math.min(1, progress / TURN) * way.steps.length;
  const done = Math.min(way.steps.length, Math.floor(along + 1e-9));
  const together = Math.max(0, (progress - TURN) / (1 - TURN));
  return { done, part: eased(along - done), together: eased(together) };
}

const eased = (t) => (t <= 0 ? 0 : t >= 1 ? 1 : t * t * (3 - 2 * t));
const between = (a, b, t) => a.map((value, i) => value + (b[i] - value) * t);

export class Scene {
  #data = null;
  #view = { space: "plane", yaw: 0, pitch: 0 };
  progress = 1;
  seconds = 10;
  isReleased = false;

  constructor(canvas) {
    this.canvas = canvas;
    this.painter = painterOf(canvas);
    canvas.addEventListener("webglcontextlost", (event) => this.isReleased || event.preventDefault()); // it may be restored
    canvas.addEventListener("webglcontextrestored", () => {
      this.painter = painterOf(canvas);
      this.drawAt(this.progress);
    });
  }

  /** data: as way.js measures it; view: {space: "plane" or "space", yaw, pitch in degrees}. */
  show(data, view) {
    this.#data = data;
    this.#view = view;
    const found = palette(); // once, not in each frame: it computes the page's styles
    this.colours = Object.fromEntries(COLOURS.map((name) => [name, hexOf(found[name])]));
    this.drawAt(this.progress);
  }

  resize(width, height) {
    const scale = devicePixelRatio || 1;
    [this.width, this.height, this.scale] = [width, height, scale];
    [this.canvas.width, this.canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
    this.drawAt(this.progress);
  }

  release() {
    this.isReleased = true;
    this.painter.release();
  }

  /** Draw the scene at a progress from 0 (no step is added) to 1 (all are, at once). */
  drawAt(progress) {
    this.progress = progress;
    if (!this.#data || !this.width) return;
    this.#paint(this.painter, progress);
  }

  /** Draw the current picture with another painter; scale: pixels per CSS pixel. */
  drawWith(painter, scale) {
    const own = [this.painter, this.scale];
    [this.painter, this.scale] = [painter, scale];
    this.#paint(painter, this.progress);
    [this.painter, this.scale] = own;
  }

  #paint(painter, progress) {
    painter.begin(this.width, this.height, this.scale, this.colours.raised);
    this.#drawAll(progress);
    painter.end();
  }

  #drawAll(progress) {
    const { ways } = this.#data;
    const phases = ways.map((way) => phaseOf(way, progress));
    this.#fit(ways, phases);
    this.labels = [];
    this.#drawAxes();
    const arrows = ways.flatMap((way, i) => this.#arrowsOf(way, phases[i], i));
    if (this.#view.space === "space") arrows.sort((a, b) => a.from[2] + a.to[2] - b.from[2] - b.to[2]);
    for (const arrow of arrows) this.#drawArrow(arrow);
    ways.forEach((way, i) => this.#drawEnds(way, phases[i], i));
    this.#drawLabels();
    this.#drawRuler();
  }

  /** A point of the axes after the rotation of the space: right, up, and towards the eye. */
  #turned([a, b, c]) {
    if (this.#view.space === "plane") return [a, b, 0];
    const [yaw, pitch] = [this.#view.yaw, this.#view.pitch].map((degrees) => (degrees * Math.PI) / 180);
    const deep = -Math.sin(yaw) * a + Math.cos(yaw) * c;
    return [Math.cos(yaw) * a + Math.sin(yaw) * c, Math.cos(pitch) * b - Math.sin(pitch) * deep,
      Math.sin(pitch) * b + Math.cos(pitch) * deep];
  }

  /** Set the scale so that everything drawn so far is visible. */
  #fit(ways, phases) {
    const seen = ways.flatMap((way, w) => {
      const { done, part, together } = phases[w];
      const [first] = way.steps;
      const points = first.kind === "state" ? [first.to] : [way.from, first.to];
      const tips = way.steps.slice(0, done).map((step) => step.to);
      if (done < way.steps.length && done > 0) tips.push(between(way.steps[done - 1].to, way.steps[done].to, part));
      if (first.kind === "state" && way.steps[1] && done < 2) tips.push(way.steps[1].to);
      const fan = together > 0 ? fanOf(way).map(({ to }) => between(first.to, to, together)) : [];
      return [...points, ...tips, ...fan];
    }).map((point) => this.#turned(point));
    const [lows, highs] = [Math.min, Math.max].map((edge) => [0, 1].map((i) => edge(...seen.map((point) => point[i]))));
    const room = [this.width - 2 * MARGIN.x, this.height - 2 * MARGIN.y];
    const spans = [0, 1].map((i) => (highs[i] - lows[i]) / Math.max(1, room[i]));
    this.unit = 1 / (Math.max(...spans) || 1); // pixels of a length of 1
    this.middle = [0, 1].map((i) => (lows[i] + highs[i]) / 2);
  }

  /** The pixel of a point, and its depth. */
  #place(point) {
    const [x, y, deep] = this.#turned(point);
    return [this.width / 2 + (x - this.middle[0]) * this.unit, this.height / 2 - (y - this.middle[1]) * this.unit, deep];
  }

  #drawAxes() {
    const { axes, ways } = this.#data;
    const anchor = ways[0].steps[0].kind === "state" ? ways[0].steps[0].to : [0, 0, 0];
    const long = Math.max(this.width, this.height) / this.unit;
    axes.forEach(({ name }, i) => {
      const along = (t) => anchor.map((value, j) => value + (i === j ? t * long : 0));
      const [from, to] = [this.#place(along(-1)), this.#place(along(1))];
      this.painter.line(from[0], from[1], to[0], to[1], 1, this.colours.line, 1);
      const [x, y] = this.#withinEdge(this.#place(anchor), to);
      this.#label(name, x, y, { colour: "muted", size: SMALL, weight: 0.5 });
    });
  }

  /** The last point of the line from a to b that is on the canvas, a little inside. */
  #withinEdge([x0, y0], [x1, y1]) {
    let t = 1;
    const bounds = [[x0, x1, 8, this.width - 8], [y0, y1, 14, this.height - 30]];
    for (const [from, to, low, high] of bounds) {
      if (to > high) t = Math.min(t, (high - from) / (to - from));
      if (to < low) t = Math.min(t, (low - from) / (to - from));
    }
    return [x0 + (x1 - x0) * Math.max(0, t), y0 + (y1 - y0) * Math.max(0, t)];
  }

  /**
   * The arrows of a way in pixels: one after another, then, fading in as these fade out, all from the start of the
   * word.
   */
  #arrowsOf(way, { done, part, together }, w) {
    const isOnly = this.#data.ways.length === 1;
    const colour = (step) => (isOnly ? (OF_KIND[step.of ?? step.kind] ?? "muted") : OF_WAY[w]);
    const arrows = [];
    way.steps.forEach((step, i) => {
      if (i > done || (i === done && part === 0) || step.kind === "state") return;
      const before = i === 0 ? way.from : way.steps[i - 1].to;
      const to = i < done ? step.to : between(before, step.to, part);
      const isNow = together === 0 && i === (part > 0 ? done : done - 1);
      arrows.push({ from: this.#place(before), to: this.#place(to), colour: colour(step), label: step.label, isNow,
        alpha: i === 0 ? 1 : 1 - 0.75 * together, wide: isNow ? 3 : 2 });
    });
    if (together > 0) {
      const from = this.#place(way.steps[0].to);
      for (const { step, to } of fanOf(way)) {
        arrows.push({ from, to: this.#place(between(way.steps[0].to, to, together)), colour: colour(step), label: step.label,
          isLoose: true, alpha: together, wide: 2 });
      }
      arrows.push({ from, to: this.#place(between(way.steps[0].to, way.steps.at(-1).to, together)),
        colour: isOnly ? "query" : OF_WAY[w], alpha: together, wide: 4 });
    }
    return arrows;
  }

  #drawArrow({ from, to, colour, label, isNow, isLoose, alpha, wide }) {
    const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
    const far = Math.hypot(dx, dy);
    if (far < 0.5) return;
    const head = Math.min(4 + 2 * wide, far * 0.6);
    const [ux, uy] = [dx / far, dy / far];
    const [bx, by] = [to[0] - ux * head, to[1] - uy * head];
    const ink = this.colours[colour];
    this.painter.line(from[0], from[1], bx, by, wide, ink, alpha);
    this.painter.triangle(to[0], to[1], bx - uy * head * 0.45, by + ux * head * 0.45, bx + uy * head * 0.45, by - ux * head * 0.45,
      ink, alpha);
    if (label && alpha > 0.3 && (far > 12 || isNow)) {
      const style = { colour, size: isNow ? LARGE : SMALL, weight: isNow ? 1e6 : far, alpha };
      if (isLoose) this.#labelBeside(label, to, [ux, uy], 4, style); // arrows from one point are apart only at their tips
      else this.#labelBeside(label, [from[0] + dx / 2, from[1] + dy / 2], [-uy, ux], 2 + wide / 2, style);
    }
  }

  /** Draw the start and the end of the word's vector. */
  #drawEnds(way, { done }, w) {
    const isOnly = this.#data.ways.length === 1;
    const colour = isOnly ? "query" : OF_WAY[w];
    if (way.steps[0].kind === "state") {
      const [x, y] = this.#place(way.steps[0].to);
      this.painter.dot(x, y, 4, this.colours.ink, 1);
      this.#label(way.steps[0].label, x, y - 12, { colour: "ink", size: LARGE, weight: 1e5 });
    }
    if (done < way.steps.length) return;
    const [x, y] = this.#place(way.steps.at(-1).to);
    this.painter.dot(x, y, 5, this.colours[colour], 1);
    const [x0, y0] = this.#place(way.steps[0].to);
    const far = Math.hypot(x - x0, y - y0);
    this.#labelBeside(isOnly ? `${way.steps[0].label}, in this sentence` : this.#titleOf(way), [x, y],
      far < 1 ? [0, -1] : [(x - x0) / far, (y - y0) / far], 8, { colour, size: LARGE, weight: 1e7 });
  }

  /** The title at the end of a way: its number and text, or only the number if the picture is narrow. */
  #titleOf(way) {
    return this.width < NARROW ? way.label.split(":")[0] : way.label;
  }

  /** A label that overlaps no line ending at the point: moved in the direction by its own size and a gap. */
  #labelBeside(text, [x, y], [ux, uy], gap, style) {
    const wide = this.painter.measure(text, style.size);
    const far = Math.min((wide / 2 + gap) / Math.abs(ux), (style.size * 0.65 + gap) / Math.abs(uy));
    this.#label(text, x + ux * far, y + uy * far, style);
  }

  #label(text, x, y, { colour, size, weight, alpha = 1 }) {
    this.labels.push({ text, x, y, colour, size, weight, alpha });
  }

  /** Draw the labels, the most important first; labels that would overlap an earlier one are omitted. */
  #drawLabels() {
    const taken = [];
    for (const label of this.labels.sort((a, b) => b.weight - a.weight)) {
      if (taken.length >= MOST_LABELS) break;
      const wide = this.painter.measure(label.text, label.size);
      const x = Math.max(4, Math.min(this.width - wide - 4, label.x - wide / 2));
      const y = Math.max(10, Math.min(this.height - 10, label.y));
      const box = [x - 2, y - label.size * 0.65, x + wide + 2, y + label.size * 0.65];
      if (taken.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3])) continue;
      taken.push(box);
      this.painter.rect(box[0], box[1], wide + 4, label.size * 1.3, this.colours.raised, 0.75 * label.alpha);
      this.painter.text(label.text, x, y, label.size, this.colours[label.colour], label.alpha);
    }
  }

  /** A scale bar of a round length, because the scale changes as the arrows grow. */
  #drawRuler() {
    const most = 110 / this.unit;
    const power = 10 ** Math.floor(Math.log10(most));
    const length = [5, 2, 1].find((times) => times * power <= most) * power;
    const [x, y, wide] = [12, this.height - 12, length * this.unit];
    this.painter.line(x, y, x + wide, y, 2, this.colours.muted, 1);
    this.painter.text(`length ${Number(length.toPrecision(1))}`, x, y - 10, SMALL, this.colours.muted, 1);
  }
}

/** Each step's arrow moved to the start of the word: [{step, to}]. */
function fanOf(way) {
  const begin = way.steps[0].to;
  return way.steps.slice(1).map((step, i) => ({ step, to: step.to.map((value, j) => begin[j] + value - way.steps[i].to[j]) }));
}

/** "#rrggbb" of a colour that may be written as "#rgb". */
const hexOf = (colour) => (colour.length === 4 ? `#${[...colour.slice(1)].map((digit) => digit + digit).join("")}` : colour);
