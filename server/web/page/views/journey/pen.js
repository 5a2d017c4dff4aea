// Draws in scene coordinates with the methods of SvgContext: on a canvas or in a saved file.
import { MONO, SANS, fill, frame, line, tip, upwards } from "../../parts/ink.js";
const SMALLEST = 10; // CSS pixels of any letter
const THICKEST = 7; // CSS pixels of any line
const HIDDEN = 7.5; // a text that would be smaller than this is left out
const TALL = 1.15; // the height of a line, relative to its letters
const APART = 1; // CSS pixels between two texts

const widths = new Map(); // of texts at 10 px, by font and text

function widthOf(context, text, size, family = SANS, weight = "") {
  const key = `${weight}${family}${text}`;
  if (!widths.has(key)) {
    if (widths.size > 4000) widths.clear();
    context.font = `${weight}10px ${family}`;
    widths.set(key, context.measureText(text).width);
  }
  return (widths.get(key) * size) / 10;
}

/** The text, cut with … to fit a width. */
export function fitted(context, text, room, ...font) {
  const wide = widthOf(context, text, ...font);
  if (wide <= room) return text;
  let kept = Math.max(1, Math.floor((text.length * room) / wide) - 1);
  while (kept > 1 && widthOf(context, `${text.slice(0, kept)}…`, ...font) > room) kept -= 1;
  return `${text.slice(0, kept)}…`;
}

const meets = (a, b) => a.x < b.x + b.width + APART && b.x < a.x + a.width + APART && a.y < b.y + b.height && b.y < a.y + a.height;

export function linesOf(context, text, room, size) {
  const lines = [""];
  for (const word of text.split(/\s+/)) {
    const longer = lines.at(-1) === "" ? word : `${lines.at(-1)} ${word}`;
    if (widthOf(context, longer, size) <= room) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

export class Pen {
  texts = []; // kept for `write`
  drawn = []; // texts with their boxes in CSS pixels
  omitted = [];

  constructor(context, { width, height, colours, camera }) {
    Object.assign(this, { context, colours, size: { width, height }, scale: width / camera.span });
    this.left = width / 2 - camera.x * this.scale;
    this.top = height / 2 - camera.y * this.scale;
  }

  x = (x) => this.left + x * this.scale;
  y = (y) => this.top + y * this.scale;

  /** [whether it is seen, its place in CSS pixels, the rest] of arguments that begin with a box or four numbers. */
  #split(args) {
    const [x, y, width, height, ...rest] = typeof args[0] === "object" ? [...["x", "y", "width", "height"].map((side) => args[0][side]),
      ...args.slice(1)] : args;
    const place = [this.x(x), this.y(y), width * this.scale, height * this.scale];
    const isSeen = place[0] < this.size.width && place[1] < this.size.height && place[0] + place[2] > 0 && place[1] + place[3] > 0;
    return [isSeen, place, rest];
  }

  sees = (...args) => this.#split(args)[0];

  #with(alpha = 1, draw) {
    this.context.globalAlpha = alpha;
    draw(this.context);
    this.context.globalAlpha = 1;
  }

  rect(...args) {
    const [isSeen, place, [colour, alpha]] = this.#split(args);
    if (isSeen) this.#with(alpha, (context) => fill(context, ...place, this.colours[colour]));
  }

  /** Hides kept texts too. */
  cover(...args) {
    this.rect(...args);
    const [, [x, y, width, height]] = this.#split(args);
    this.texts = this.texts.filter((each) => !meets(each.box, { x, y, width, height }));
  }

  /** The last argument: thickness in CSS pixels. */
  edge(...args) {
    const [isSeen, place, [colour, thickness = 1]] = this.#split(args);
    if (isSeen) frame(this.context, ...place, this.colours[colour], thickness);
  }

  /** thickness in units of the scene, 1 to 7 CSS pixels. */
  line(points, colour, { thickness = 2, alpha = 1, isArrow = false } = {}) {
    this.#with(alpha, (context) => {
      const wide = Math.max(1, Math.min(thickness * this.scale, THICKEST));
      line(context, points.map(([x, y]) => [this.x(x), this.y(y)]), this.colours[colour], wide);
      if (isArrow) this.#head(points.at(-2), points.at(-1), colour);
    });
  }

  #head([fromX, fromY], [toX, toY], colour) {
    const size = Math.max(5, Math.min(12, 14 * this.scale));
    const far = Math.hypot(toX - fromX, toY - fromY) || 1;
    const along = [(toX - fromX) / far, (toY - fromY) / far];
    tip(this.context, [this.x(toX), this.y(toY)], along, 0.9 * size, 0.43 * size, this.colours[colour]);
  }

  /** [x, y, radius] of one colour, as one shape. */
  circles(all, colour, alpha = 1) {
    this.#with(alpha, (context) => {
      context.fillStyle = this.colours[colour];
      context.beginPath();
      for (const [x, y, radius] of all) {
        const r = radius * this.scale;
        if (r < 0.3) continue;
        context.moveTo(this.x(x) + r, this.y(y));
        context.arc(this.x(x), this.y(y), r, 0, 2 * Math.PI);
      }
      context.fill();
    });
  }

  hatch(all, colour, alpha = 1) {
    this.#with(alpha, (context) => {
      context.strokeStyle = this.colours[colour];
      context.lineWidth = 1;
      context.beginPath();
      for (const each of all) {
        const [isSeen, [left, top, wide, tall]] = this.#split(each);
        if (!isSeen) continue;
        const step = Math.max(4, tall / 4);
        for (let at = step; at < wide + tall; at += step) {
          context.moveTo(left + Math.max(0, at - tall), top + Math.min(at, tall));
          context.lineTo(left + Math.min(at, wide), top + Math.max(0, at - wide));
        }
      }
      context.stroke();
    });
  }

  image(canvas, ...args) {
    const [isSeen, place, [alpha]] = this.#split(args);
    if (!isSeen) return;
    this.#with(alpha, (context) => {
      context.imageSmoothingEnabled = false;
      context.drawImage(canvas, ...place);
    });
  }

  /**
   * Keep a text for `write`. size and room in units of the scene; it has 10 to `most` CSS pixels, and is omitted where it would
   * have less than 7.5, unless isAlways.
   */
  text(text, x, y, { size = 14, most = Math.min(17, size), align = "left", colour = "ink", family = SANS, weight = "", room = null,
    isUpright = false, isAlways = false } = {}) {
    if (!text || (size * this.scale < HIDDEN && !isAlways)) return;
    const pixels = Math.round(Math.max(SMALLEST, Math.min(most, size * this.scale)));
    const [left, top] = [this.x(x), this.y(y)];
    const shown = room === null ? text : fitted(this.context, text, room * this.scale, pixels, family, weight);
    const long = widthOf(this.context, shown, pixels, family, weight);
    if (left < -long || top < -long || left > this.size.width + long || top > this.size.height + long) return;
    const before = { left: 0, center: 0.5, right: 1 }[align] * long;
    const tall = pixels * TALL;
    const box = isUpright ? { x: left - tall / 2, y: top - long + before, width: tall, height: long }
      : { x: left - before, y: top - tall / 2, width: long, height: tall };
    this.texts.push({ text: shown, left, top, box, font: `${weight}${pixels}px ${family}`, colour, align, isUpright,
      rank: Number(weight !== "") + Number(isAlways) });
  }

  number(text, x, y, more) {
    this.text(text, x, y, { family: MONO, align: "center", ...more });
  }

  /** Bold texts first. A text that crosses the edge or an earlier text is omitted. */
  write() {
    const { context, size } = this;
    const isIn = ({ x, y, width, height }) => x >= 0 && y >= 0 && x + width <= size.width && y + height <= size.height;
    context.textBaseline = "middle";
    for (const each of this.texts.sort((a, b) => b.rank - a.rank)) {
      const isFree = isIn(each.box) && !this.drawn.some(({ box }) => meets(box, each.box));
      (isFree ? this.drawn : this.omitted).push(each);
      if (!isFree) continue;
      context.font = each.font;
      context.fillStyle = this.colours[each.colour];
      context.textAlign = each.align;
      if (each.isUpright) upwards(context, each.left, each.top, () => context.fillText(each.text, 0, 0));
      else context.fillText(each.text, each.left, each.top);
    }
  }
}
