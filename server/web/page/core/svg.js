// A drawing context that writes SVG: only the part of CanvasRenderingContext2D that our pictures use.

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
// XML does not allow control characters, which single-byte tokens may contain.
const escaped = (text) =>
  text.replace(/[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]/g, "\ufffd").replace(/[&<>"]/g, (sign) => ENTITIES[sign]);
const short = (value) => String(Math.round(value * 100) / 100);

export class SvgContext {
  #marks = [];
  #path = "";
  #saved = [];
  #shift = [0, 0];
  #turn = "";
  fillStyle = "#000";
  strokeStyle = "#000";
  lineWidth = 1;
  globalAlpha = 1;
  font = "12px sans-serif";
  textAlign = "start";
  textBaseline = "alphabetic";
  imageSmoothingEnabled = true;
  lineCap = "butt";
  #dashes = "";

  constructor(measure) {
    this.measureText = (text) => {
      measure.font = this.font;
      return measure.measureText(text);
    };
  }

  save() {
    const { fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline, lineCap } = this;
    const fields = { fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline, lineCap };
    this.#saved.push([fields, [...this.#shift], this.#turn]);
  }

  restore() {
    const [fields, shift, turn] = this.#saved.pop();
    Object.assign(this, fields);
    this.#shift = shift;
    this.#turn = turn;
  }

  translate(x, y) {
    if (this.#turn) throw new Error("SvgContext: translate before rotate");
    this.#shift = [this.#shift[0] + x, this.#shift[1] + y];
  }

  rotate(radians) {
    this.#turn = ` rotate(${short((radians * 180) / Math.PI)})`;
  }

  #place() {
    const [x, y] = this.#shift;
    return x || y || this.#turn ? ` transform="translate(${short(x)} ${short(y)})${this.#turn}"` : "";
  }

  #fill() {
    return ` fill="${this.fillStyle}"${this.globalAlpha < 1 ? ` opacity="${short(this.globalAlpha)}"` : ""}`;
  }

  #stroke() {
    const alpha = this.globalAlpha < 1 ? ` opacity="${short(this.globalAlpha)}"` : "";
    const line = `stroke-width="${short(this.lineWidth)}" stroke-linecap="${this.lineCap}"${this.#dashes}`;
    return ` fill="none" stroke="${this.strokeStyle}" ${line}${alpha}`;
  }

  #rect(x, y, width, height) {
    return `<rect x="${short(x)}" y="${short(y)}" width="${short(width)}" height="${short(height)}"`;
  }

  setLineDash(lengths) {
    this.#dashes = lengths.length ? ` stroke-dasharray="${lengths.join(" ")}"` : "";
  }

  clearRect() {}

  fillRect(x, y, width, height) {
    this.#marks.push(`${this.#rect(x, y, width, height)}${this.#fill()}${this.#place()}/>`);
  }

  strokeRect(x, y, width, height) {
    this.#marks.push(`${this.#rect(x, y, width, height)}${this.#stroke()}${this.#place()}/>`);
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

  bezierCurveTo(a, b, c, d, x, y) {
    this.#path += `C${[a, b, c, d, x, y].map(short).join(" ")}`;
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
    this.#marks.push(`<path d="${this.#path}"${this.#fill()}${this.#place()}/>`);
  }

  stroke() {
    this.#marks.push(`<path d="${this.#path}"${this.#stroke()}${this.#place()}/>`);
  }

  fillText(text, x, y) {
    const anchor = { start: "start", left: "start", center: "middle", right: "end", end: "end" }[this.textAlign];
    const baseline = { middle: "central", top: "hanging" }[this.textBaseline] ?? "auto";
    const [, size, family] = /([\d.]+)px (.*)$/.exec(this.font);
    const weight = /^(bold|[56789]00)/.test(this.font) ? ' font-weight="bold"' : "";
    const font = `font-size="${size}" font-family="${escaped(family)}"${weight}`;
    const stand = `x="${short(x)}" y="${short(y)}" text-anchor="${anchor}" dominant-baseline="${baseline}"`;
    this.#marks.push(`<text ${stand} ${font}${this.#fill()}${this.#place()}>${escaped(String(text))}</text>`);
  }

  /** A canvas as an embedded image, with sharp cells. */
  drawImage(image, x, y, width, height) {
    const place = `x="${short(x)}" y="${short(y)}" width="${short(width)}" height="${short(height)}"`;
    this.#marks.push(
      `<image ${place} preserveAspectRatio="none" style="image-rendering:pixelated" href="${image.toDataURL()}"${this.#place()}/>`,
    );
  }

  /** The whole picture as an SVG document. */
  document(width, height, background) {
    const size = `width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"`;
    const ground = `<rect width="100%" height="100%" fill="${background}"/>`;
    return `<svg xmlns="http://www.w3.org/2000/svg" ${size}>${ground}${this.#marks.join("")}</svg>`;
  }
}
