// An answer, or the continuation of a text: while it is written in `live`, at its end in the conversation.
import { Store } from "../../core/store.js";
import { find, update } from "./history.js";
import { fullContext, requestFor } from "./requests.js";
import { askAnswer } from "./sources.js";
import { changesOf, isComplete, pathTo, withChange, withTurn } from "./tree.js";

/** {chat, turn}: the id of the conversation, and the turn so far; null while nothing is written. */
export const live = new Store(null);

let running = null; // {abort, settle}: of the answer that is written now
let last = null; // the abort of the last answer: its sources may still arrive

export const stop = () => last?.abort();

/** Append a turn and show it; returns its id. */
export function addTurn(chatId, turn) {
  let id = 0;
  update(chatId, (chat) => {
    const made = withTurn(chat, turn);
    id = made.id;
    return made.chat;
  });
  return id;
}

/** Append the assistant's turn after `parent`, and let the model write it. */
export function answer(chatId, parent, options, begun = {}) {
  const changes = options.interventions.length ? JSON.stringify(options.interventions) : undefined;
  const turn = { parent, role: "assistant", text: "", model: options.model, changes, ...begun };
  return grow(chatId, addTurn(chatId, turn), options);
}

/** A text with changes is written twice with one seed, without and with them, and a chat by both models. */
export async function answerOnBothSides(chatId, parent, options) {
  const { second } = options;
  if (!second && (find(chatId).kind === "chat" || !options.interventions.length)) return answer(chatId, parent, options);
  const first = answer(chatId, parent, options, second ? {} : { changes: undefined });
  const own = last;
  const before = await first;
  if (last !== own || !before || before.end.reason === "stopped") return before;
  const after = second ? { ...options, model: second } : options;
  return answer(chatId, parent, after, { twin: before.id, seed: before.seed });
}

/** Continue a turn, and the one that is compared with it, each with its own model. */
export async function proceed(chatId, turn, options) {
  const { kind, turns } = find(chatId);
  const { second, model } = options;
  for (const one of [turns.find(({ id }) => id === turn.twin), turn]) {
    if (!one || isComplete(one, kind)) continue;
    const done = await grow(chatId, one.id, { ...options, model: second && one.model === second ? second : model });
    if (done?.end.reason === "stopped") return;
  }
}
/** Let the model write a turn that is empty, or continue it. Resolves to the turn at its end. */
export async function grow(chatId, id, options) {
  stop();
  running?.settle();
  const abort = new AbortController();
  const chat = find(chatId);
  const { end: _, ...start } = chat.turns.find((turn) => turn.id === id);
  if (start.text && start.model !== options.model) { // another vocabulary
    for (const name of ["ids", "pieces", "forced"]) delete start[name];
  }
  start.model = options.model;
  const writer = new Writer(start, chat);
  const settle = (end) => {
    if (running?.abort !== abort) return;
    running = null;
    const turn = writer.turn(end ?? { reason: "stopped" });
    update(chatId, (now) => withChange(now, id, turn));
    live.set(null);
  };
  running = { abort, settle };
  last = abort;
  let frame = null;
  const show = () => {
    frame = null;
    if (running?.abort === abort) live.set({ chat: chatId, turn: writer.turn(null) });
  };
  show();
  let end = { reason: "stopped" };
  try {
    const request = await requestFor(chat, start, { ...options, interventions: changesOf(start) }, abort.signal);
    if (request === null) end = fullContext(options);
    else {
      const body = { ...request.body, return_token_ids: true };
      if (chat.kind === "text") body.seed = writer.takeSeed(body, options);
      const events = askAnswer(request.route, body, pathTo(chat, start.parent), { signal: abort.signal });
      for await (const { choices, explained } of events) {
        if (explained) update(chatId, (now) => withChange(now, id, explained));
        for (const choice of choices) {
          const isFirst = writer.add(choice);
          if (choice.finish_reason) end = { reason: choice.finish_reason };
          if (choice.finish_reason && chat.kind === "chat") settle(end); // its sources come later
          if (isFirst || document.hidden) show(); // the first token at once, the others with the next frame
          else frame ??= requestAnimationFrame(show);
        }
      }
      if (end.reason === "length" && request.fills) end = fullContext(options);
    }
  } catch (error) {
    if (error.name !== "AbortError") end = { reason: "error", message: error.message, error };
  }
  if (frame !== null) cancelAnimationFrame(frame);
  settle(end);
  return find(chatId)?.turns.find((turn) => turn.id === id);
}

class Writer {
  #turn;
  #calls = [];
  #began = performance.now();
  #first = 0;
  #last = 0;
  #count = 0;
  #isThinking;

  constructor(start, { kind, settings }) {
    const isText = kind === "text";
    const ids = start.text === "" || start.ids?.length ? [...(start.ids ?? [])] : undefined;
    const pieces = isText && ids && (start.text === "" || start.pieces) ? [...(start.pieces ?? [])] : undefined;
    this.#turn = { ...start, ids, pieces, ...(!isText && settings.schema?.trim() ? { isStructured: true } : {}) };
    this.#isThinking = !start.thoughtMs;
  }

  /** A sampled text keeps its seed, so that it can be written again; greedy decoding has none. */
  takeSeed({ temperature, top_k: k, seed }, { defaults }) {
    const isGreedy = (temperature ?? defaults.temperature) === 0 || (k ?? defaults.top_k) === 1;
    this.#turn.seed = isGreedy ? undefined : seed ?? this.#turn.seed ?? Math.floor(Math.random() * 2 ** 31);
    return this.#turn.seed;
  }

  /** Returns whether the choice is the first one with a token. */
  add({ text, delta = { content: text }, token_ids: ids = [], logprobs }) {
    if (delta.role && !ids.length) return false;
    const turn = this.#turn;
    const isFirst = this.#count === 0;
    const now = performance.now();
    this.#last = now;
    this.#first ||= now;
    this.#count += ids.length;
    turn.ids?.push(...ids);
    // a token that completes no character has an empty text: its own decoding is used instead
    const pieceOf = (_, i) => [(ids.length === 1 && text) || (logprobs?.tokens[i] ?? ""), logprobs?.token_logprobs[i] ?? null];
    turn.pieces?.push(...ids.map(pieceOf));
    const thought = delta.reasoning_content ?? delta.reasoning;
    if (thought) turn.reasoning = (turn.reasoning ?? "") + thought;
    if (turn.reasoning && this.#isThinking) turn.thoughtMs = now - this.#began;
    if (delta.content) this.#isThinking = false;
    turn.text += delta.content ?? "";
    for (const call of delta.tool_calls ?? []) {
      const own = (this.#calls[call.index] ??= { id: "", name: "", arguments: "" });
      own.id ||= call.id ?? "";
      own.name += call.function?.name ?? "";
      own.arguments += call.function?.arguments ?? "";
    }
    return isFirst;
  }

  /** At the end the lists are copied: an aborted stream may still add to them. */
  turn(end) {
    const { ids, pieces } = this.#turn;
    return {
      ...this.#turn,
      ...(end ? { ids: ids && [...ids], pieces: pieces && [...pieces] } : {}),
      ...(this.#calls.length ? { calls: this.#calls.filter(Boolean).map((call) => ({ ...call })) } : {}),
      ...(this.#count ? { firstMs: this.#first - this.#began } : {}),
      ...(this.#count > 1 ? { perSecond: ((this.#count - 1) * 1000) / Math.max(1, this.#last - this.#first) } : {}),
      end,
    };
  }
}

addEventListener("pagehide", () => running?.settle());
