// The numbers quoted by a lesson, from the served model, and the sentences with them: see docs/lessons.md.
import { json } from "../../core/fetching.js";
import { shownToken } from "../../core/model.js";
import { format, grouped, percent, sum } from "../../core/numbers.js";
import { dot, lengthOf } from "../../core/projection.js";

const QUOTE = /\{(\w+)((?:\.\w+|\[[^\]]*\])*)(?::(\w+))?\}/g;
const ONE_QUOTE = new RegExp(`^${QUOTE.source}$`);
const RELATION = /^(.+?) (>=|<=|!=|=|>|<|near) (.+)$/;
const NEAR = 0.01; // largest difference of "near" numbers, relative to the larger one

const FUNCTIONS = {
  sum: (...parts) => sum(parts.flat()),
  difference: (a, b) => a - b,
  product: (...parts) => parts.reduce((a, b) => a * b),
  ratio: (a, b) => a / b,
  root: Math.sqrt,
  exp: Math.exp,
  length: lengthOf,
  dot,
  cosine: (a, b) => dot(a, b) / lengthOf(a) / lengthOf(b),
};

const FORMATS = { percent, grouped, token: shownToken, number: format };

const written = (number) => (Number.isInteger(number) ? grouped(number) : format(number));

// the list in an answer that names an array's indices
const PLACES = { layer: "layers", head: "heads", query: "query_positions", key: "key_positions", position: "positions" };

/** Such as "rows[component=key].share"; undefined if there is none. */
function at(value, path) {
  return [...path.matchAll(/\[([^\]]*)\]|[^.[\]]+/g)].reduce((inner, [whole, bracketed]) => {
    const step = bracketed ?? whole;
    if (inner == null) return undefined;
    const [name, wanted] = step.split("=");
    if (wanted !== undefined) return inner.find((one) => String(one[name]) === wanted);
    return Array.isArray(inner) && step !== "length" ? inner.at(Number(step)) : inner[step];
  }, value);
}

/** Of nested lists, with its index by each name; with sign -1, the smallest. */
function extreme(lists, names, sign, answer) {
  let best = null;
  const walk = (inner, places) => {
    if (Array.isArray(inner)) inner.forEach((one, i) => walk(one, [...places, i]));
    else if (inner !== null && (best === null || sign * inner > sign * best.value)) best = { value: inner, places };
  };
  walk(lists, []);
  return best && { value: best.value,
    ...Object.fromEntries(names.map((name, i) => [name, answer[PLACES[name]]?.[best.places[i]] ?? best.places[i]])) };
}

async function positionOf({ word, nth = 1, text }) {
  let begin = -1;
  for (let i = 0; i < nth; i += 1) {
    begin = text.indexOf(word, begin + 1);
    if (begin < 0) return null;
  }
  const { offsets } = await json("tokenize", { prompt: text, return_token_strs: true, return_offsets: true });
  const end = Array.from(text.slice(0, begin + word.length)).length; // the server counts characters
  return offsets.findLastIndex(([first, after]) => first < end && after > first);
}

/** Each is fetched at its first use; null if the model lacks it. */
export class Values {
  #lesson;
  #asked = new Map();

  constructor(lesson) {
    this.#lesson = lesson;
  }

  /** Rejected only if a retry may succeed. */
  get(name) {
    if (!this.#asked.has(name)) {
      const finding = this.#find(name).catch((error) => {
        if (!error.isPassing) return null;
        this.#asked.delete(name);
        throw error;
      });
      this.#asked.set(name, finding);
    }
    return this.#asked.get(name);
  }

  async #find(name) {
    if (name === "text") return this.#lesson.text;
    const given = await this.fill(this.#lesson.values[name]);
    if (given === null) return null;
    if ("word" in given) return positionOf({ text: this.#lesson.text, ...given });
    if ("compute" in given) return FUNCTIONS[given.compute](...given.of);
    const answer = await json(given.route.replace(/^\//, ""), given.body ?? null);
    const start = Array.isArray(answer.data) && !given.value.startsWith("data") ? answer.data[0] : answer;
    const found = at(start, given.value) ?? null;
    if (found === null || !(given.largest ?? given.smallest)) return found;
    return extreme(found, given.largest ?? given.smallest, given.largest ? 1 : -1, start);
  }

  /** With quotes replaced by their values; null if one is null. */
  async fill(part) {
    if (typeof part === "string") return this.#fillText(part, String);
    if (part === null || typeof part !== "object") return part;
    const filled = await Promise.all(Object.values(part).map((inner) => this.fill(inner)));
    if (filled.some((inner, i) => inner === null && Object.values(part)[i] !== null)) return null;
    return Array.isArray(part) ? filled : Object.fromEntries(Object.keys(part).map((name, i) => [name, filled[i]]));
  }

  /** write: for numbers without a format in a text with more than one quote. */
  async #fillText(text, write) {
    const alone = ONE_QUOTE.exec(text);
    if (alone) return this.#quoted(alone);
    const values = await Promise.all([...text.matchAll(QUOTE)].map((match) => this.#quoted(match)));
    if (values.includes(null)) return null;
    return text.replace(QUOTE, () => {
      const value = values.shift();
      return typeof value === "number" ? write(value) : value;
    });
  }

  async #quoted([whole, name, path, how]) {
    if (name !== "text" && !(name in this.#lesson.values)) return whole; // the state has such names: blocks.{layer}.attn.W_Q
    const [value, steps] = await Promise.all([this.get(name), this.#fillText(path, String)]);
    const found = steps === null ? null : at(value, steps) ?? null;
    return found === null || !how ? found : FORMATS[how](found);
  }

  /** Such as "{weight} > 0.3", joined by " and ". */
  async holds(condition) {
    for (const one of condition.split(" and ")) {
      const [, left, relation, right] = RELATION.exec(one);
      const [a, b] = await Promise.all([left, right].map(async (side) => operand(await this.fill(side))));
      if (a === null || b === null || !isTrue(a, relation, b)) return false;
    }
    return true;
  }

  /** The true sentences, and the number of false ones without an alternative. */
  async say(sentences) {
    const said = [];
    let left = 0;
    for (const sentence of sentences) {
      const words = typeof sentence === "string" ? sentence : (await this.holds(sentence.if)) ? sentence.say : sentence.else;
      if (words === "") continue; // no sentence for such models
      const filled = words === undefined ? null : await this.#fillText(words, written);
      if (filled === null) left += 1;
      else said.push(String(filled));
    }
    return { said, left };
  }
}

/** A number if possible; true and false as words. */
function operand(side) {
  if (typeof side === "boolean") return String(side);
  return typeof side === "string" && side.trim() !== "" && Number.isFinite(Number(side)) ? Number(side) : side;
}

function isTrue(a, relation, b) {
  if (relation === "near") return Math.abs(a - b) <= NEAR * Math.max(Math.abs(a), Math.abs(b));
  return { ">": a > b, "<": a < b, ">=": a >= b, "<=": a <= b, "=": a === b, "!=": a !== b }[relation];
}
