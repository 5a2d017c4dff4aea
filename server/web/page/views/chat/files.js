// Conversations as a file: export, and import with bounds and checks. Nothing of a file is used unchecked.

const FORMAT = "lightwell conversations";
const MOST_BYTES = 32e6;
const MOST = { conversations: 2000, turns: 20_000, files: 32, calls: 128, ids: 1e6, text: 4e6, name: 1000 };
const ROLES = ["user", "assistant", "tool"];

export const asFile = (chats) => new Blob([JSON.stringify({ format: FORMAT, version: 1, conversations: chats })],
  { type: "application/json" });

class Unreadable extends Error {
  title = "Not imported";
  status = 422;
}

/** The conversations of a file. Raises an error that names the first wrong field; then nothing is imported. */
export async function readFile(file) {
  if (file.size > MOST_BYTES) throw new Unreadable(`${file.name} has ${file.size} bytes; at most ${MOST_BYTES} are accepted.`);
  let content;
  try {
    content = JSON.parse(await file.text());
  } catch {
    throw new Unreadable(`${file.name} is not JSON.`);
  }
  if (content?.format !== FORMAT) throw new Unreadable(`${file.name} is no export of this page: its format is not “${FORMAT}”.`);
  return list(content.conversations, "conversations", MOST.conversations, readChat);
}

const fail = (at, said) => {
  throw new Unreadable(`${at} ${said}. Nothing was imported.`);
};

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

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

function number(value, at, { low = -1e15, high = 1e15, whole = false } = {}) {
  const isGood = typeof value === "number" && value >= low && value <= high && (!whole || Number.isInteger(value));
  return isGood ? value : fail(at, `is not a ${whole ? "whole " : ""}number from ${low} to ${high}`);
}

const count = (value, at) => number(value, at, { low: 0, high: 2 ** 31, whole: true });

/** The checked copy of a conversation, with the known fields only; `at` is its place for messages. */
export function readChat(raw, at) {
  if (!isObject(raw)) fail(at, "is not an object");
  const seen = new Map([[0, null]]);
  const turns = list(raw.turns, `${at}.turns`, MOST.turns, (turn, place) => {
    const read = readTurn(turn, place);
    if (!seen.has(read.parent)) fail(`${place}.parent`, "is no earlier turn");
    if (seen.has(read.id)) fail(`${place}.id`, "is not unique");
    seen.set(read.id, read.parent);
    return read;
  });
  const chosen = {};
  for (const [parent, id] of Object.entries(isObject(raw.chosen) ? raw.chosen : {})) {
    if (/^\d+$/.test(parent) && id !== 0 && seen.get(id) === Number(parent)) chosen[parent] = id;
  }
  return {
    id: text(raw.id, `${at}.id`, 64),
    title: text(raw.title ?? "", `${at}.title`, MOST.name),
    system: text(raw.system ?? "", `${at}.system`),
    settings: readSettings(raw.settings ?? {}, `${at}.settings`),
    updated: number(raw.updated ?? 0, `${at}.updated`),
    turns,
    chosen,
  };
}

const READERS = {
  files: (value, at) => list(value, at, MOST.files, (file, place) => ({
    name: text(file?.name, `${place}.name`, MOST.name), text: text(file?.text, `${place}.text`),
  })),
  calls: (value, at) => list(value, at, MOST.calls, (call, place) => ({
    id: text(call?.id, `${place}.id`, MOST.name),
    name: text(call?.name, `${place}.name`, MOST.name),
    arguments: text(call?.arguments, `${place}.arguments`),
  })),
  ids: (value, at) => list(value, at, MOST.ids, count),
  reasoning: (value, at) => text(value, at),
  call: (value, at) => text(value, at, MOST.name),
  model: (value, at) => text(value, at, MOST.name),
  forced: (value, at) => list(value, at, 2, count),
  end: (value, at) => ({
    reason: text(value?.reason, `${at}.reason`, 40), ...(value.message ? { message: text(value.message, `${at}.message`) } : {}),
  }),
  isStructured: (value) => value === true,
  isEdited: (value) => value === true,
  isChanged: (value) => value === true,
  firstMs: number,
  thoughtMs: number,
  perSecond: number,
};

function readTurn(raw, at) {
  if (!isObject(raw)) fail(at, "is not an object");
  if (!ROLES.includes(raw.role)) fail(`${at}.role`, `is none of ${ROLES.join(", ")}`);
  const [id, parent] = ["id", "parent"].map((name) => count(raw[name], `${at}.${name}`));
  const turn = { id, parent, role: raw.role, text: text(raw.text, `${at}.text`) };
  for (const [name, read] of Object.entries(READERS)) {
    if (raw[name] !== undefined && raw[name] !== null) turn[name] = read(raw[name], `${at}.${name}`);
  }
  return turn;
}

/** Numbers and texts by the names of settings; the server checks their values. */
function readSettings(raw, at) {
  if (!isObject(raw)) fail(at, "is not an object");
  const names = Object.keys(raw);
  if (names.length > 40) fail(at, "has more than 40 names");
  return Object.fromEntries(names.filter((name) => /^[a-z_]{1,40}$/.test(name)).map((name) => [name,
    typeof raw[name] === "string" ? text(raw[name], `${at}.${name}`) : number(raw[name], `${at}.${name}`)]));
}
