// A drawing context that writes SVG: only the part of CanvasRenderingContext2D that our pictures use.

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
// XML does not allow control characters, which single-byte tokens may contain.
const escaped = (text) =>
  text.replace(/[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g, "\ufffd").replace(/[&<>"]/g, (sign) => ENTITIES[sign]);
const short = (value) => String(Math.round(value * 100) / 100);
const attributes = (values) => Object.entries(values).filter(([, value]) => value !== undefined)
  .map(([name, value]) => ` ${name}="${typeof value === "number" ? short(value) : value}"`).join("");

export class SvgContext {
  #marks = [];
  #path = "";
  #saved = [];
  #shift = [0, 0];
  #turn = "";
  #dashes = undefined;
  fillStyle = "#000";
  strokeStyle = "#000";
  lineWidth = 1;
  globalAlpha = 1;
  font = "12px sans-serif";
  textAlign = "start";
  textBaseline = "alphabetic";
  imageSmoothingEnabled = true;
  lineCap = "butt";

  constructor(measure) {
    this.measureText = (text) => {
      measure.font = this.font;
      return measure.measureText(text);
    };
  }

  save() {
    this.#saved.push([{ ...this }, this.#shift, this.#turn]);
  }

  restore() {
    const [fields, shift, turn] = this.#saved.pop();
    Object.assign(this, fields);
    [this.#shift, this.#turn] = [shift, turn];
  }

  translate(x, y) {
    if (this.#turn) throw new Error("SvgContext: translate before rotate");
    this.#shift = [this.#shift[0] + x, this.#shift[1] + y];
  }

  rotate(radians) {
    this.#turn = ` rotate(${short((radians * 180) / Math.PI)})`;
  }

  setLineDash(lengths) {
    this.#dashes = lengths.length ? lengths.join(" ") : undefined;
  }

  #mark(tag, values, content = "") {
    const [x, y] = this.#shift;
    const transform = x || y || this.#turn ? `translate(${short(x)} ${short(y)})${this.#turn}` : undefined;
    this.#marks.push(`<${tag}${attributes({ ...values, transform })}>${content}</${tag}>`);
  }

  #opacity() {
    return this.globalAlpha < 1 ? this.globalAlpha : undefined;
  }

  #filled() {
    return { fill: this.fillStyle, opacity: this.#opacity() };
  }

  #stroked() {
    return { fill: "none", stroke: this.strokeStyle, "stroke-width": this.lineWidth, "stroke-linecap": this.lineCap,
      "stroke-dasharray": this.#dashes, opacity: this.#opacity() };
  }

  clearRect() {}

  fillRect(x, y, width, height) {
    this.#mark("rect", { x, y, width, height, ...this.#filled() });
  }

  strokeRect(x, y, width, height) {
    this.#mark("rect", { x, y, width, height, ...this.#stroked() });
  }

  beginPath() {
    this.#path = "";
  }

  moveTo(x, y) {
    this.#path += `M${short(x)} ${short(y)}`;
  }

  lineTo(x, y) {
    this.#path += `L${short(x)} ${short(y)}`;
  }

  bezierCurveTo(...numbers) {
    this.#path += `C${numbers.map(short).join(" ")}`;
  }

  rect(x, y, width, height) {
    this.#path += `M${short(x)} ${short(y)}h${short(width)}v${short(height)}h${short(-width)}z`;
  }

  /** A full circle: our pictures use no other arc. */
  arc(x, y, radius) {
    const r = short(radius);
    const half = (dx) => `a${r} ${r} 0 1 0 ${short(dx)} 0`;
    this.#path += `M${short(x - radius)} ${short(y)}${half(2 * radius)}${half(-2 * radius)}z`;
  }

  closePath() {
    this.#path += "z";
  }

  fill() {
    this.#mark("path", { d: this.#path, ...this.#filled() });
  }

  stroke() {
    this.#mark("path", { d: this.#path, ...this.#stroked() });
  }

  fillText(text, x, y) {
    const anchor = { center: "middle", right: "end", end: "end" }[this.textAlign] ?? "start";
    const baseline = { middle: "central", top: "hanging" }[this.textBaseline] ?? "auto";
    const [, size, family] = /([\d.]+)px (.*)$/.exec(this.font);
    const weight = /^(bold|[56789]00)/.test(this.font) ? "bold" : undefined;
    const font = { "font-size": size, "font-family": escaped(family), "font-weight": weight };
    const place = { x, y, "text-anchor": anchor, "dominant-baseline": baseline };
    this.#mark("text", { ...place, ...font, ...this.#filled() }, escaped(String(text)));
  }

  drawImage(image, x, y, width, height) {
    const style = { preserveAspectRatio: "none", style: "image-rendering:pixelated" };
    this.#mark("image", { x, y, width, height, ...style, href: image.toDataURL() });
  }

  document(width, height, background) {
    const size = attributes({ width, height, viewBox: `0 0 ${width} ${height}` });
    const ground = `<rect width="100%" height="100%" fill="${background}"/>`;
    return `<svg xmlns="http://www.w3.org/2000/svg"${size}>${ground}${this.#marks.join("")}</svg>`;
  }
}
