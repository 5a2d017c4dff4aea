// Generated texts: trees of branches, one for each continuation of a prompt. They are kept when another view is
// opened.
import { askJson, askStream } from "../../core/api.js";
import { chosenModel } from "../../core/chosen_model.js";
import { carry } from "../../core/saved.js";
import { Store } from "../../core/store.js";

/**
 * branches: [{id, prompt, begun, parent, from, tokens: [{id, text, logprob, isForced}], interventions, end, speed,
 * seed}]. prompt: {text, shown, ids, isPair}; ids: the token ids before the tokens (of an encoder-decoder:
 * the decoder's first ones). begun: equal for branches from the same continuation of a prompt. The first `from`
 * tokens are the parent's. seed: null for a greedy branch. interventions: those used for the generation, null for the
 * unchanged model. end: null while generating, then {reason, error}. current: the id of the displayed branch.
 */
export const story = new Store(
  carry("story", () => ({ ...story.value, isRunning: false })) ??
    { branches: [], current: 0, isRunning: false },
);

const drawSeed = () => Math.floor(Math.random() * 2 ** 31);

const REDRAW_MS = 33; // more often than once a frame is useless

let running = null; // the AbortController of the stream
let lastBegun = 0; // number of prompts that were read
let lastId = 0; // ids are never reused: a stream that stops late must not write into another story
const newId = () => {
  lastId += 1;
  return lastId;
};

export const branchNow = ({ branches, current }) => branches.find((branch) => branch.id === current) ?? null;

/** The ids of all tokens before that place of the branch. */
export const idsBefore = (branch, place) => [...branch.prompt.ids, ...branch.tokens.slice(0, place).map((token) => token.id)];

/** {prompt or input, decoder_input} of a request that continues these ids. */
export function contextOf(prompt, ids, field) {
  return prompt.isPair ? { [field]: prompt.text, decoder_input: ids } : { [field]: ids };
}

const change = (changes) => story.set({ ...story.value, ...changes });

function changeBranch(id, changes) {
  change({ branches: story.value.branches.map((branch) => (branch.id === id ? { ...branch, ...changes } : branch)) });
}

export const choose = (id) => change({ current: id });

export function stop() {
  running?.abort();
}

// Token ids are of one model's vocabulary, so each model has its own texts.
let owner = chosenModel.value;
const ofOthers = new Map();
chosenModel.follow((model) => {
  stop();
  lastBegun += 1;
  const branches = story.value.branches.map((branch) => ({ ...branch, end: branch.end ?? { reason: "stopped" } }));
  ofOthers.set(owner, { ...story.value, branches, isRunning: false });
  owner = model;
  story.set(ofOthers.get(model) ?? { branches: [], current: 0, isRunning: false });
});

/** Continue a text; earlier branches are kept. Raises ApiError when the server rejects the prompt. */
export async function begin(text, options) {
  stop();
  lastBegun += 1;
  const begun = lastBegun;
  const prompt = await readPrompt(text, options);
  if (begun !== lastBegun) return; // another prompt was given meanwhile
  const root = (interventions) =>
    ({ id: newId(), prompt, begun, parent: null, from: 0, tokens: [], interventions, end: null, speed: null, seed: null });
  const roots = options.interventions.length ? [root(null), root(options.interventions)] : [root(null)];
  const kept = story.value.branches.filter((branch) => branch.tokens.length > 0);
  change({ branches: [...kept, ...roots], current: roots.at(-1).id });
  const seed = options.seed ?? drawSeed(); // one seed for both, so that only the changes differ
  for (const { id } of roots) {
    const end = await grow(id, { ...options, seed });
    if (begun !== lastBegun || end.reason === "stopped") return;
  }
}

async function readPrompt(text, { isPair }) {
  if (isPair) {
    const { data } = await askJson("v1/next", { input: text, num_tokens: 0 }); // the decoder's start token
    return { text, shown: "", ids: data[0].token_ids, isPair };
  }
  const { tokens: ids } = await askJson("tokenize", { prompt: text });
  return { text, shown: text, ids, isPair };
}

/**
 * Create a branch: the first `place` tokens of a branch, then the forced ones [{id, text, logprob}], then generated
 * ones. Its parent is the branch with the last of these first tokens.
 */
export async function fork(branch, place, forced, options) {
  stop();
  const id = newId();
  const tokens = [...branch.tokens.slice(0, place), ...forced.map((token) => ({ ...token, isForced: true }))];
  const parentOf = ({ parent }) => story.value.branches.find((one) => one.id === parent);
  let owner = branch;
  while (owner.parent !== null && place <= owner.from) owner = parentOf(owner);
  const made = { ...branch, id, parent: owner.id, from: place, tokens, end: null, speed: null };
  change({ branches: [...story.value.branches, made], current: id });
  await grow(id, options);
}

/** Extend a branch until the model ends it, `max_tokens` are generated, or it is stopped; returns the end. */
export async function grow(id, options) {
  stop();
  const abort = new AbortController();
  running = abort;
  const start = story.value.branches.find((branch) => branch.id === id);
  const { prompt } = start;
  const ids = idsBefore(start, start.tokens.length);
  const room = options.maxModelLen ? options.maxModelLen - ids.length : Infinity;
  // the seed is kept, so that sampled text can be reproduced; greedy decoding has none
  const seed = options.isGreedy ? null : options.seed ?? drawSeed();
  changeBranch(id, { end: null, speed: null, seed });
  change({ isRunning: true });
  let end;
  try {
    end = room < 1 ? { reason: "context" } : await write(id, start.tokens,
      { ...bodyOf(prompt, ids, options, room), ...changesOf(start), seed }, abort.signal);
    if (end.reason === "length" && room <= options.maxTokens) end = { reason: "context" };
  } catch (error) {
    end = error.name === "AbortError" ? { reason: "stopped" } : { reason: "error", error };
  }
  changeBranch(id, { end });
  if (running !== abort) return end; // another stream has started
  running = null;
  change({ isRunning: false });
  return end;
}

/** {interventions} for the requests of a branch; {} for the unchanged model. */
export const changesOf = ({ interventions }) => (interventions ? { interventions } : {});

const bodyOf = (prompt, ids, options, room) => ({
  ...contextOf(prompt, ids, "prompt"),
  ...options.sampling,
  max_tokens: Math.min(options.maxTokens, room),
  logprobs: 0,
  return_token_ids: true,
});

/** Stream into the branch; returns the end. */
async function write(id, before, body, signal) {
  const began = performance.now();
  const written = [];
  let [first, drawn, last] = [0, 0, began];
  let end = { reason: "stopped" };
  const show = () => {
    drawn = last;
    const perSecond = written.length > 1 ? ((written.length - 1) * 1000) / (last - first) : null;
    const speed = written.length ? { firstMs: first - began, perSecond } : null;
    changeBranch(id, { tokens: [...before, ...written], speed });
  };
  try {
    for await (const { choices } of askStream("v1/completions", body, { signal })) {
      for (const choice of choices) {
        written.push(...tokensOf(choice));
        if (choice.finish_reason) end = { reason: choice.finish_reason };
      }
      last = performance.now();
      first ||= last;
      if (last - drawn > REDRAW_MS) show();
    }
  } finally {
    show();
  }
  return end;
}

/** The tokens of one event. A token that completes no character has an empty text: its own decoding is used instead. */
function tokensOf({ text, token_ids: ids = [], logprobs }) {
  return ids.map((id, i) => ({
    id,
    text: (ids.length === 1 && text) || (logprobs?.tokens[i] ?? ""),
    logprob: logprobs?.token_logprobs[i] ?? null,
    isForced: false,
  }));
}
