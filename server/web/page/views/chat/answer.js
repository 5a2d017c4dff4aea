// Requests of a conversation: an answer arrives in `live`, and becomes part of the conversation when it ends.
import { askJson, askStream } from "../../core/api.js";
import { Store } from "../../core/store.js";
import { find, update } from "./history.js";
import { messagesOf, pathTo, withChange, withTurn } from "./tree.js";

/** {chat, turn}: the ids of the conversation and of the turn, as it is so far; null while nothing is written. */
export const live = new Store(null);

let running = null; // {abort, settle}: of the answer that is written now

export const stop = () => running?.abort.abort();

const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed",
  "max_tokens"];

/** The JSON of a setting; null if it is empty. Raises an error with its name for a text that is no JSON. */
function jsonOf(settings, name, label) {
  if (!settings[name]?.trim()) return null;
  try {
    return JSON.parse(settings[name]);
  } catch (error) {
    throw Object.assign(new Error(`${label} in the settings is not JSON: ${error.message}`), { title: "Not sent", status: 422 });
  }
}

/** {sampling, form}: the fields of a request for these settings; `form` applies to chats only. */
function fieldsOf(settings) {
  const sampling = Object.fromEntries(SAMPLING.filter((name) => typeof settings[name] === "number").map((name) => [name, settings[name]]));
  const stops = (settings.stop ?? "").split("\n").filter(Boolean);
  if (stops.length) sampling.stop = stops;
  const [tools, schema] = [jsonOf(settings, "tools", "“Tools”"), jsonOf(settings, "schema", "“Form of the answer”")];
  const form = {
    ...(settings.reasoning_effort ? { reasoning_effort: settings.reasoning_effort } : {}),
    ...(tools ? { tools } : {}),
    ...(schema ? { response_format: { type: "json_schema", json_schema: { name: "answer", schema } } } : {}),
  };
  return { sampling, form };
}

/** The fields of /tokenize for the prompt of an answer to these turns. */
export const promptOf = (chat, turns) => {
  const { form: { tools, reasoning_effort: effort } } = fieldsOf(chat.settings);
  const variables = effort === "none" ? { enable_thinking: false, thinking: false } : { reasoning_effort: effort };
  return {
    messages: messagesOf(chat, turns), ...(tools ? { tools } : {}), ...(effort ? { chat_template_kwargs: variables } : {}),
  };
};

/** {route, body} of a request for an answer to these turns, which are the conversation's or a new one. */
export function requestOf(chat, turns, { interventions = [] } = {}) {
  const { sampling, form } = fieldsOf(chat.settings);
  const body = { messages: messagesOf(chat, turns), ...sampling, ...form, ...(interventions.length ? { interventions } : {}) };
  return { route: "v1/chat/completions", body };
}

/** Whether a model continues a turn by its ids: they are this model's, and have no other text than the turn. */
const hasIdsOf = ({ ids, text, reasoning, calls, model }, name) => ids?.length && text && !reasoning && !calls?.length && model === name;

/** The request that writes a turn, or continues it if it has a text. */
async function requestFor(chat, turn, options, signal) {
  const before = pathTo(chat, turn.id).slice(0, -1);
  const { route, body } = requestOf(chat, before, options);
  if (!turn.text && !turn.reasoning) return { route, body };
  if (!hasIdsOf(turn, options.model) || body.response_format) { // a grammar begins with the answer
    return { route, body: { ...body, messages: messagesOf(chat, [...before, turn]), continue_final_message: true } };
  }
  const { tokens } = await askJson("tokenize", promptOf(chat, before), { signal });
  const prompt = [...tokens, ...turn.ids];
  const { messages: _, tools: __, reasoning_effort: ___, ...rest } = body;
  const room = options.maxModelLen - prompt.length;
  if (room < 1) throw Object.assign(new Error("The context is full."), { code: "context_length_exceeded", status: 400 });
  return { route: "v1/completions", body: { ...rest, prompt, max_tokens: Math.min(body.max_tokens ?? room, room) } };
}

/** Append the assistant's turn after `parent`, and let the model write it. Resolves at its end. */
export function answer(chatId, parent, options, begun = {}) {
  const turn = { parent, role: "assistant", text: "", model: options.model, ...begun };
  let id = 0;
  update(chatId, (chat) => {
    const made = withTurn(chat, { ...turn, ...(options.interventions.length ? { isChanged: true } : {}) });
    id = made.id;
    return made.chat;
  });
  return grow(chatId, id, options);
}

/** Let the model write a turn that is empty, or continue it. */
export async function grow(chatId, id, options) {
  stop();
  running?.settle();
  const abort = new AbortController();
  const chat = find(chatId);
  const { end: _, ...start } = chat.turns.find((turn) => turn.id === id);
  if (start.text && start.model !== options.model) delete start.ids; // of another vocabulary
  start.model = options.model;
  const writer = new Writer(start, chat.settings);
  const settle = (end) => {
    if (running?.abort !== abort) return;
    running = null;
    const turn = writer.turn(end ?? { reason: "stopped" });
    update(chatId, (now) => withChange(now, id, turn));
    live.set(null);
  };
  running = { abort, settle };
  live.set({ chat: chatId, turn: { ...start, end: null } });
  let frame = null;
  const show = () => {
    frame = null;
    if (running?.abort === abort) live.set({ chat: chatId, turn: writer.turn(null) });
  };
  let end = { reason: "stopped" };
  try {
    const { route, body } = await requestFor(chat, start, options, abort.signal);
    for await (const { choices } of askStream(route, { ...body, return_token_ids: true }, { signal: abort.signal })) {
      for (const choice of choices) {
        const isFirst = writer.add(choice);
        if (choice.finish_reason) end = { reason: choice.finish_reason };
        if (isFirst || document.hidden) show(); // the first token at once, the others with the next frame
        else frame ??= requestAnimationFrame(show);
      }
    }
  } catch (error) {
    if (error.name !== "AbortError") end = { reason: "error", message: error.message, error };
  }
  if (frame !== null) cancelAnimationFrame(frame);
  settle(end);
}

/** A turn while it is written. */
class Writer {
  #start;
  #calls = [];
  #began = performance.now();
  #first = 0;
  #last = 0;
  #count = 0;
  #thoughtEnd = 0;

  constructor(start, settings) {
    this.#start = start;
    this.text = start.text;
    this.reasoning = start.reasoning ?? "";
    this.ids = [...(start.ids ?? [])];
    this.hasIds = start.text === "" || this.ids.length > 0;
    this.isStructured = Boolean(settings.schema?.trim());
  }

  /** Add a choice of an event; returns whether it is the first one with a token. */
  add({ text, delta = { content: text }, token_ids: ids = [] }) {
    if (delta.role && !ids.length) return false;
    this.#last = performance.now();
    const isFirst = this.#count === 0;
    if (isFirst) this.#first = this.#last;
    this.#count += ids.length;
    this.ids.push(...ids);
    this.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
    if (delta.content && this.reasoning && !this.#thoughtEnd) this.#thoughtEnd = this.#last;
    this.text += delta.content ?? "";
    for (const call of delta.tool_calls ?? []) {
      const own = (this.#calls[call.index] ??= { id: "", name: "", arguments: "" });
      own.id ||= call.id ?? "";
      own.name += call.function?.name ?? "";
      own.arguments += call.function?.arguments ?? "";
    }
    return isFirst;
  }

  /** The turn so far, with its end or null. */
  turn(end) {
    const isThinking = this.reasoning && !this.#start.thoughtMs;
    return {
      ...this.#start,
      text: this.text,
      ...(this.reasoning ? { reasoning: this.reasoning } : {}),
      ...(this.#calls.length ? { calls: this.#calls.filter(Boolean).map((call) => ({ ...call })) } : {}),
      ...(this.hasIds ? { ids: end ? [...this.ids] : this.ids } : {}),
      ...(this.#count ? { firstMs: this.#first - this.#began } : {}),
      ...(this.#count > 1 ? { perSecond: ((this.#count - 1) * 1000) / Math.max(1, this.#last - this.#first) } : {}),
      ...(isThinking ? { thoughtMs: (this.#thoughtEnd || this.#last) - this.#began } : {}),
      ...(this.isStructured ? { isStructured: true } : {}),
      end,
    };
  }
}

addEventListener("pagehide", () => running?.settle());
