// Requests for the answers of a conversation and for the continuations of a text.
import { json } from "../../core/fetching.js";
import { counted } from "../../core/numbers.js";
import { messagesOf, pathTo } from "./tree.js";

/** Of the next token: the values that change nothing, where the model declares none. */
export const NEUTRAL = { temperature: 1, top_p: 1, top_k: 0, min_p: 0, repetition_penalty: 1, presence_penalty: 0, frequency_penalty: 0 };
export const SAMPLING = [...Object.keys(NEUTRAL), "seed", "max_tokens"];

/** Null if it is empty. Raises an error with its name for a text that is no JSON. */
function jsonOf(settings, name, label) {
  if (!settings[name]?.trim()) return null;
  try {
    return JSON.parse(settings[name]);
  } catch (error) {
    throw Object.assign(new Error(`${label} in the settings is not JSON: ${error.message}`), { title: "Not sent", status: 422 });
  }
}

/** shared: a text's settings that the address has. */
function samplingOf({ settings }, { shared } = {}) {
  const all = { ...settings, ...shared };
  const sampling = Object.fromEntries(SAMPLING.filter((name) => typeof all[name] === "number").map((name) => [name, all[name]]));
  const stops = (settings.stop ?? "").split("\n").filter(Boolean);
  return stops.length ? { ...sampling, stop: stops } : sampling;
}

export function requestOf(chat, turns, options = {}) {
  const { settings, kind } = chat;
  const more = { ...samplingOf(chat, options), ...(options.interventions?.length ? { interventions: options.interventions } : {}) };
  if (kind === "text") return { route: "v1/completions", body: { prompt: turns.map(({ text }) => text).join(""), ...more } };
  const [tools, schema] = [jsonOf(settings, "tools", "“Tools”"), jsonOf(settings, "schema", "“Form of the answer”")];
  if (settings.reasoning_effort) more.reasoning_effort = settings.reasoning_effort;
  if (tools) more.tools = tools;
  if (schema) more.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  const named = options.second && options.model === options.second ? { model: options.model } : {};
  return { route: "v1/chat/completions", body: { ...named, messages: messagesOf(chat, turns), ...more } };
}

export function promptOf(chat, turns) {
  const { messages, tools, reasoning_effort: effort } = requestOf(chat, turns).body;
  const variables = effort === "none" ? { enable_thinking: false, thinking: false } : { reasoning_effort: effort };
  return { messages, ...(tools ? { tools } : {}), ...(effort ? { chat_template_kwargs: variables } : {}) };
}

/** The ids before the answer to these turns; of an encoder-decoder the decoder's, and the encoder's text. */
export async function readPrompt(_, { chat, turns, model, isPair = false }, options) {
  if (isPair) {
    const [{ text }] = turns;
    const { data } = await json("v1/next", { input: text, num_tokens: 0 }, options); // the decoder's start token
    return { ids: data[0].token_ids, text, isPair };
  }
  if (chat.kind === "chat") return { ids: (await json("tokenize", promptOf(chat, turns), options)).tokens, isPair };
  const parts = await Promise.all(turns.map((turn, i) => idsOf(turn, model, options, i === 0)));
  return { ids: parts.flat(), isPair };
}

/** isFirst: with the special tokens of a text's beginning. */
export async function idsOf(turn, model, options, isFirst = false) {
  if (turn.ids && turn.model === model) return turn.ids;
  return (await json("tokenize", { prompt: turn.text, ...(isFirst ? {} : { add_special_tokens: false }) }, options)).tokens;
}

export function contextOf(prompt, after, field, interventions = []) {
  const ids = [...prompt.ids, ...after];
  const changes = interventions.length ? { interventions } : {};
  return prompt.isPair ? { [field]: prompt.text, decoder_input: ids, ...changes } : { [field]: ids, ...changes };
}

export const fullContext = ({ maxModelLen }) =>
  ({ reason: "context", message: `The context is full: this model reads ${counted(maxModelLen, "token")} at most.` });

/** They are this model's, and have no other text than the turn. */
const hasIdsOf = ({ ids, text, reasoning, calls, model }, name) => ids?.length && text && !reasoning && !calls?.length && model === name;

/** fills: the answer ends with the context. null: the context is full. */
export async function requestFor(chat, turn, options, signal) {
  const turns = pathTo(chat, turn.parent);
  const { route, body } = requestOf(chat, turns, options);
  if (chat.kind === "chat") {
    if (!turn.text && !turn.reasoning) return { route, body };
    if (!hasIdsOf(turn, options.model) || body.response_format) { // a grammar begins with the answer
      return { route, body: { ...body, messages: messagesOf(chat, [...turns, turn]), continue_final_message: true } };
    }
  }
  const prompt = await readPrompt("", { chat, turns, ...options }, { signal });
  const ids = turn.text ? await idsOf(turn, options.model, { signal }) : [];
  const { messages: _, tools: __, reasoning_effort: ___, prompt: ____, ...rest } = body;
  const room = (options.maxModelLen ?? Infinity) - prompt.ids.length - ids.length;
  if (room < 1) return null;
  const asked = body.max_tokens ?? room;
  const logprobs = chat.kind === "text" ? { logprobs: 0 } : {};
  return { route: "v1/completions", body: { ...rest, ...logprobs, ...contextOf(prompt, ids, "prompt"), max_tokens: Math.min(asked, room) },
    fills: asked >= room };
}
