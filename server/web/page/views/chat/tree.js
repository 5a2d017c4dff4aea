// The tree of a conversation, as plain data: turns with their versions. Pure functions that return a changed copy.

/**
 * A conversation is {id, title, system, settings, updated, turns, chosen}. turns: [{id, parent, role, text, ...}] in
 * order of creation, so that versions keep their order; parent: the id of the turn before, 0 for the first one. Turns
 * with one parent and one role are versions of each other. chosen: by a parent's id, the version that is shown.
 * A turn of the user has `files` [{name, text}]; of the assistant `reasoning`, `calls` [{id, name, arguments}], `ids`
 * (token ids), `end` {reason, message} and speeds; of a tool `call`, the id of the call.
 */
export const newConversation = (id, settings = {}) =>
  ({ id, title: "", system: "", settings, updated: Date.now(), turns: [], chosen: {} });

const below = ({ turns }, parent) => turns.filter((turn) => turn.parent === parent);

/** The shown turns, from the first to the last. */
export function pathOf(chat) {
  const path = [];
  for (let parent = 0; ;) {
    const versions = below(chat, parent);
    if (versions.length === 0) return path;
    const turn = versions.find(({ id }) => id === chat.chosen[parent]) ?? versions.at(-1);
    path.push(turn);
    parent = turn.id;
  }
}

/** The turns from the first to this one, whichever versions are shown. */
export function pathTo(chat, id) {
  const byId = new Map(chat.turns.map((turn) => [turn.id, turn]));
  const path = [];
  for (let turn = byId.get(id); turn; turn = byId.get(turn.parent)) path.unshift(turn);
  return path;
}

/** The versions of a turn, in order of creation. */
export const versionsOf = (chat, turn) => below(chat, turn.parent).filter(({ role }) => role === turn.role);

/** {chat, id}: with a new turn, which is shown. */
export function withTurn(chat, turn) {
  const id = 1 + Math.max(0, ...chat.turns.map((one) => one.id));
  return { id, chat: { ...chat, turns: [...chat.turns, { ...turn, id }], chosen: { ...chat.chosen, [turn.parent]: id } } };
}

export const withChange = (chat, id, changes) =>
  ({ ...chat, turns: chat.turns.map((turn) => (turn.id === id ? { ...turn, ...changes } : turn)) });

export const withChosen = (chat, turn) => ({ ...chat, chosen: { ...chat.chosen, [turn.parent]: turn.id } });

/** Without a turn and all that follows it; the version before it is shown then, or the one after it. */
export function withoutTurn(chat, id) {
  const gone = new Set([id]);
  for (const turn of chat.turns) if (gone.has(turn.parent)) gone.add(turn.id); // parents come first
  const { [chat.turns.find((turn) => turn.id === id).parent]: _, ...chosen } = chat.chosen;
  const versions = versionsOf(chat, chat.turns.find((turn) => turn.id === id));
  const place = versions.findIndex((turn) => turn.id === id);
  const left = { ...chat, turns: chat.turns.filter((turn) => !gone.has(turn.id)), chosen };
  const next = versions[place - 1] ?? versions[place + 1];
  return next ? withChosen(left, next) : left;
}

const fence = (text) => "`".repeat(Math.max(3, 1 + Math.max(0, ...(text.match(/`+/g) ?? []).map((run) => run.length))));

/** A user's message as the model reads it: the files, then the text. */
const contentOf = ({ text, files = [] }) =>
  [...files.map((file) => `${file.name}:\n${fence(file.text)}\n${file.text}\n${fence(file.text)}`), text].filter(Boolean).join("\n\n");

const callOf = ({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } });

/** The messages of a request for these turns. */
export function messagesOf({ system }, turns) {
  const messages = turns.map(({ role, text, reasoning, calls, call, files }) => {
    if (role === "user") return { role, content: contentOf({ text, files }) };
    if (role === "tool") return { role, content: text, tool_call_id: call };
    return {
      role,
      content: text,
      ...(reasoning ? { reasoning_content: reasoning } : {}),
      ...(calls?.length ? { tool_calls: calls.map(callOf) } : {}),
    };
  });
  return system.trim() ? [{ role: "system", content: system }, ...messages] : messages;
}

const LONGEST_TITLE = 60; // characters

/** A conversation's title: the given one, or the beginning of the first message. */
export function titleOf({ title, turns }) {
  if (title) return title;
  const first = turns.find(({ role }) => role === "user");
  const line = (first?.text || first?.files?.[0]?.name || "").trim().split("\n")[0];
  return line.length > LONGEST_TITLE ? `${line.slice(0, LONGEST_TITLE - 1)}…` : line || "New chat";
}

/** Whether the title or a turn contains the words of a search, in any case. */
export function contains(chat, words) {
  const texts = [titleOf(chat), ...chat.turns.map(({ text }) => text)].map((text) => text.toLowerCase());
  return words.toLowerCase().split(/\s+/).every((word) => texts.some((text) => text.includes(word)));
}
