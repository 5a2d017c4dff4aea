// Two painters with the same few strokes: one draws with WebGL2, the other with a 2D context where there is no
// WebGL2. scene.js determines the drawing; all numbers are CSS pixels.

const FAMILY = "system-ui, sans-serif";
const ATLAS = 1024; // pixels of each side of the texture that holds the letters
const CORNERS = 12; // of a dot
const FLOATS = 8; // of a vertex: place, place in the texture, colour

const font = (size) => `600 ${size}px ${FAMILY}`;

/** A painter on the canvas: {name, begin(width, height, scale, ground), line, triangle, rect, dot, text, measure, end()}. */
export function painterOf(canvas) {
  const gl = canvas.getContext("webgl2", { alpha: false, antialias: true });
  if (gl) return new GlPainter(gl);
  return new PlainPainter(canvas.getContext("2d"));
}

const known = new Map();

/** A colour of the page, "#rrggbb", as numbers from 0 to 1. */
function rgbOf(colour) {
  if (!known.has(colour)) {
    const value = parseInt(colour.slice(1), 16);
    known.set(colour, [(value >> 16) / 255, ((value >> 8) & 255) / 255, (value & 255) / 255]);
  }
  return known.get(colour);
}

/** The painter of a 2D context, or of an object with the same methods. */
export class PlainPainter {
  name = "2D canvas";

  constructor(context) {
    this.context = context;
  }

  begin(width, height, scale, ground) {
    this.context.setTransform?.(scale, 0, 0, scale, 0, 0);
    this.context.globalAlpha = 1;
    this.context.fillStyle = ground;
    this.context.fillRect(0, 0, width, height);
  }

  line(x0, y0, x1, y1, wide, colour, alpha) {
    const { context } = this;
    context.globalAlpha = alpha;
    context.strokeStyle = colour;
    context.lineWidth = wide;
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
    context.stroke();
  }

  triangle(x0, y0, x1, y1, x2, y2, colour, alpha) {
    const { context } = this;
    context.globalAlpha = alpha;
    context.fillStyle = colour;
    context.beginPath();
    context.moveTo(x0, y0);
    context.lineTo(x1, y1);
    context.lineTo(x2, y2);
    context.fill();
  }

  rect(x, y, width, height, colour, alpha) {
    this.context.globalAlpha = alpha;
    this.context.fillStyle = colour;
    this.context.fillRect(x, y, width, height);
  }

  dot(x, y, radius, colour, alpha) {
    this.context.globalAlpha = alpha;
    this.context.fillStyle = colour;
    this.context.beginPath();
    this.context.arc(x, y, radius, 0, 2 * Math.PI);
    this.context.fill();
  }

  measure(text, size) {
    this.context.font = font(size);
    return this.context.measureText(text).width;
  }

  /** Write a text from x to the right, vertically centred at y. */
  text(text, x, y, size, colour, alpha) {
    const { context } = this;
    context.font = font(size);
    context.textBaseline = "middle";
    context.globalAlpha = alpha;
    context.fillStyle = colour;
    context.fillText(text, x, y);
  }

  end() {}

  release() {}
}

const VERTEX = `#version 300 es
uniform vec2 size;
in vec2 place; in vec2 letter; in vec4 colour;
out vec2 at; out vec4 ink;
void main() {
  gl_Position = vec4(place.x / size.x * 2.0 - 1.0, 1.0 - place.y / size.y * 2.0, 0.0, 1.0);
  at = letter;
  ink = colour;
}`;
const FRAGMENT = `#version 300 es
precision mediump float;
uniform sampler2D letters;
in vec2 at; in vec4 ink;
out vec4 shown;
void main() {
  shown = vec4(ink.rgb, ink.a * (at.x < 0.0 ? 1.0 : texture(letters, at).a));
}`;

class GlPainter {
  constructor(gl) {
    this.gl = gl;
    this.name = `WebGL2, ${nameOf(gl)}`;
    this.vertices = new Float32Array(4096 * FLOATS);
    this.letters = document.createElement("canvas").getContext("2d", { willReadFrequently: false });
    this.letters.canvas.width = ATLAS;
    this.letters.canvas.height = ATLAS;
    this.scale = 0;
    this.#prepare();
  }

  #prepare() {
    const { gl } = this;
    const program = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    gl.useProgram(program);
    this.size = gl.getUniformLocation(program, "size");
    gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
    for (const [name, count, first] of [["place", 2, 0], ["letter", 2, 2], ["colour", 4, 4]]) {
      const place = gl.getAttribLocation(program, name);
      gl.enableVertexAttribArray(place);
      gl.vertexAttribPointer(place, count, gl.FLOAT, false, 4 * FLOATS, 4 * first);
    }
    gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_MIN_FILTER, gl.LINEAR);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_WRAP_S, gl.CLAMP_TO_EDGE);
    gl.texParameteri(gl.TEXTURE_2D, gl.TEXTURE_WRAP_T, gl.CLAMP_TO_EDGE);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.SRC_ALPHA, gl.ONE_MINUS_SRC_ALPHA);
  }

  begin(width, height, scale, ground) {
    const { gl } = this;
    this.count = 0;
    if (scale !== this.scale) this.#forgetLetters(scale);
    gl.viewport(0, 0, gl.drawingBufferWidth, gl.drawingBufferHeight);
    gl.clearColor(...rgbOf(ground), 1);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.uniform2f(this.size, width, height);
  }

  #forgetLetters(scale) {
    this.scale = scale;
    this.words = new Map();
    this.pen = [2, 2];
    this.letters.clearRect(0, 0, ATLAS, ATLAS);
    this.isNew = true;
  }

  #vertex(x, y, u, v, [red, green, blue], alpha) {
    if ((this.count + 1) * FLOATS > this.vertices.length) {
      const more = new Float32Array(this.vertices.length * 2);
      more.set(this.vertices);
      this.vertices = more;
    }
    const { vertices } = this;
    const first = this.count * FLOATS;
    vertices[first] = x;
    vertices[first + 1] = y;
    vertices[first + 2] = u;
    vertices[first + 3] = v;
    vertices[first + 4] = red;
    vertices[first + 5] = green;
    vertices[first + 6] = blue;
    vertices[first + 7] = alpha;
    this.count += 1;
  }

  triangle(x0, y0, x1, y1, x2, y2, colour, alpha) {
    const rgb = rgbOf(colour);
    this.#vertex(x0, y0, -1, 0, rgb, alpha);
    this.#vertex(x1, y1, -1, 0, rgb, alpha);
    this.#vertex(x2, y2, -1, 0, rgb, alpha);
  }

  line(x0, y0, x1, y1, wide, colour, alpha) {
    const far = Math.hypot(x1 - x0, y1 - y0) || 1;
    const [dx, dy] = [((y0 - y1) / far) * (wide / 2), ((x1 - x0) / far) * (wide / 2)];
    this.triangle(x0 + dx, y0 + dy, x1 + dx, y1 + dy, x1 - dx, y1 - dy, colour, alpha);
    this.triangle(x0 + dx, y0 + dy, x1 - dx, y1 - dy, x0 - dx, y0 - dy, colour, alpha);
  }

  rect(x, y, width, height, colour, alpha) {
    this.line(x, y + height / 2, x + width, y + height / 2, height, colour, alpha);
  }

  dot(x, y, radius, colour, alpha) {
    const corner = (i) => [x + radius * Math.cos((i / CORNERS) * 2 * Math.PI), y + radius * Math.sin((i / CORNERS) * 2 * Math.PI)];
    for (let i = 0; i < CORNERS; i += 1) this.triangle(x, y, ...corner(i), ...corner(i + 1), colour, alpha);
  }

  measure(text, size) {
    return this.#word(text, size).width;
  }

  /** The place of a text in the texture; the text is drawn there at its first use. */
  #word(text, size) {
    const name = `${size} ${text}`;
    if (!this.words.has(name)) {
      const { letters, scale } = this;
      letters.font = font(size * scale);
      const [wide, tall] = [Math.ceil(letters.measureText(text).width) + 2, Math.ceil(size * scale * 1.5)];
      if (this.pen[0] + wide > ATLAS) this.pen = [2, this.pen[1] + Math.ceil(tall * 1.3)];
      if (this.pen[1] + tall > ATLAS) this.#forgetLetters(scale); // more texts than one picture has
      const [x, y] = this.pen;
      letters.textBaseline = "middle";
      letters.fillStyle = "#ffffff";
      letters.fillText(text, x, y + tall / 2);
      this.words.set(name, { x, y, wide, tall, width: wide / scale });
      this.pen = [x + wide + 2, y];
      this.isNew = true;
    }
    return this.words.get(name);
  }

  text(text, x, y, size, colour, alpha) {
    const word = this.#word(text, size);
    const [wide, tall] = [word.wide / this.scale, word.tall / this.scale];
    const rgb = rgbOf(colour);
    const corner = (right, down) => this.#vertex(x + right * wide, y + (down - 0.5) * tall,
      (word.x + right * word.wide) / ATLAS, (word.y + down * word.tall) / ATLAS, rgb, alpha);
    for (const [right, down] of [[0, 0], [1, 0], [1, 1], [0, 0], [1, 1], [0, 1]]) corner(right, down);
  }

  end() {
    const { gl } = this;
    if (this.isNew) gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, gl.RGBA, gl.UNSIGNED_BYTE, this.letters.canvas);
    this.isNew = false;
    gl.bufferData(gl.ARRAY_BUFFER, this.vertices.subarray(0, this.count * FLOATS), gl.DYNAMIC_DRAW);
    gl.drawArrays(gl.TRIANGLES, 0, this.count);
  }

  /** Release the graphics memory: browsers allow few such contexts. */
  release() {
    this.gl.getExtension("WEBGL_lose_context")?.loseContext();
  }
}

/** Name of the renderer: the graphics card, or a software renderer on the CPU. */
function nameOf(gl) {
  const info = gl.getExtension("WEBGL_debug_renderer_info");
  return info ? gl.getParameter(info.UNMASKED_RENDERER_WEBGL) : "its name is kept secret";
}
