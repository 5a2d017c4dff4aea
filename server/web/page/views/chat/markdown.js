// Markdown as elements: marked's tokens become preact elements, never HTML. Loaded when the first answer is shown.
import { classes, html, useLayoutEffect, useMemo, useRef } from "../../core/html.js";
import { Marked, Prism } from "../../core/markdown.js";
import { copy, useSaid } from "../../parts/tools.js";
import { characterOf, mathOf } from "./math.js";

const DEEPEST = 40; // levels of nesting; deeper ones are shown as their source
const MOST_COLOURED = 20_000; // characters of code
const KEYS = "Answer. The left and right arrow keys show the causes of each word, and Enter opens Why.";
const MOST_COLOURED_LIVE = 3000; // while it is written, since it is coloured again with each token

/** The pattern's first group that is found is the source. */
const formula = (level, begin, pattern) => ({
  name: `math-${level}`,
  level,
  start: (source) => {
    const place = source.search(begin);
    return place < 0 ? undefined : place;
  },
  tokenizer: (source) => {
    const [raw, ...groups] = pattern.exec(source) ?? [];
    if (!raw) return undefined;
    return { type: "math", raw, text: groups.find((group) => group !== undefined), isDisplay: /^\s*(\$\$|\\\[)/.test(raw) };
  },
});
const marked = new Marked({
  gfm: true,
  extensions: [
    formula("block", /(?:^|\n) {0,3}(?:\$\$|\\\[)/, /^ {0,3}(?:\$\$([^$]{1,5000})\$\$|\\\[([\s\S]{1,5000}?)\\\]) *(?:\n|$)/),
    formula("inline", /\$|\\[([]/, new RegExp(["^(?:\\$\\$([^$\\n]{1,1000})\\$\\$",
      "\\\\\\(([^\\n]{1,1000}?)\\\\\\)", "\\\\\\[([^\\n]{1,1000}?)\\\\\\]",
      "\\$(?![\\s$])((?:[^\\\\$\\n]|\\\\.){0,500}(?<!\\s))\\$(?!\\d))"].join("|"))),
  ],
});

/** Blocks of a text that grows: `read` returns the same tokens for the finished ones, so that their elements stay. */
export class Growing {
  #text = "";
  #at = 0; // where the unfinished rest begins
  #done = [];

  read(text, isWhole) {
    const source = text.replace(/\r\n?/g, "\n");
    if (isWhole || !source.startsWith(this.#text)) [this.#at, this.#done] = [0, []];
    this.#text = source;
    const tokens = marked.lexer(source.slice(this.#at));
    let last = tokens.length - 1;
    while (last > 0 && (tokens[last].type === "space" || tokens[last - 1].type === "list")) last -= 1;
    if (isWhole) return tokens;
    for (const token of tokens.slice(0, Math.max(0, last))) {
      this.#done.push(token);
      this.#at += token.raw.length;
    }
    return [...this.#done, ...tokens.slice(Math.max(0, last))];
  }
}

export function Markdown({ text, isLive }) {
  const growing = useRef(null);
  growing.current ??= new Growing();
  let blocks;
  try {
    blocks = useMemo(() => growing.current.read(text, !isLive), [text, isLive]);
  } catch {
    return html`<p class="plain-text">${text}</p>`; // nested too deeply to be read
  }
  return html`<div class="markdown" tabindex="0" role="group" aria-label=${KEYS}>${blocks.map((token, i) =>
    html`<${Block} key=${i} token=${token} isLive=${isLive && i === blocks.length - 1} />`)}</div>`;
}

/** Rendered again only when its token changes. */
const Block = ({ token, isLive }) => useMemo(() => nodeOf(token, 0, { isLive, isBlock: true }), [token, isLive]);

const decoded = (text) => text.replace(/&(#x[\da-f]{1,6}|#\d{1,7}|\w{2,31});/gi, (whole, name) => characterOf(name) || whole);

const nodesOf = (tokens, depth) => tokens.map((token) => nodeOf(token, depth + 1));

function nodeOf(token, depth, { isLive = false, isBlock = false } = {}) {
  if (depth > DEEPEST) return token.raw;
  const { type, text, tokens } = token;
  const inside = () => nodesOf(tokens, depth);
  switch (type) {
    case "space": case "def": return null;
    case "heading": return html`<h3 class=${`level-${token.depth}`}>${inside()}</h3>`;
    case "paragraph": return html`<p>${inside()}</p>`;
    case "code": return html`<${Code} text=${text} lang=${(token.lang ?? "").split(/\s/)[0]} isLive=${isLive} />`;
    case "blockquote": return html`<blockquote>${blocksOf(tokens, depth)}</blockquote>`;
    case "list": return listOf(token, depth);
    case "table": return tableOf(token, depth);
    case "hr": return html`<hr />`;
    case "math": return html`<${Formula} source=${text} isDisplay=${isBlock || token.isDisplay} />`;
    case "strong": return html`<strong>${inside()}</strong>`;
    case "em": return html`<em>${inside()}</em>`;
    case "del": return html`<del>${inside()}</del>`;
    case "codespan": return html`<code>${text}</code>`;
    case "br": return html`<br />`;
    case "checkbox": return token.checked ? "☑ " : "☐ ";
    case "link": return linkOf(token.href, inside());
    case "image": return linkOf(token.href, `[image: ${decoded(text) || "no description"}]`); // never loaded
    case "html": return isBlock ? html`<p>${text}</p>` : /^<br\s*\/?>$/i.test(text) ? html`<br />` : text;
    case "escape": return text;
    default: return tokens ? inside() : decoded(text ?? token.raw);
  }
}

const blocksOf = (tokens, depth) => tokens.map((token) => nodeOf(token, depth + 1, { isBlock: true }));

function listOf({ ordered, start, items, loose }, depth) {
  const rows = items.map((item) => html`<li>${blocksOf(item.tokens, depth)}</li>`);
  const kind = classes(loose && "loose", items.some(({ task }) => task) && "tasks");
  return ordered ? html`<ol start=${start} class=${kind}>${rows}</ol>` : html`<ul class=${kind}>${rows}</ul>`;
}

function tableOf({ header, rows, align }, depth) {
  const cell = (tag) => ({ tokens }, i) => html`<${tag} class=${align[i] && `to-${align[i]}`}>${nodesOf(tokens, depth)}</${tag}>`;
  const name = header.map(({ text }) => text).join(", ") || "Table";
  return html`<div class="table-scroll" tabindex="0" role="group" aria-label=${name}><table aria-label=${name}>
    <thead><tr>${header.map(cell("th"))}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${row.map(cell("td"))}</tr>`)}</tbody>
  </table></div>`;
}

/** Another site of http or https in a tab of its own; any other address is only its text. */
function linkOf(href, children) {
  const url = addressOf(decoded(href));
  if (!url) return html`<span>${children}</span>`;
  return html`<a href=${url} title=${url} target="_blank" rel="noopener noreferrer nofollow">${children}</a>`;
}

/** Null if the address is not absolute or has another scheme. */
function addressOf(href) {
  try {
    const { protocol, href: read } = new URL(href);
    return protocol === "http:" || protocol === "https:" ? read : null;
  } catch {
    return null;
  }
}

function Formula({ source, isDisplay = false }) {
  const place = useRef(null);
  useLayoutEffect(() => place.current.replaceChildren(mathOf(source, isDisplay)), [source, isDisplay]);
  // a word joiner: no line begins with the full stop after a formula
  return html`<span class=${classes("formula-place", isDisplay && "display")} ref=${place}></span>${isDisplay ? "" : "\u2060"}`;
}

export function Code({ text, lang, isLive = false, label }) {
  const [said, run] = useSaid();
  const pieces = useMemo(() => coloured(text, lang, isLive), [text, lang, isLive]);
  return html`<figure class="code">
    <figcaption>${label ?? (lang || "text")}<span role="status">${said}</span>
      <button class="quiet" onClick=${() => run(() => copy(text))}>Copy</button></figcaption>
    <pre tabindex="0" aria-label=${`Code, ${lang || "text"}`} role="group"><code>${pieces}</code></pre>
  </figure>`;
}

function coloured(text, lang, isLive) {
  const name = lang.toLowerCase().replace("+", "p").replace("+", "p");
  const grammar = Object.hasOwn(Prism.languages, name) && Prism.languages[name];
  if (typeof grammar !== "object" || text.length > (isLive ? MOST_COLOURED_LIVE : MOST_COLOURED)) return text;
  return Prism.tokenize(text, grammar).map(pieceOf);
}

function pieceOf(piece) {
  if (typeof piece === "string") return piece;
  if (Array.isArray(piece)) return piece.map(pieceOf);
  const kinds = [piece.type, piece.alias ?? []].flat(2);
  return html`<span class=${kinds.map((kind) => `is-${kind}`).join(" ")}>${pieceOf(piece.content)}</span>`;
}
