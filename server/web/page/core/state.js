// The selection shared by all views, and its form in the URL: everything after #, which browsers never send.
import { saved } from "./place.js";
import { seenOf, showsSecond } from "./seen.js";
import { createContext, useContext } from "./html.js";
import { Store, useStore } from "./store.js";

/** read(raw): from the address; write(value): for it. */
const field = (initial, read, write = String) => ({ initial, read, write });
const text = (initial) => field(initial, (raw) => raw);
const integer = (initial) => field(initial, (raw) => (/^-?\d{1,9}$/.test(raw) ? Number(raw) : initial));
const number = (initial, low, high) => field(initial, (raw) =>
  (raw !== "" && Number.isFinite(Number(raw)) ? Math.min(high, Math.max(low, Number(raw))) : initial));
const choice = (...values) => field(values[0], (raw) => (values.includes(raw) ? raw : values[0]));
const flag = (initial) => field(initial, (raw) => raw === "1", (value) => (value ? "1" : "0"));
/** null: the model's own value. */
const optional = (initial, low, high, { isWhole = false } = {}) => field(initial, (raw) => {
  const value = Number(raw);
  if (raw === "") return null;
  if (!Number.isFinite(value) || (isWhole && (!Number.isSafeInteger(value) || value < low))) return initial;
  return Math.min(high, Math.max(low, value));
}, (value) => String(value ?? ""));

// All fields of the state: shared ones first, then those of each view, named view_option.
const FIELDS = {
  view: text("home"),
  model: text(""), // "" on a server with one model
  text: text("The Eiffel Tower is in the city of"),
  decoder: text(""), // input of a decoder next to an encoder
  part: text(""), // "decoder", "encoder" or "cross"; "" is the model's first
  layer: integer(1), // negative numbers count from the end
  head: integer(3),
  query: integer(-1),
  key: integer(null), // core/strongest.js then selects a strong one

  write_temperature: optional(0.8, 0, 100), // of continued texts
  write_top_p: optional(null, 1e-9, 1),
  write_top_k: optional(null, -1, 2 ** 31 - 1, { isWhole: true }),
  write_seed: optional(null, -(2 ** 53) + 1, 2 ** 53 - 1, { isWhole: true }),
  write_max_tokens: optional(60, 1, 2 ** 31 - 1, { isWhole: true }),

  chat_mode: choice("chat", "text"), // text: the model continues a text, without the chat template
  chat_draft: text(""), // a message for the field; it is not sent

  attention_show: choice("heads", "stacks"),
  attention_kind: choice("pattern", "norm", "scores", "dots", "unmasked"), // norm: weight times length of the added vector
  attention_cells: choice("cells", "dots"),
  attention_orientation: choice("rows", "columns"),
  attention_sink: flag(true), // whether the first token is shown as a key
  attention_shade: choice("linear", "root"), // root shows small weights next to large ones
  attention_picture: choice("both", "matrix", "text"),
  attention_side: choice("query", "key"), // role of the pointed word in the long text

  why_order: choice("sorted", "natural"),

  moves_as: choice("arrows", "amounts"),

  contributions_target: text(""), // a token's text, or # and its id; "" is the model's own next token
  contributions_versus: text(""),
  contributions_measure: choice("logit", "length"),
  contributions_heads: choice("all", "one"),
  contributions_parts: choice("layers", "largest"),
  contributions_by: choice("word", "head", "layer"),
  contributions_verify: choice("8", "3", "0"),
  contributions_pair: text(""),

  lens_target: text(""), // as contributions_target
  lens_words: flag(false), // without predictions that have no letter or digit
  lens_state: integer(-1), // 0 is the embedding, i the stream after block i

  next_temperature: number(1, 0, 3),
  next_top_k: integer(0),
  next_top_p: number(1, 0.01, 1),
  next_min_p: number(0, 0, 1),
  next_find: text(""),

  heads_x: text("previous_token"),
  heads_y: text("induction"),
  heads_on: choice("random", "text"),

  flow_open: text(""),

  journey_stop: text(""), // its name; "" is the first
  journey_plays: flag(false), // as soon as it is drawn
  journey_between: number(0, 0, 0.99), // of the way to the next stop
  journey_temperature: number(1, 0, 100),

  embeddings_texts: text(""), // one a line; "" is the examples
  embeddings_layer: text(""), // "" is after the final norm
  embeddings_pooling: text(""), // "" is the model's own

  weights_matrix: text(""), // a name as capabilities has it; "" is the token table
  weights_axis: choice("rows", "columns"),
  weights_show: choice("overview", "numbers", "product", "rank", "angles", "positions", "units", "sizes"),
  weights_name: text("blocks.{layer}.attn.W_Q"),
  weights_row: integer(0), // of the visible part of a large one
  weights_column: integer(0),
  weights_letter: choice("Q", "K", "V"),
  weights_between: choice("words", "vectors"),
  weights_words: text("king queen prince princess man woman boy girl"),
  weights_less: flag(false),
  weights_unit: integer(null), // null: the strongest pair of the first neurons
  weights_other: integer(null),
  weights_sizes: text(""), // "" is GPT-3

  next_logits: text("2, 1, 0"),
  next_logits_first: flag(false), // before the model's
  next_logits_temperature: number(1, 0, 100),

  change: text(""), // see core/changes.js
  change_show: choice("after", "before", "difference", "both"), // both: next to each other
  change_text: text(""), // compared with the first one
  change_model: text(""), // the second model, compared with the first one; "" is none
  change_source: text(""), // of a patch, and of steering
  change_away: text(""), // from which steering moves; "" is the input itself
  change_open: flag(false),

  motion_show: choice("one", "contexts"),
  motion_by: choice("word", "head", "one"), // one: words through the chosen head
  motion_layers: choice("sum", "each", "one"),
  motion_mlps: flag(true),
  motion_space: choice("plane", "space"),
  motion_axes: choice("auto", "largest", "parts", "key"),
  motion_yaw: integer(30), // degrees
  motion_pitch: integer(20),
  motion_word: text("mole"),
  motion_texts: text(""), // "" is the example of the word
  motion_at: number(1, 0, 1),
  motion_speed: number(1, 0.25, 8),

  patching_a: text(""), // both texts; "" and "" are the first example
  patching_b: text(""),
  patching_what: choice("stream", "attention", "mlp", "head"),
  patching_side: choice("a", "b"), // the source of the vector
  patching_source: integer(null), // null: the last tokens that differ
  patching_target: integer(null),

  lesson: text(""), // "list" is the list of them
  lesson_step: integer(1),
};

export const initialState = Object.fromEntries(Object.entries(FIELDS).map(([name, field]) => [name, field.initial]));

/** Former names of views, which links still use: from the address' parameters to the fields of the same picture. */
const FORMER_VIEWS = {
  stacks: () => ({ view: "attention", attention_show: "stacks" }), // 0.2
  write: (parameters) => ({ view: "chat", chat_mode: parameters.get("write_chat") === "1" ? "chat" : "text" }), // 0.2
  motion: () => ({ view: "moves", moves_as: "arrows" }),
  contributions: () => ({ view: "moves", moves_as: "amounts" }),
};

const renamed = (fields, parameters = new URLSearchParams()) =>
  ({ ...fields, ...(Object.hasOwn(FORMER_VIEWS, fields.view) && FORMER_VIEWS[fields.view](parameters)) });

function fromHash(hash) {
  const parameters = new URLSearchParams(hash.replace(/^#/, ""));
  const state = { ...initialState };
  for (const [name, field] of Object.entries(FIELDS)) {
    const raw = parameters.get(name);
    if (raw !== null) state[name] = field.read(raw);
  }
  return renamed(state, parameters);
}

function toHash(state) {
  const parameters = new URLSearchParams();
  for (const [name, field] of Object.entries(FIELDS)) {
    if (name === "view" || state[name] !== field.initial) parameters.set(name, field.write(state[name]));
  }
  return `#${parameters}`;
}

export const state = new Store(fromHash(location.hash || saved?.hash || ""));

/**
 * Change fields of the state and the address. `text` is the displayed text: a new one replaces the second text where that
 * is shown. A new view, or `remember: true`, adds an entry to the browser's history. side: the one that the caller shows.
 */
export function select(changes, { remember = "view" in changes, side } = {}) {
  for (const name of Object.keys(changes)) {
    if (!(name in FIELDS)) throw new Error(`state: no field ${name}`);
  }
  const next = { ...state.value, ...renamed(changes) };
  if ("text" in changes && !("change_text" in changes) && showsSecond(side ? { ...next, change_show: side } : next)) {
    [next.text, next.change_text] = [state.value.text, changes.text];
  }
  const hash = toHash(next);
  if (hash === toHash(state.value)) return;
  if (saved) {
    // a file keeps its address: most browsers do not allow changing it
  } else if (remember) {
    settleAddress(); // update the entry that is left to the last state
    history.pushState(null, "", hash);
  } else {
    replaceSoon(hash);
  }
  state.set(next);
}

// Browsers allow about 100 changes of the URL in 30 s; a slider makes more.
let pending = null;
function replaceSoon(hash) {
  clearTimeout(pending?.timer);
  pending = { hash, timer: setTimeout(settleAddress, 150) };
}

function settleAddress() {
  if (pending === null) return;
  clearTimeout(pending.timer);
  history.replaceState(null, "", pending.hash);
  pending = null;
}

addEventListener("popstate", () => {
  clearTimeout(pending?.timer);
  pending = null;
  state.set(fromHash(location.hash));
});

export const linkTo = (changes) => toHash({ ...state.value, ...renamed(changes) });

export const hashNow = () => toHash(state.value);
export function address() {
  const whole = new URL(hashNow(), saved?.root ?? location.href);
  whole.searchParams.delete("embed");
  return whole.href;
}

/** The side of a comparison that the components below show; "" is the selected one. */
export const Side = createContext("");

/** The shared state for views (see core/seen.js). */
export function useSelection() {
  const [all, side] = [useStore(state), useContext(Side)];
  return seenOf(side ? { ...all, change_show: side } : all);
}
