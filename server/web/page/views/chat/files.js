// Conversations as a file: export, and import with bounds and checks.

import { SAMPLING } from "./requests.js";

const FORMAT = "lightwell conversations";
const MOST_BYTES = 32e6;
const MOST = { conversations: 2000, turns: 20_000, files: 32, calls: 128, ids: 1e6, text: 4e6, name: 1000 };
const ROLES = ["user", "assistant", "tool"];

export const asFile = (chats) => new Blob([JSON.stringify({ format: FORMAT, version: 1, conversations: chats })],
  { type: "application/json" });

const unreadable = (said) => Object.assign(new Error(said), { title: "Not imported", status: 422 });

/** Raises an error that names the first wrong field; then nothing is imported. */
export async function readFile(file) {
  if (file.size > MOST_BYTES) throw unreadable(`${file.name} has ${file.size} bytes; at most ${MOST_BYTES} are accepted.`);
  let content;
  try {
    content = JSON.parse(await file.text());
  } catch {
    throw unreadable(`${file.name} is not JSON.`);
  }
  if (content?.format !== FORMAT) throw unreadable(`${file.name} is no export of this page: its format is not “${FORMAT}”.`);
  return list(content.conversations, "conversations", MOST.conversations, readChat);
}

const fail = (at, said) => {
  throw unreadable(`${at} ${said}. Nothing was imported.`);
};

const object = (value, at) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value : fail(at, "is not an object"));

function list(value, at, most, read) {
  if (!Array.isArray(value)) fail(at, "is not a list");
  if (value.length > most) fail(at, `has ${value.length} entries; at most ${most} are accepted`);
  return value.map((one, i) => read(one, `${at}[${i}]`));
}

function text(value, at, most = MOST.text) {
  if (typeof value !== "string") fail(at, "is not a text");
  if (value.length > most) fail(at, `has ${value.length} characters; at most ${most} are accepted`);
  return value;
}

const name = (value, at) => text(value, at, MOST.name);

function number(value, at, { low = -1e15, high = 1e15, whole = false } = {}) {
  const isGood = typeof value === "number" && value >= low && value <= high && (!whole || Number.isInteger(value));
  return isGood ? value : fail(at, `is not a ${whole ? "whole " : ""}number from ${low} to ${high}`);
}

const count = (value, at) => number(value, at, { low: 0, high: 2 ** 31, whole: true });
const isTrue = (value) => value === true;
const fields = (readers) => (value, at) =>
  Object.fromEntries(Object.entries(readers).map(([field, read]) => [field, read(value?.[field], `${at}.${field}`)]));
const listOf = (most, read) => (value, at) => list(value, at, most, read);

/** The checked copy with the known fields only; `at` is its place for messages. */
export function readChat(raw, at) {
  object(raw, at);
  const parents = new Map([[0, null]]); // by the turn's id
  const turns = list(raw.turns, `${at}.turns`, MOST.turns, (turn, place) => {
    const read = readTurn(turn, place);
    if (!parents.has(read.parent)) fail(`${place}.parent`, "is no earlier turn");
    if (parents.has(read.id)) fail(`${place}.id`, "is not unique");
    parents.set(read.id, read.parent);
    return read;
  });
  const chosen = Object.entries(raw.chosen ?? {}).filter(([parent, id]) => id !== 0 && parents.get(id) === Number(parent));
  return {
    id: text(raw.id, `${at}.id`, 64),
    kind: raw.kind === "text" ? "text" : "chat",
    title: name(raw.title ?? "", `${at}.title`),
    system: text(raw.system ?? "", `${at}.system`),
    settings: readSettings(raw.settings ?? {}, `${at}.settings`),
    updated: number(raw.updated ?? 0, `${at}.updated`),
    turns,
    chosen: Object.fromEntries(chosen.map(([parent, id]) => [Number(parent), id])),
  };
}

const READERS = {
  files: listOf(MOST.files, fields({ name, text })),
  calls: listOf(MOST.calls, fields({ id: name, name, arguments: text })),
  ids: listOf(MOST.ids, count),
  pieces: listOf(MOST.ids, (piece, at) =>
    [name(piece?.[0], `${at}[0]`), (piece[1] ?? null) === null ? null : number(piece[1], `${at}[1]`)]),
  forced: listOf(MOST.ids, count),
  seed: number,
  twin: count,
  reasoning: text,
  call: name,
  model: name,
  changes: (value, at) => {
    let changes;
    try {
      changes = JSON.parse(text(value, at));
    } catch {
      fail(at, "is not JSON");
    }
    return JSON.stringify(list(changes, at, MOST.calls, object));
  },
  end: (value, at) => fields({ reason: name, message: text })({ message: "", ...object(value, at) }, at),
  sources: listOf(MOST.calls, fields({
    end: count, parts: listOf(MOST.calls, fields({ turn: count, start: count, end: count, effect: number })),
  })),
  lack: text,
  isStructured: isTrue,
  isEdited: isTrue,
  firstMs: number,
  thoughtMs: number,
  perSecond: number,
};

function readTurn(raw, at) {
  object(raw, at);
  if (!ROLES.includes(raw.role)) fail(`${at}.role`, `is none of ${ROLES.join(", ")}`);
  const turn = { ...fields({ id: count, parent: count })(raw, at), role: raw.role, text: text(raw.text, `${at}.text`) };
  for (const [field, read] of Object.entries(READERS)) {
    if (raw[field] !== undefined && raw[field] !== null) turn[field] = read(raw[field], `${at}.${field}`);
  }
  if (turn.pieces?.length !== turn.ids?.length) delete turn.pieces; // the ids are read again
  return turn;
}

const TEXTS = ["stop", "tools", "schema", "reasoning_effort"];

function readSettings(raw, at) {
  const given = Object.entries(object(raw, at));
  if (given.length > 40) fail(at, "has more than 40 names");
  return Object.fromEntries(given.filter(([field]) => [...SAMPLING, ...TEXTS].includes(field)).map(([field, value]) =>
    [field, (TEXTS.includes(field) ? text : number)(value, `${at}.${field}`)]));
}
