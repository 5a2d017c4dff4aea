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

const words = (text) => Object.fromEntries(text.trim().split(/\s+/).map((pair) => pair.split(":")));

const LETTERS = words(`alpha:α beta:β gamma:γ delta:δ epsilon:ϵ varepsilon:ε zeta:ζ eta:η theta:θ vartheta:ϑ iota:ι kappa:κ
  lambda:λ mu:μ nu:ν xi:ξ pi:π rho:ρ sigma:σ tau:τ upsilon:υ phi:ϕ varphi:φ chi:χ psi:ψ omega:ω Gamma:Γ Delta:Δ Theta:Θ
  Lambda:Λ Xi:Ξ Pi:Π Sigma:Σ Phi:Φ Psi:Ψ Omega:Ω infty:∞ partial:∂ nabla:∇ ell:ℓ hbar:ℏ emptyset:∅ varnothing:∅ Re:ℜ Im:ℑ
  aleph:ℵ angle:∠ degree:° top:⊤ bot:⊥`);
const SIGNS = words(`times:× cdot:⋅ div:÷ pm:± mp:∓ ast:∗ star:⋆ circ:∘ bullet:∙ oplus:⊕ otimes:⊗ odot:⊙ cap:∩ cup:∪ wedge:∧
  land:∧ vee:∨ lor:∨ neg:¬ lnot:¬ leq:≤ le:≤ geq:≥ ge:≥ neq:≠ ne:≠ ll:≪ gg:≫ approx:≈ equiv:≡ sim:∼ simeq:≃ cong:≅ propto:∝
  in:∈ notin:∉ ni:∋ subset:⊂ subseteq:⊆ supset:⊃ supseteq:⊇ setminus:∖ forall:∀ exists:∃ to:→ rightarrow:→ leftarrow:←
  leftrightarrow:↔ Rightarrow:⇒ Leftarrow:⇐ implies:⟹ iff:⟺ Leftrightarrow:⇔ mapsto:↦ uparrow:↑ downarrow:↓ longrightarrow:⟶ perp:⊥
  parallel:∥ mid:∣ vdots:⋮ cdots:⋯ ldots:… dots:… ddots:⋱ prime:′ langle:⟨ rangle:⟩ lfloor:⌊ rfloor:⌋ lceil:⌈ rceil:⌉
  lbrace:{ rbrace:} vert:| Vert:‖ lVert:‖ rVert:‖ lvert:| rvert:| colon:: therefore:∴ because:∵ square:□ blacksquare:■`);
const LARGE = words("sum:∑ prod:∏ coprod:∐ int:∫ iint:∬ iiint:∭ oint:∮ bigcup:⋃ bigcap:⋂ bigoplus:⨁ bigotimes:⨂");
const NAMES = new Set(`sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp det dim ker deg gcd hom arg Pr`
  .split(/\s+/));
const LIMITS = new Set("lim limsup liminf max min sup inf argmax argmin".split(" "));
const ACCENTS = words("hat:^ widehat:^ bar:¯ overline:¯ tilde:~ widetilde:~ vec:→ dot:˙ ddot:¨ overrightarrow:→ check:ˇ");
const FONTS = { mathbf: "bold", boldsymbol: "bold", bm: "bold", mathbb: "double", mathcal: "script", mathscr: "script", mathfrak: "fraktur",
  mathrm: "normal", mathit: "", mathsf: "normal", operatorname: "normal" };
const SPACES = { ",": 0.17, ":": 0.22, ">": 0.22, ";": 0.28, "!": -0.17, " ": 0.25, quad: 1, qquad: 2, enspace: 0.5 };
const FENCES = { matrix: "", pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", Vmatrix: "‖‖", cases: "{", aligned: "",
  align: "", "align*": "", gathered: "", array: "", equation: "", "equation*": "", split: "" };
const DOUBLE = { C: "ℂ", N: "ℕ", P: "ℙ", Q: "ℚ", R: "ℝ", Z: "ℤ", E: "𝔼", H: "ℍ", 1: "𝟙" };
const IGNORED = new Set(["limits", "nolimits", "displaystyle", "textstyle", "nonumber", "big", "Big", "bigg", "Bigg", "bigl", "bigr",
  "Bigl", "Bigr", "tag", "label", "hline"]);

/** A <math> element for the source; the source itself where it is too long or nested too deeply. */
export function mathOf(source, isDisplay) {
  const attributes = isDisplay ? { display: "block" } : {};
  try {
    if (source.length > MOST) throw new RangeError("too long");
    const content = new Reader(source.match(/\\[a-zA-Z]+\*?|\\[\s\S]|[\s\S]/gu) ?? []).row();
    return make("math", [make("mrow", content)], attributes);
  } catch {
    const code = document.createElement("code");
    code.textContent = source;
    return code;
  }
}

class Reader {
  #place = 0;
  #depth = 0;
  #font = "";

  constructor(tokens) {
    this.tokens = tokens;
  }

  #peek = () => this.tokens[this.#place];

  #next() {
    this.#place += 1;
    return this.tokens[this.#place - 1];
  }

  #skipSpace() {
    while (/^\s$/.test(this.#peek() ?? "")) this.#place += 1;
  }

  /** The elements up to one of the ends, which is not taken. */
  row(ends = []) {
    this.#depth += 1;
    if (this.#depth > DEEPEST) throw new RangeError("nested too deeply");
    const found = [];
    for (;;) {
      this.#skipSpace();
      const token = this.#peek();
      if (token === undefined || ends.includes(token)) break;
      const one = this.#scripted();
      if (one) found.push(one);
    }
    this.#depth -= 1;
    return found;
  }

  /** One element with its sub- and superscripts. */
  #scripted() {
    const token = this.#peek();
    let base = /^[_^]$/.test(token) ? make("mrow") : this.#element();
    const hasLimits = base?.getAttribute("data-limits") === "1";
    let [below, above] = [null, null];
    for (;;) {
      this.#skipSpace();
      const sign = this.#peek();
      if (sign === "_" && !below) below = (this.#next(), this.#argument());
      else if (sign === "^" && !above) above = (this.#next(), this.#argument());
      else if (sign === "'" && base) base = make("msup", [base, (this.#next(), make("mo", ["′"]))]);
      else break;
    }
    if (!below && !above) return base;
    base ??= make("mrow");
    if (below && above) return make(hasLimits ? "munderover" : "msubsup", [base, below, above]);
    if (below) return make(hasLimits ? "munder" : "msub", [base, below]);
    return make(hasLimits ? "mover" : "msup", [base, above]);
  }

  /** A group in braces, or one element. */
  #argument() {
    this.#skipSpace();
    if (this.#peek() === undefined) return make("mrow");
    if (this.#peek() !== "{") return this.#element() ?? make("mrow");
    this.#next();
    const row = this.row(["}"]);
    this.#next();
    return row.length === 1 ? row[0] : make("mrow", row);
  }

  /** The text of a group in braces. */
  #text() {
    this.#skipSpace();
    if (this.#peek() !== "{") return this.#next() ?? "";
    this.#next();
    let [text, open] = ["", 1];
    while (this.#peek() !== undefined) {
      const token = this.#next();
      if (token === "{") open += 1;
      if (token === "}") open -= 1;
      if (open === 0) break;
      text += token.length === 2 && token[0] === "\\" ? token[1] : token;
    }
    return text;
  }

  #element() {
    const token = this.#next();
    if (token === "{") {
      const row = this.row(["}"]);
      this.#next();
      return make("mrow", row);
    }
    if (token === "}" || token === "&") return null;
    if (token[0] === "\\") return this.#command(token.slice(1));
    if (/\d/.test(token)) {
      let digits = token;
      while (/^[\d.]$/.test(this.#peek() ?? "")) digits += this.#next();
      return make("mn", [digits]);
    }
    if (/\p{L}/u.test(token)) return this.#letter(token);
    return make("mo", [{ "-": "−", "*": "∗" }[token] ?? token], /[()[\]|/]/.test(token) ? { stretchy: "false" } : {});
  }

  #letter(letter) {
    if (this.#font === "double" && DOUBLE[letter]) return make("mi", [DOUBLE[letter]], { mathvariant: "normal" });
    if (!this.#font) return make("mi", [letter]);
    const style = { bold: "math-bold", script: "math-script", fraktur: "math-fraktur" }[this.#font];
    return make("mi", [letter], { mathvariant: "normal", ...(style ? { class: style } : {}) });
  }

  #command(name) {
    if (Object.hasOwn(LETTERS, name)) return this.#letter(LETTERS[name]);
    if (Object.hasOwn(SIGNS, name)) return make("mo", [SIGNS[name]]);
    if (Object.hasOwn(LARGE, name)) return make("mo", [LARGE[name]], { "data-limits": /int$/.test(name) ? "0" : "1" });
    if (NAMES.has(name)) return make("mi", [name], { mathvariant: "normal" });
    if (LIMITS.has(name)) return make("mi", [name], { mathvariant: "normal", "data-limits": "1" });
    if (Object.hasOwn(ACCENTS, name)) return make("mover", [this.#argument(), make("mo", [ACCENTS[name]])], { accent: "true" });
    if (Object.hasOwn(SPACES, name)) return make("mspace", [], { width: `${SPACES[name]}em` });
    if (IGNORED.has(name)) return null;
    if (/^[{}%$#&_|]$/.test(name)) return make("mo", [name === "|" ? "‖" : name]);
    return this.#structure(name);
  }

  #structure(name) {
    if (/^[dt]?frac$/.test(name)) return make("mfrac", [this.#argument(), this.#argument()]);
    if (/^[dt]?binom$/.test(name)) {
      const pair = make("mfrac", [this.#argument(), this.#argument()], { linethickness: "0" });
      return make("mrow", [make("mo", ["("]), pair, make("mo", [")"])]);
    }
    if (name === "sqrt") return this.#root();
    if (/^(text|textbf|textit|textrm|mbox)$/.test(name)) return make("mtext", [this.#text()]);
    if (name === "operatorname") return make("mi", [this.#text()], { mathvariant: "normal" });
    if (Object.hasOwn(FONTS, name)) {
      const before = this.#font;
      this.#font = FONTS[name];
      const content = this.#argument();
      this.#font = before;
      return content;
    }
    if (name === "underline") return make("munder", [this.#argument(), make("mo", ["_"])]);
    if (name === "overbrace" || name === "underbrace") {
      const over = name === "overbrace";
      return make(over ? "mover" : "munder", [this.#argument(), make("mo", [over ? "⏞" : "⏟"])], { "data-limits": "1" });
    }
    if (name === "boxed") return make("mrow", [this.#argument()], { class: "math-boxed" });
    if (name === "left") return this.#fenced();
    if (name === "begin") return this.#environment(this.#text());
    return make("mtext", [`\\${name}`]);
  }

  #root() {
    this.#skipSpace();
    if (this.#peek() !== "[") return make("msqrt", [this.#argument()]);
    this.#next();
    const degree = make("mrow", this.row(["]"]));
    this.#next();
    return make("mroot", [this.#argument(), degree]);
  }

  #bracket() {
    this.#skipSpace();
    const token = this.#next() ?? ".";
    const sign = token === "." ? "" : token[0] === "\\" ? SIGNS[token.slice(1)] ?? { "|": "‖" }[token[1]] ?? token[1] : token;
    return sign ? [make("mo", [sign], { fence: "true", stretchy: "true" })] : [];
  }

  #fenced() {
    const open = this.#bracket();
    const content = this.row(["\\right"]);
    this.#next();
    return make("mrow", [...open, ...content, ...this.#bracket()]);
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
    const table = make("mtable", rows.filter((row) => row.some(({ childNodes }) => childNodes.length)).map((row) => make("mtr", row)),
      { class: /^(align|split|cases)/.test(name) ? "math-aligned" : "" });
    const [open, close] = FENCES[name];
    const bracket = (sign) => (sign ? [make("mo", [sign], { fence: "true", stretchy: "true" })] : []);
    return make("mrow", [...bracket(open), table, ...bracket(close)]);
  }
}
