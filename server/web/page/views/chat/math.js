// Formulas: a subset of TeX as MathML elements. An unknown command is shown as it was written.

const MATHML = "http://www.w3.org/1998/Math/MathML";
const MOST = 5000; // characters
const DEEPEST = 60;

function make(tag, children = [], attributes = {}) {
  const element = document.createElementNS(MATHML, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const known = new Map();

/** By its name or number (#169) in HTML, from the browser's own table; "" if there is none. */
export function characterOf(name) {
  if (!/^#?\w+$/.test(name)) return "";
  if (!known.has(name)) {
    const { textContent } = new DOMParser().parseFromString(`&${name};`, "text/html").documentElement;
    known.set(name, textContent.length > 2 ? "" : textContent); // an unknown name stays
  }
  return known.get(name);
}

const words = (text) => Object.fromEntries(Array.from(text.matchAll(/(\S+) (\S+)/g), ([, name, sign]) => [name, sign]));
const list = (text) => new Set(text.split(/\s+/));

// commands with another name in HTML
const OTHERS = words(`epsilon ϵ varepsilon ε phi ϕ varphi φ infty ∞ partial ∂ degree ° cdot ⋅ ast ∗ star ⋆ circ ∘ bullet ∙ land ∧ lor ∨
  neg ¬ lnot ¬ neq ≠ exists ∃ to → implies ⟹ iff ⟺ vdots ⋮ cdots ⋯ ldots … dots … ddots ⋱ lVert ‖ rVert ‖ lvert | rvert | blacksquare ■
  iint ∬ gets ← colon :`);
const LETTER = /^[\p{L}∞∂∇∅∠°⊤⊥]$/u;
const LARGE = /^[∏-∑⋀-⋃⨀-⨆]$/; // with limits below and above
const NAMES = list("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp det dim ker deg gcd hom arg Pr");
const LIMITS = list("lim limsup liminf max min sup inf argmax argmin");
const ACCENTS = words("hat ^ widehat ^ bar ¯ overline ¯ tilde ~ widetilde ~ vec → dot ˙ ddot ¨ overrightarrow → check ˇ breve ˘");
const FONTS = { mathbf: "bold", boldsymbol: "bold", bm: "bold", mathbb: "double", mathcal: "script", mathscr: "script", mathfrak: "fraktur",
  mathrm: "normal", mathit: "", mathsf: "normal" };
const SPACES = { ",": 0.17, ":": 0.22, ">": 0.22, ";": 0.28, "!": -0.17, " ": 0.25, quad: 1, qquad: 2, enspace: 0.5 };
const FENCES = { matrix: "", pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", Vmatrix: "‖‖", cases: "{", aligned: "",
  align: "", "align*": "", gathered: "", array: "", equation: "", "equation*": "", split: "" };
const IGNORED = list("limits nolimits displaystyle textstyle nonumber big Big bigg Bigg bigl bigr Bigl Bigr tag label hline");

/** The source itself where it is too long or nested too deeply. */
export function mathOf(source, isDisplay) {
  try {
    if (source.length > MOST) throw new RangeError("too long");
    const content = new Reader(source.match(/\\[a-zA-Z]+\*?|\\[\s\S]|[\s\S]/gu) ?? []).row();
    return make("math", [make("mrow", content)], isDisplay ? { display: "block" } : {});
  } catch {
    const code = document.createElement("code");
    code.textContent = source;
    return code;
  }
}

const fence = (sign) => (sign ? [make("mo", [sign], { fence: "true", stretchy: "true" })] : []);
const named = (name, more) => make("mi", [name], { mathvariant: "normal", ...more });

class Reader {
  #tokens;
  #place = 0;
  #depth = 0;
  #font = "";

  constructor(tokens) {
    this.#tokens = tokens;
  }

  #next() {
    this.#place += 1;
    return this.#tokens[this.#place - 1];
  }

  /** The next token that is no space. */
  #peek() {
    while (/^\s$/.test(this.#tokens[this.#place])) this.#place += 1;
    return this.#tokens[this.#place];
  }

  #take(token) {
    const isNext = this.#peek() === token;
    if (isNext) this.#place += 1;
    return isNext;
  }

  /** Up to one of the ends, which is not taken. */
  row(ends = []) {
    this.#depth += 1;
    if (this.#depth > DEEPEST) throw new RangeError("nested too deeply");
    const found = [];
    while (this.#peek() !== undefined && !ends.includes(this.#peek())) found.push(this.#scripted());
    this.#depth -= 1;
    return found.filter(Boolean);
  }

  /** Up to an end, which is taken, as one. */
  #group(end) {
    const row = this.row([end]);
    this.#next();
    return row.length === 1 ? row[0] : make("mrow", row);
  }

  #scripted() {
    let base = /^[_^]$/.test(this.#peek()) ? make("mrow") : this.#element();
    const hasLimits = base?.hasAttribute("data-limits");
    let [below, above] = [null, null];
    for (;;) {
      if (!below && this.#take("_")) below = this.#argument();
      else if (!above && this.#take("^")) above = this.#argument();
      else if (base && this.#take("'")) base = make("msup", [base, make("mo", ["′"])]);
      else break;
    }
    if (!below && !above) return base;
    const tag = below && above ? ["msubsup", "munderover"] : below ? ["msub", "munder"] : ["msup", "mover"];
    return make(tag[Number(hasLimits)], [base ?? make("mrow"), below, above].filter(Boolean));
  }

  /** In braces, or one element. */
  #argument() {
    if (this.#take("{")) return this.#group("}");
    return (this.#peek() !== undefined && this.#element()) || make("mrow");
  }

  #text() {
    if (!this.#take("{")) return this.#next() ?? "";
    let [text, open] = ["", 1];
    for (let token = this.#next(); token !== undefined; token = this.#next()) {
      open += { "{": 1, "}": -1 }[token] ?? 0;
      if (open === 0) break;
      text += /^\\.$/.test(token) ? token[1] : token;
    }
    return text;
  }

  #element() {
    const token = this.#next();
    if (token === "{") return this.#group("}");
    if (token === "}" || token === "&") return null;
    if (token[0] === "\\") return this.#command(token.slice(1));
    if (/\d/.test(token)) {
      let digits = token;
      while (/^[\d.]$/.test(this.#tokens[this.#place])) digits += this.#next();
      return make("mn", [digits]);
    }
    if (/\p{L}/u.test(token)) return this.#letter(token);
    return make("mo", [{ "-": "−", "*": "∗" }[token] ?? token], /[()[\]|/]/.test(token) ? { stretchy: "false" } : {});
  }

  #letter(letter) {
    if (!this.#font) return make("mi", [letter]);
    if (this.#font === "double") return named(characterOf(`${letter}opf`) || letter);
    return named(letter, this.#font === "normal" ? {} : { class: `math-${this.#font}` });
  }

  #command(name) {
    if (NAMES.has(name)) return named(name);
    if (LIMITS.has(name)) return named(name, { "data-limits": "" });
    if (Object.hasOwn(ACCENTS, name)) return make("mover", [this.#argument(), make("mo", [ACCENTS[name]])], { accent: "true" });
    if (Object.hasOwn(SPACES, name)) return make("mspace", [], { width: `${SPACES[name]}em` });
    if (IGNORED.has(name)) return null;
    if (/^[{}%$#&_|]$/.test(name)) return make("mo", [name === "|" ? "‖" : name]);
    return this.#structure(name) ?? symbolOf(name, (letter) => this.#letter(letter)) ?? make("mtext", [`\\${name}`]);
  }

  /** Undefined for a command without arguments. */
  #structure(name) {
    if (/^[dt]?frac$/.test(name)) return make("mfrac", [this.#argument(), this.#argument()]);
    if (/^[dt]?binom$/.test(name)) {
      const pair = make("mfrac", [this.#argument(), this.#argument()], { linethickness: "0" });
      return make("mrow", [make("mo", ["("]), pair, make("mo", [")"])]);
    }
    if (name === "sqrt") {
      if (!this.#take("[")) return make("msqrt", [this.#argument()]);
      const degree = this.#group("]");
      return make("mroot", [this.#argument(), degree]);
    }
    if (/^(text|textbf|textit|textrm|mbox)$/.test(name)) return make("mtext", [this.#text()]);
    if (name === "operatorname") return named(this.#text());
    if (Object.hasOwn(FONTS, name)) {
      const before = this.#font;
      this.#font = FONTS[name];
      const content = this.#argument();
      this.#font = before;
      return content;
    }
    if (name === "underline") return make("munder", [this.#argument(), make("mo", ["_"])]);
    if (name === "overbrace") return make("mover", [this.#argument(), make("mo", ["⏞"])], { "data-limits": "" });
    if (name === "underbrace") return make("munder", [this.#argument(), make("mo", ["⏟"])], { "data-limits": "" });
    if (name === "not") return make("mo", [`${this.#argument().textContent}\u0338`.normalize()]);
    if (name === "boxed") return make("mrow", [this.#argument()], { class: "math-boxed" });
    if (name === "left") {
      const inside = [...this.#bracket(), ...this.row(["\\right"])];
      this.#next();
      return make("mrow", [...inside, ...this.#bracket()]);
    }
    return name === "begin" ? this.#environment(this.#text()) : undefined;
  }

  #bracket() {
    const token = this.#peek() ?? ".";
    this.#next();
    if (token[0] !== "\\") return fence(token === "." ? "" : token);
    const name = token.slice(1);
    return fence(name === "|" ? "‖" : OTHERS[name] || characterOf(name) || name[0]);
  }

  #environment(name) {
    if (!Object.hasOwn(FENCES, name)) return make("mtext", [`\\begin{${name}}`]);
    if (name === "array") this.#text(); // its columns
    const rows = [[]];
    for (;;) {
      rows.at(-1).push(make("mtd", this.row(["&", "\\\\", "\\end"])));
      const token = this.#next();
      if (token === "\\\\") rows.push([]);
      else if (token !== "&") break;
    }
    this.#text(); // the name again
    const full = rows.filter((row) => row.some(({ childNodes }) => childNodes.length)).map((row) => make("mtr", row));
    const [open, close] = FENCES[name];
    const table = make("mtable", full, { class: /^(align|split|cases)/.test(name) ? "math-aligned" : "" });
    return make("mrow", [...fence(open), table, ...fence(close)]);
  }
}

/** Null for other commands than characters. */
function symbolOf(name, letterOf) {
  const sign = Object.hasOwn(OTHERS, name) ? OTHERS[name] : characterOf(name);
  if (sign === "") return null;
  if (LETTER.test(sign)) return letterOf(sign);
  return make("mo", [sign], LARGE.test(sign) ? { "data-limits": "" } : {});
}
