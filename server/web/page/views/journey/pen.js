// Draws the camera's view in scene coordinates, using only methods of SvgContext: on a canvas or in a saved file.

const MONO = "ui-monospace, monospace";
const SANS = "system-ui, sans-serif";
const SMALLEST = 10; // CSS pixels of any letter
const THICKEST = 7; // CSS pixels of any line
const HIDDEN = 7.5; // a text that would be smaller than this is left out

const widths = new Map(); // of texts at 10 px, by font and text

/** The width of a text in CSS pixels, cached because every frame needs it. */
export function widthOf(context, text, size, family, weight = "") {
  const key = `${weight}${family}${text}`;
  let width = widths.get(key);
  if (width === undefined) {
    if (widths.size > 4000) widths.clear();
    context.font = `${weight}10px ${family}`;
    width = context.measureText(text).width;
    widths.set(key, width);
  }
  return (width * size) / 10;
}

/** The text, cut with … if it is wider than the space. */
export function fitted(context, text, room, size, family, weight) {
  if (widthOf(context, text, size, family, weight) <= room) return text;
  let kept = Math.max(1, Math.floor((text.length * room) / widthOf(context, text, size, family, weight)) - 1);
  while (kept > 1 && widthOf(context, `${text.slice(0, kept)}…`, size, family, weight) > room) kept -= 1;
  return `${text.slice(0, kept)}…`;
}

export class Pen {
  /** view: {width, height} of the picture in CSS pixels; middle: the height of the camera's centre in it. */
  constructor(context, { width, height, middle, colours, camera }) {
    this.context = context;
    this.colours = colours;
    this.size = { width, height };
    this.scale = width / camera.span;
    this.left = width / 2 - camera.x * this.scale;
    this.top = middle - camera.y * this.scale;
  }

  x = (x) => this.left + x * this.scale;
  y = (y) => this.top + y * this.scale;

  /** Whether a part of the rectangle is in the picture. */
  sees(x, y, width, height) {
    const [left, top] = [this.x(x), this.y(y)];
    return left < this.size.width && top < this.size.height && left + width * this.scale > 0 && top + height * this.scale > 0;
  }

  rect(x, y, width, height, colour, alpha = 1) {
    if (!this.sees(x, y, width, height)) return;
    this.context.globalAlpha = alpha;
    this.context.fillStyle = colour;
    this.context.fillRect(this.x(x), this.y(y), width * this.scale, height * this.scale);
    this.context.globalAlpha = 1;
  }

  /** The edge of a rectangle; thickness in CSS pixels. */
  edge(x, y, width, height, colour, thickness = 1) {
    if (!this.sees(x, y, width, height)) return;
    this.context.strokeStyle = colour;
    this.context.lineWidth = thickness;
    this.context.strokeRect(this.x(x), this.y(y), width * this.scale, height * this.scale);
  }

  /** A line through points [[x, y], …]; thickness in units of the scene, 1 to 7 CSS pixels; an arrow's head at the end. */
  line(points, colour, { thickness = 2, alpha = 1, isArrow = false } = {}) {
    const { context } = this;
    context.globalAlpha = alpha;
    context.strokeStyle = colour;
    context.lineWidth = Math.max(1, Math.min(thickness * this.scale, THICKEST));
    context.beginPath();
    points.forEach(([x, y], i) => (i ? context.lineTo(this.x(x), this.y(y)) : context.moveTo(this.x(x), this.y(y))));
    context.stroke();
    if (isArrow) this.#head(points.at(-2), points.at(-1), colour);
    context.globalAlpha = 1;
  }

  #head([fromX, fromY], [toX, toY], colour) {
    const { context } = this;
    const angle = Math.atan2(toY - fromY, toX - fromX);
    const size = Math.max(5, Math.min(12, 14 * this.scale));
    const corner = (turn) => [this.x(toX) - size * Math.cos(angle + turn), this.y(toY) - size * Math.sin(angle + turn)];
    context.fillStyle = colour;
    context.beginPath();
    context.moveTo(this.x(toX), this.y(toY));
    context.lineTo(...corner(0.45));
    context.lineTo(...corner(-0.45));
    context.closePath();
    context.fill();
  }

  /** Circles [[x, y, radius], …] of one colour, as one shape. */
  circles(all, colour, alpha = 1) {
    const { context } = this;
    context.globalAlpha = alpha;
    context.fillStyle = colour;
    context.beginPath();
    for (const [x, y, radius] of all) {
      const r = radius * this.scale;
      if (r < 0.3) continue;
      context.moveTo(this.x(x) + r, this.y(y));
      context.arc(this.x(x), this.y(y), r, 0, 2 * Math.PI);
    }
    context.fill();
    context.globalAlpha = 1;
  }

  /** Slanted lines in rectangles [[x, y, width, height], …]: masked cells. */
  hatch(all, colour, alpha = 1) {
    const { context } = this;
    context.globalAlpha = alpha;
    context.strokeStyle = colour;
    context.lineWidth = 1;
    context.beginPath();
    for (const [x, y, width, height] of all) {
      if (!this.sees(x, y, width, height)) continue;
      const [left, top] = [this.x(x), this.y(y)];
      const [wide, tall] = [width * this.scale, height * this.scale];
      const step = Math.max(4, tall / 4);
      for (let at = step; at < wide + tall; at += step) {
        context.moveTo(left + Math.max(0, at - tall), top + Math.min(at, tall));
        context.lineTo(left + Math.min(at, wide), top + Math.max(0, at - wide));
      }
    }
    context.stroke();
    context.globalAlpha = 1;
  }

  /** A small canvas, with one cell per pixel. */
  image(canvas, x, y, width, height, alpha = 1) {
    if (!this.sees(x, y, width, height)) return;
    this.context.globalAlpha = alpha;
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(canvas, this.x(x), this.y(y), width * this.scale, height * this.scale);
    this.context.globalAlpha = 1;
  }

  /**
   * A text at a point. Its size is in units of the scene, limited to 10 to `most` CSS pixels; below 7.5 CSS pixels it
   * is omitted. room: its largest width in units of the scene; isUpright: it reads upwards.
   */
  text(text, x, y, { size = 14, most = 16, align = "left", colour = "ink", family = SANS, weight = "", room = null, alpha = 1,
    isUpright = false, isAlways = false } = {}) {
    const wanted = size * this.scale;
    if (wanted < HIDDEN && !isAlways) return;
    const { context } = this;
    const pixels = Math.round(Math.max(SMALLEST, Math.min(most, wanted)));
    const [left, top] = [this.x(x), this.y(y)];
    if (left < -400 || top < -40 || left > this.size.width + 400 || top > this.size.height + 40) return;
    const shown = room === null ? text : fitted(context, text, room * this.scale, pixels, family, weight);
    context.globalAlpha = alpha;
    context.font = `${weight}${pixels}px ${family}`;
    context.fillStyle = this.colours[colour] ?? colour;
    context.textAlign = align;
    context.textBaseline = "middle";
    if (isUpright) {
      context.save();
      context.translate(left, top);
      context.rotate(-Math.PI / 2);
      context.fillText(shown, 0, 0);
      context.restore();
    } else {
      context.fillText(shown, left, top);
    }
    context.globalAlpha = 1;
  }

  /** A number, in the font of numbers. */
  number(text, x, y, more) {
    this.text(text, x, y, { family: MONO, align: "center", ...more });
  }
}

export { MONO, SANS };
