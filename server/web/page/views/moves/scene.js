// The picture of the arrows, one after another, then all at once: a function of a progress between 0 and 1.
import { dot, fill, line, tip } from "../../parts/ink.js";

export const TURN = 0.8; // progress at which all steps are complete; after it, all arrows are drawn at once
const OF_KIND = { word: "key", head: "value", more: "key", embedding: "ink", state: "ink", mlp: "good", attention: "value" };
export const OF_WAY = ["value", "good", "ink", "muted"]; // the colours of several ways
const MARGIN = { x: 76, narrow: 24, y: 36 };
const SMALL = 11; // pixels of type
const LARGE = 13;
const NARROW = 600;
const MOST_LABELS = 16;
const HIDDEN = { wide: 1.5, alpha: 0.55, most: 0.98 }; // the thin line; an arrow that shows more of its length has none

const font = (size) => `600 ${size}px system-ui, sans-serif`;

/** {done: whole steps of a way at a progress, part: of the current step, together: of all at once, 0 to 1}. */
function phaseOf(way, progress) {
  const along = Math.min(1, progress / TURN) * way.steps.length;
  const done = Math.min(way.steps.length, Math.floor(along + 1e-9));
  return { done, part: eased(along - done), together: eased(Math.max(0, (progress - TURN) / (1 - TURN))) };
}

const eased = (t) => (t <= 0 ? 0 : t >= 1 ? 1 : t * t * (3 - 2 * t));
const between = (a, b, t) => a.map((value, i) => value + (b[i] - value) * t);

/** Draws data (see way.js) on a 2D context; view: {space: "plane" or "space", yaw, pitch in degrees}. */
export class Scene {
  constructor(context, { width, height, colours }, data, view) {
    Object.assign(this, { context, width, height, colours, data, view });
  }

  /** Draw the scene at a progress from 0 (no step is added) to 1 (all are, at once). */
  draw(progress) {
    const { context, width, height } = this;
    const { ways } = this.data;
    context.globalAlpha = 1;
    fill(context, 0, 0, width, height, this.colours.raised);
    context.textBaseline = "middle";
    const phases = ways.map((way) => phaseOf(way, progress));
    const drawn = ways.map((way, i) => this.#arrowsOf(way, phases[i], i));
    this.#fit(ways, drawn);
    this.labels = [];
    this.#drawAxes();
    const arrows = drawn.flat().map((arrow) => ({ ...arrow, from: this.#place(arrow.from), to: this.#place(arrow.to),
      whole: this.#place(arrow.whole) }));
    if (this.view.space === "space") arrows.sort((a, b) => a.from[2] + a.to[2] - b.from[2] - b.to[2]);
    for (const arrow of arrows) this.#drawArrow(arrow);
    ways.forEach((way, i) => this.#drawEnds(way, phases[i], i));
    this.#drawLabels();
    this.#drawRuler();
  }

  #turned([a, b, c]) {
    if (this.view.space === "plane") return [a, b, 0];
    const [yaw, pitch] = [this.view.yaw, this.view.pitch].map((degrees) => (degrees * Math.PI) / 180);
    const deep = -Math.sin(yaw) * a + Math.cos(yaw) * c;
    return [Math.cos(yaw) * a + Math.sin(yaw) * c, Math.cos(pitch) * b - Math.sin(pitch) * deep,
      Math.sin(pitch) * b + Math.cos(pitch) * deep];
  }

  #fit(ways, drawn) {
    const seen = [...ways.flatMap(({ from, steps }) => (steps[0].kind === "state" ? [steps[0].to] : [from, steps[0].to])),
      ...drawn.flat().flatMap(({ to, whole }) => [to, whole])].map((point) => this.#turned(point));
    const [lows, highs] = [Math.min, Math.max].map((edge) => [0, 1].map((i) => edge(...seen.map((point) => point[i]))));
    const room = [this.width - 2 * (this.width < NARROW ? MARGIN.narrow : MARGIN.x), this.height - 2 * MARGIN.y];
    this.unit = 1 / (Math.max(...[0, 1].map((i) => (highs[i] - lows[i]) / Math.max(1, room[i]))) || 1); // pixels of a length of 1
    this.middle = [0, 1].map((i) => (lows[i] + highs[i]) / 2);
  }

  #place(point) {
    const [x, y, deep] = this.#turned(point);
    return [this.width / 2 + (x - this.middle[0]) * this.unit, this.height / 2 - (y - this.middle[1]) * this.unit, deep];
  }

  #drawAxes() {
    const { axes, ways } = this.data;
    const anchor = ways[0].steps[0].kind === "state" ? ways[0].steps[0].to : [0, 0, 0];
    const long = Math.max(this.width, this.height) / this.unit;
    axes.forEach(({ name }, i) => {
      const along = (t) => this.#place(anchor.map((value, j) => value + (i === j ? t * long : 0)));
      this.#line(along(-1), along(1), 1, "line");
      const [x, y] = this.#withinEdge(this.#place(anchor), along(1));
      this.#label(name, x, y, { colour: "muted", size: SMALL, weight: 0.5 });
    });
  }

  #withinEdge([x0, y0], [x1, y1]) {
    let t = 1;
    for (const [from, to, low, high] of [[x0, x1, 8, this.width - 8], [y0, y1, 14, this.height - 30]]) {
      if (to > high) t = Math.min(t, (high - from) / (to - from));
      if (to < low) t = Math.min(t, (low - from) / (to - from));
    }
    return [x0 + (x1 - x0) * Math.max(0, t), y0 + (y1 - y0) * Math.max(0, t)];
  }

  /**
   * The arrows of a way: one after another, then, fading in as these fade out, all from the start of the word. from,
   * to: the part that the axes hold; whole: the end of a line in the same direction with the arrow's true length.
   */
  #arrowsOf(way, { done, part, together }, w) {
    const isOnly = this.data.ways.length === 1;
    const arrows = [];
    const add = (from, to, { stretch, ...more }, t) =>
      arrows.push({ from, to: between(from, to, t), whole: between(from, to, t * stretch), ...more });
    const looks = (step) => ({ stretch: step.stretch, label: step.label, size: step.size,
      colour: isOnly ? (OF_KIND[step.of ?? step.kind] ?? "muted") : OF_WAY[w], wide: 2 });
    way.steps.forEach((step, i) => {
      if (i > done || (i === done && part === 0) || step.kind === "state") return;
      const isNow = together === 0 && i === (part > 0 ? done : done - 1);
      const look = { ...looks(step), isNow, alpha: i === 0 ? 1 : 1 - 0.75 * together, ...(isNow ? { wide: 3 } : {}) };
      add(i === 0 ? way.from : way.steps[i - 1].to, step.to, look, i < done ? 1 : part);
    });
    if (together > 0) {
      const begin = way.steps[0].to;
      way.steps.slice(1).forEach((step, i) => {
        const to = step.to.map((value, j) => begin[j] + value - way.steps[i].to[j]);
        add(begin, to, { ...looks(step), isLoose: true, alpha: together }, together);
      });
      const sum = { stretch: way.stretch, colour: isOnly ? "query" : OF_WAY[w], alpha: together, wide: 4 };
      add(begin, way.steps.at(-1).to, sum, together);
    }
    return arrows;
  }

  #line(from, to, wide, colour, alpha = 1) {
    this.context.globalAlpha = alpha;
    line(this.context, [from, to], this.colours[colour], wide);
  }

  #drawArrow({ from, to, whole, colour, label, size, isNow, isLoose, alpha, wide }) {
    const [far, long] = [to, whole].map((end) => Math.hypot(end[0] - from[0], end[1] - from[1]));
    if (long < 0.5) return;
    const [ux, uy] = [(whole[0] - from[0]) / long, (whole[1] - from[1]) / long];
    if (far < HIDDEN.most * long) { // most directions are outside of the picture: a thin line, and a bar at its end
      const side = (by) => [whole[0] - by * uy, whole[1] + by * ux];
      for (const ends of [[to, whole], [side(4), side(-4)]]) this.#line(...ends, HIDDEN.wide, colour, HIDDEN.alpha * alpha);
    }
    if (far >= 0.5) {
      const head = Math.min(4 + 2 * wide, far * 0.6);
      this.#line(from, [to[0] - ux * head, to[1] - uy * head], wide, colour, alpha);
      tip(this.context, to, [ux, uy], head, head * 0.45, this.colours[colour]);
    }
    if (!label || alpha <= 0.3 || (long <= 12 && !isNow)) return;
    const style = { colour, size: isNow ? LARGE : SMALL, weight: isNow ? 1e6 : long, alpha };
    const said = `${label}, ${size < 10 ? size.toPrecision(2) : Math.round(size)}`;
    if (isLoose) this.#labelBeside(said, whole, [ux, uy], 6, style); // arrows from one point are apart only at their ends
    else this.#labelBeside(said, far > 40 ? between(from, to, 0.5) : between(from, whole, 0.6), [-uy, ux], 2 + wide / 2, style);
  }

  #dot(x, y, radius, colour) {
    this.context.globalAlpha = 1;
    dot(this.context, x, y, radius, this.colours[colour]);
  }

  #drawEnds(way, { done }, w) {
    const isOnly = this.data.ways.length === 1;
    const colour = isOnly ? "query" : OF_WAY[w];
    const [x0, y0] = this.#place(way.steps[0].to);
    if (way.steps[0].kind === "state") {
      this.#dot(x0, y0, 4, "ink");
      this.#label(way.steps[0].label, x0, y0 - 12, { colour: "ink", size: LARGE, weight: 1e5 });
    }
    if (done < way.steps.length) return;
    const [x, y] = this.#place(way.steps.at(-1).to);
    this.#dot(x, y, 5, colour);
    const far = Math.hypot(x - x0, y - y0);
    const beside = far < 1 ? [0, -1] : [(x - x0) / far, (y - y0) / far];
    const title = this.width < NARROW ? way.label.split(/[:,]/)[0] : way.label;
    this.#labelBeside(title, [x, y], beside, 8, { colour, size: LARGE, weight: 1e7 });
    const end = this.labels.at(-1);
    const { reads } = way.steps.at(-1);
    const below = (beside[1] > 0 ? 1 : -1) * LARGE * 1.4;
    if (reads) this.#label(`${way.reads}: ${reads.join(", ")}`, end.x, end.y + below, { colour, size: SMALL, weight: 1e6 });
  }

  /** A label moved by its own size and a gap in a direction, in which no line ends. */
  #labelBeside(text, [x, y], [ux, uy], gap, style) {
    const wide = this.#measure(text, style.size);
    const far = Math.min((wide / 2 + gap) / Math.abs(ux), (style.size * 0.65 + gap) / Math.abs(uy));
    this.#label(text, x + ux * far, y + uy * far, style);
  }

  #measure(text, size) {
    this.context.font = font(size);
    return this.context.measureText(text).width;
  }

  #label(text, x, y, { alpha = 1, ...style }) {
    this.labels.push({ text, x, y, alpha, ...style });
  }

  #drawLabels() {
    const { context } = this;
    const taken = [];
    for (const label of this.labels.sort((a, b) => b.weight - a.weight)) {
      if (taken.length >= MOST_LABELS) break;
      const wide = this.#measure(label.text, label.size);
      const x = Math.max(4, Math.min(this.width - wide - 4, label.x - wide / 2));
      const y = Math.max(10, Math.min(this.height - 10, label.y));
      const box = [x - 2, y - label.size * 0.65, x + wide + 2, y + label.size * 0.65];
      if (taken.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3])) continue;
      taken.push(box);
      context.globalAlpha = 0.75 * label.alpha;
      fill(context, box[0], box[1], wide + 4, label.size * 1.3, this.colours.raised);
      this.#write(label.text, x, y, label.colour, label.alpha);
    }
  }

  #write(text, x, y, colour, alpha) {
    this.context.globalAlpha = alpha;
    this.context.fillStyle = this.colours[colour];
    this.context.fillText(text, x, y);
  }

  #drawRuler() {
    const most = 110 / this.unit;
    const power = 10 ** Math.floor(Math.log10(most));
    const length = [5, 2, 1].find((times) => times * power <= most) * power;
    const [x, y] = [12, this.height - 12];
    this.#line([x, y], [x + length * this.unit, y], 2, "muted");
    this.context.font = font(SMALL);
    this.#write(`length ${Number(length.toPrecision(1))}`, x, y - 10, "muted", 1);
  }
}
