// The conversations and texts of this browser, in localStorage: separate for each server and API key, one entry each; or in memory.
import { apiKey, root } from "../../core/api.js";
import { isFramed, saved } from "../../core/place.js";
import { carry, seenMore } from "../../core/saved.js";
import { seenOf } from "../../core/seen.js";
import { select, state } from "../../core/state.js";
import { Store } from "../../core/store.js";
import { readChat } from "./files.js";
import { newConversation, pathOf } from "./tree.js";

export const isStored = !saved && !isFramed;

/** The latest first; current: "" for a new one; drafts: the new ones by their kind, which is their id; problem: why some are not stored. */
export const history = new Store({
  chats: [], current: "", drafts: { chat: newConversation("chat"), text: newConversation("text") }, problem: "",
});

const change = (changes) => history.set({ ...history.value, ...changes });

/** A number of 64 bits (FNV-1a) that differs for different keys, and does not reveal one. */
const digest = (text) => Array.from(text).reduce((hash, sign) =>
  BigInt.asUintN(64, (hash ^ BigInt(sign.codePointAt(0))) * 0x100000001b3n), 0xcbf29ce484222325n).toString(36);

const owner = () => `lightwell chat ${root.pathname} ${digest(apiKey.value)}`;
const nameOf = (id) => `${owner()} ${id}`;
const isOwn = (name) => name.startsWith(nameOf(""));
const unstored = new Map(); // conversations in memory only, by their names in the storage

/** `other` where the browser refuses the storage. */
function tried(use, other) {
  try {
    return isStored ? use() : other;
  } catch {
    return other;
  }
}

/** Null for a damaged one, or one of a later version of the page, which stays there. */
const read = (name) => tried(() => readChat(JSON.parse(localStorage.getItem(name)), "conversation"), null);

const latestFirst = (chats) => chats.sort((one, other) => other.updated - one.updated);

function load() {
  const names = tried(() => Object.keys(localStorage).filter((name) => isOwn(name) && !unstored.has(name)), []);
  const kept = [...unstored].filter(([name]) => isOwn(name)).map(([, chat]) => chat);
  const chats = latestFirst([...names.map(read).filter(Boolean), ...kept]);
  const current = tried(() => sessionStorage.getItem(owner()), "");
  change({ chats, current: chats.some(({ id }) => id === current) ? current : "" });
}

function write(chat) {
  if (!isStored) return;
  const name = nameOf(chat.id);
  try {
    localStorage.setItem(name, JSON.stringify(chat));
    unstored.delete(name);
    if (unstored.size === 0) change({ problem: "" });
  } catch (error) {
    unstored.set(name, chat);
    const reason = error.name === "QuotaExceededError" ? "its storage for this site is full" : error.message;
    change({ problem: `This browser does not store the conversation: ${reason}. It is kept until the page is closed. ` +
      "Export it, or delete old ones." });
  }
}

export const find = (id) => history.value.chats.find((chat) => chat.id === id);

/** The open conversation if it is of this kind, or the new one. A text is shown while the page's text is a part of it. */
export function chatNow({ chats, current, drafts }, kind, text) {
  const chat = chats.find((one) => one.id === current && one.kind === kind);
  if (kind === "chat" || !chat) return chat ?? drafts[kind];
  const all = pathOf(chat).map((turn) => turn.text);
  return all.length === 0 || (text.startsWith(all[0]) && all.join("").startsWith(text)) ? chat : drafts.text;
}

export const shareText = (text, options) => select({ text, query: -1, key: null }, options);

export function shareBeginning(chat) {
  const [first] = pathOf(chat);
  if (chat.kind === "text" && first) shareText(first.text);
}

/** "" is a new one. */
export function open(id) {
  change({ current: id });
  tried(() => sessionStorage.setItem(owner(), id));
}

const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(36).padStart(2, "0")).join("");

/** A new one gets an id and a place in the list, and the next new one its settings. */
export function begin(id) {
  const { drafts, chats } = history.value;
  const draft = drafts[id];
  if (!draft) return id;
  const begun = { ...draft, id: newId(), updated: Date.now() };
  change({ chats: [begun, ...chats], drafts: { ...drafts, [id]: newConversation(id, draft.settings) } });
  open(begun.id);
  seenMore.chat = begun.id;
  return begun.id;
}

/** isTouched: whether it becomes the latest. */
export function update(id, edit, { isTouched = true } = {}) {
  const { drafts, chats } = history.value;
  if (id in drafts) return change({ drafts: { ...drafts, [id]: edit(drafts[id]) } });
  const chat = find(id);
  if (!chat) return undefined; // deleted meanwhile
  const next = { ...edit(chat), ...(isTouched ? { updated: Date.now() } : {}) };
  const isShown = () => chatNow(history.value, "text", seenOf(state.value).text).id === id;
  const wasShown = isShown();
  change({ chats: latestFirst(chats.map((one) => (one.id === id ? next : one))) });
  if (wasShown && !isShown()) shareBeginning(next);
  return write(next);
}

/** An id that exists gets a new one, so that nothing is overwritten. */
export function add(chats) {
  const isTaken = new Set([...Object.keys(history.value.drafts), ...history.value.chats.map(({ id }) => id)]);
  const own = chats.map((chat) => {
    const id = isTaken.has(chat.id) || !/^\w+$/.test(chat.id) ? newId() : chat.id;
    isTaken.add(id);
    return { ...chat, id };
  });
  change({ chats: latestFirst([...own, ...history.value.chats]) });
  own.forEach(write);
  return own;
}

export function remove(ids) {
  const gone = new Set(ids);
  for (const id of gone) {
    unstored.delete(nameOf(id));
    tried(() => localStorage.removeItem(nameOf(id)));
  }
  change({ chats: history.value.chats.filter(({ id }) => !gone.has(id)) });
  for (const [name, chat] of [...unstored]) if (isOwn(name)) write(chat); // there may be room now
  if (unstored.size === 0) change({ problem: "" });
  if (gone.has(history.value.current)) open("");
}

let shown = null;
export const noteShown = (chat) => {
  shown = chat;
  seenMore.chat = chat?.id;
};

const carried = carry("chat", () => shown && { ...shown, turns: pathOf(shown) });
if (carried) change({ chats: [{ ...carried, id: "saved" }], current: "saved" });
else load();
apiKey.follow(load);
addEventListener("storage", ({ key, newValue }) => { // another tab of this browser
  if (!isStored || !key || !isOwn(key)) return;
  const chat = newValue === null ? null : read(key);
  const others = history.value.chats.filter(({ id }) => nameOf(id) !== key);
  change({ chats: latestFirst(chat ? [chat, ...others] : others) });
});
addEventListener("beforeunload", (event) => unstored.size > 0 && event.preventDefault());
