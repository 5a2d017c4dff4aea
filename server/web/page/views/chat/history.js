// The conversations of this browser, in localStorage: separate for each server and API key, one entry each. They are
// in memory only where the page is framed or saved, and where the browser refuses to store them.
import { apiKey, root } from "../../core/api.js";
import { isFramed, saved } from "../../core/place.js";
import { carry } from "../../core/saved.js";
import { Store } from "../../core/store.js";
import { readChat } from "./files.js";
import { contains, newConversation, pathOf } from "./tree.js";

/** Whether conversations outlast the page. */
export const isStored = !saved && !isFramed;

/**
 * {chats, current, draft, problem}: the conversations, the latest first; the id of the open one, "" for a new one;
 * the new one, which has no message yet; why some are in memory only, or "".
 */
export const history = new Store({ chats: [], current: "", draft: newConversation(""), problem: "" });

const change = (changes) => history.set({ ...history.value, ...changes });

/** A number of 53 bits that differs for different keys, and does not reveal one (cyrb53). */
function digest(text) {
  let [high, low] = [0xdeadbeef, 0x41c6ce57];
  for (const sign of text) {
    high = Math.imul(high ^ sign.codePointAt(0), 2654435761);
    low = Math.imul(low ^ sign.codePointAt(0), 1597334677);
  }
  high = Math.imul(high ^ (high >>> 16), 2246822507) ^ Math.imul(low ^ (low >>> 13), 3266489909);
  low = Math.imul(low ^ (low >>> 16), 2246822507) ^ Math.imul(high ^ (high >>> 13), 3266489909);
  return (4294967296 * (2097151 & low) + (high >>> 0)).toString(36);
}

const owner = () => `lightwell chat ${root.pathname} ${digest(apiKey.value)}`;
const nameOf = (id) => `${owner()} ${id}`;
const unstored = new Map(); // conversations in memory only, by their names in the storage

function read(name) {
  try {
    return readChat(JSON.parse(localStorage.getItem(name)), "conversation");
  } catch {
    return null; // of a later version of the page, perhaps: it stays there
  }
}

/** The names of this owner's entries; none where the browser refuses the storage. */
function storedNames() {
  try {
    return isStored ? Object.keys(localStorage).filter((name) => name.startsWith(`${owner()} `)) : [];
  } catch {
    return [];
  }
}

const latestFirst = (chats) => chats.sort((one, other) => other.updated - one.updated);

function load() {
  const kept = [...unstored].filter(([name]) => name.startsWith(`${owner()} `)).map(([, chat]) => chat);
  const chats = latestFirst([...storedNames().filter((name) => !unstored.has(name)).map(read).filter(Boolean), ...kept]);
  let current = "";
  try {
    current = (isStored && sessionStorage.getItem(owner())) || "";
  } catch {
    // no storage: a new conversation
  }
  change({ chats, current: chats.some(({ id }) => id === current) ? current : "" });
}

const WHY = "This browser does not store the conversation";

/** Store an entry, or keep it in memory and show why. */
function write(chat) {
  const name = nameOf(chat.id);
  if (!isStored) return;
  try {
    localStorage.setItem(name, JSON.stringify(chat));
    unstored.delete(name);
    if (unstored.size === 0) change({ problem: "" });
  } catch (error) {
    unstored.set(name, chat);
    const reason = error.name === "QuotaExceededError" ? "its storage for this site is full" : error.message;
    change({ problem: `${WHY}: ${reason}. It is kept until the page is closed. Export it, or delete old ones.` });
  }
}

export const find = (id) => history.value.chats.find((chat) => chat.id === id);

/** The open conversation, or the new one. */
export const chatNow = ({ chats, current, draft }) => chats.find(({ id }) => id === current) ?? draft;

/** Open a conversation; "" is a new one. */
export function open(id) {
  change({ current: id });
  try {
    if (isStored) sessionStorage.setItem(owner(), id);
  } catch {
    // it is not opened again after a reload
  }
}

const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(36).padStart(2, "0")).join("");

/** The id of the open conversation; the new one gets an id and a place in the list, and the next one its settings. */
export function begin() {
  const { current, draft, chats } = history.value;
  if (find(current)) return current;
  const id = newId();
  change({ chats: [{ ...draft, id, updated: Date.now() }, ...chats], draft: { ...newConversation(""), settings: draft.settings } });
  open(id);
  return id;
}

/** Replace a conversation by `edit(conversation)`, and store it. isTouched: whether it becomes the latest. */
export function update(id, edit, { isTouched = true } = {}) {
  if (id === "") return change({ draft: edit(history.value.draft) });
  const chat = find(id);
  if (!chat) return undefined; // deleted meanwhile
  const next = { ...edit(chat), ...(isTouched ? { updated: Date.now() } : {}) };
  change({ chats: latestFirst(history.value.chats.map((one) => (one.id === id ? next : one))) });
  return write(next);
}

/** Add conversations of a file. An id that exists gets a new one, so that nothing is overwritten. */
export function add(chats) {
  const isTaken = new Set(history.value.chats.map(({ id }) => id));
  const own = chats.map((chat) => {
    const id = isTaken.has(chat.id) || !/^\w+$/.test(chat.id) ? newId() : chat.id;
    isTaken.add(id);
    return { ...chat, id };
  });
  change({ chats: latestFirst([...own, ...history.value.chats]) });
  own.forEach(write);
  if (own.length) open(own[0].id);
}

/** Delete these conversations here and in the storage. */
export function remove(ids) {
  const gone = new Set(ids);
  for (const id of gone) {
    unstored.delete(nameOf(id));
    if (isStored) localStorage.removeItem(nameOf(id));
  }
  change({ chats: history.value.chats.filter(({ id }) => !gone.has(id)) });
  for (const [name, chat] of [...unstored]) if (name === nameOf(chat.id)) write(chat); // there may be room now
  if (gone.has(history.value.current)) open("");
}

/** The conversations with these words. */
export const search = (chats, words) => (words.trim() === "" ? chats : chats.filter((chat) => contains(chat, words.trim())));

const carried = carry("chat", () => {
  const chat = chatNow(history.value);
  return { ...chat, turns: pathOf(chat) };
});
if (carried) change({ chats: [{ ...carried, id: "saved" }], current: "saved" });
else load();
apiKey.follow(load);
addEventListener("storage", ({ key, newValue }) => { // another tab of this browser
  if (!isStored || !key?.startsWith(`${owner()} `)) return;
  const chat = newValue === null ? null : read(key);
  const others = history.value.chats.filter(({ id }) => nameOf(id) !== key);
  change({ chats: latestFirst(chat ? [chat, ...others] : others) });
});
addEventListener("beforeunload", (event) => unstored.size > 0 && event.preventDefault());
