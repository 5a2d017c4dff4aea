// Answers in a saved file: responses are kept unchanged, written into the file, and read from it.
import { chosenModel } from "./chosen_model.js";
import { isEmbedded, saved } from "./place.js";
import { state } from "./state.js";

const MOST_BYTES = 32 * 1024 * 1024; // of all kept responses; they are blobs, outside the heap

const keyOf = (route, body, accept) => JSON.stringify([route.replace(/^\//, ""), accept, inOrder(body ?? null)]);

function inOrder(part) {
  if (Array.isArray(part)) return part.map(inOrder);
  if (part === null || typeof part !== "object") return part;
  return Object.fromEntries(Object.keys(part).sort().map((name) => [name, inOrder(part[name])]));
}

const kept = new Map();
let bytes = 0;
const underway = new Map();
const held = new Map(); // number of places on the page that show the answer of a request now

const TEXTS = ["view", "text", "decoder", "embeddings_texts", "contributions_pair", "patching_a", "patching_b", "motion_word",
  "motion_texts", "change_text", "change_source", "change_away"];

export const seenMore = {};

const seenNow = () => JSON.stringify([...TEXTS.map((name) => state.value[name]), seenMore.chat]);

const keyAmongAll = (model, { route, body, accept }) => `${model} ${keyOf(route, body, accept)}`;

/** Keep a model's response to a request: the ArrayBuffer that `read()` resolves to. */
export async function keep(model, request, read) {
  if (isEmbedded) return read();
  const key = keyAmongAll(model, request);
  const seen = new Set([seenNow()]); // at its start: another text may be shown at its end
  underway.set(key, seen);
  try {
    const answer = await read();
    store(key, { model, request, blob: new Blob([answer]), seen: new Set([...seen, ...(kept.get(key)?.seen ?? [])]) });
    return answer;
  } finally {
    if (underway.get(key) === seen) underway.delete(key);
  }
}

function store(key, entry) {
  drop(key);
  kept.set(key, entry);
  bytes += entry.blob.size;
  for (const [oldKey, { request: old }] of kept) {
    if (bytes <= MOST_BYTES) break;
    if (oldKey !== key && !held.has(nameOf(old))) drop(oldKey);
  }
}

function drop(key) {
  bytes -= kept.get(key)?.blob.size ?? 0;
  kept.delete(key);
}

const nameOf = ({ route, body }) => `${route} ${JSON.stringify(body ?? null)}`;

/** The view shows the answer of a request that was sent before. */
export function noteSeen(route, body, accept) {
  const key = keyAmongAll(chosenModel.value, { route, body, accept });
  const entry = kept.get(key);
  (entry?.seen ?? underway.get(key))?.add(seenNow());
  if (!entry) return;
  kept.delete(key);
  kept.set(key, entry);
}

/** A place shows the answer; returns a function that ends this. */
export function hold(route, body) {
  const name = nameOf({ route, body });
  held.set(name, (held.get(name) ?? 0) + 1);
  return () => (held.get(name) > 1 ? held.set(name, held.get(name) - 1) : held.delete(name));
}

export function forgetKept() {
  kept.clear();
  bytes = 0;
}

const carried = new Map();

/** Save state that is in no answer; returns the saved state in a saved file. */
export function carry(name, read) {
  carried.set(name, read);
  return saved?.states[name];
}

export async function contentOf(root, hash) {
  const now = seenNow();
  const wanted = [...kept.values()].filter(({ model, request, seen }) =>
    model === chosenModel.value && (seen.has(now) || held.has(nameOf(request))));
  const answers = await Promise.all(wanted.map(async ({ request, blob }) => ({ ...request, ...(await written(request, blob)) })));
  const states = Object.fromEntries(Array.from(carried, ([name, read]) => [name, read()]));
  return { root: root.href, hash, at: new Date().toISOString(), answers, states };
}

const isBinary = (accept) => accept === "application/vnd.safetensors";

async function written({ accept }, blob) {
  return isBinary(accept) ? { data: base64Of(new Uint8Array(await blob.arrayBuffer())) } : { text: await blob.text() };
}

function base64Of(all) {
  let binary = "";
  for (let i = 0; i < all.length; i += 0x8000) binary += String.fromCharCode(...all.subarray(i, i + 0x8000));
  return btoa(binary);
}

const inFile = new Map(saved?.answers.map((answer) => [keyOf(answer.route, answer.body, answer.accept), answer]));

/** Null if the file does not have it. */
export function responseInFile(route, body, accept) {
  const answer = inFile.get(keyOf(route, body, accept));
  if (!answer) return null;
  const content = answer.text ?? Uint8Array.from(atob(answer.data), (sign) => sign.charCodeAt(0));
  return new Response(content, { headers: { "Content-Type": accept } });
}
