// The tree of a conversation or of a continued text, as plain data: pure functions that return a changed copy.

/**
 * turns: [{id, parent, role, text, ...}] in order of creation; parent: the id of the turn before, 0 for the first one. Turns with one
 * parent and one role are versions of each other. chosen: by a parent's id, the shown version. In a text the user's turns are pieces of
 * it, the assistant's continue it. user: `files` [{name, text}]. assistant: `reasoning`, `calls` [{id, name, arguments}], `ids`, in a text
 * `pieces` [[text, logprob]], `forced` [place, count, place, ...] of tokens that the reader chose, `seed`, `changes` (interventions as
 * JSON), `twin` (the id of the version without them, or of the first model), `end` {reason, message}, speeds. tool: `call`, its id.
 */
export const newConversation = (kind, settings = {}) =>
  ({ id: kind, kind, title: "", system: "", settings, updated: Date.now(), turns: [], chosen: {} });

export const changesOf = ({ changes }) => (changes ? JSON.parse(changes) : []);

export function pathOf({ turns, chosen }) {
  const shown = new Map(); // by the parent's id: the chosen version, or else the last one
  for (const turn of turns) if (!shown.has(turn.parent) || shown.get(turn.parent).id !== chosen[turn.parent]) shown.set(turn.parent, turn);
  const path = [];
  for (let turn = shown.get(0); turn; turn = shown.get(turn.id)) path.push(turn);
  return path;
}

/** Whichever versions are shown; none for 0. */
export function pathTo({ turns }, id) {
  const byId = new Map(turns.map((turn) => [turn.id, turn]));
  const path = [];
  for (let turn = byId.get(id); turn; turn = byId.get(turn.parent)) path.unshift(turn);
  return path;
}

export const versionsOf = ({ turns }, { parent, role }) => turns.filter((turn) => turn.parent === parent && turn.role === role);

export function withTurn(chat, turn) {
  const id = 1 + Math.max(0, ...chat.turns.map((one) => one.id));
  return { id, chat: withChosen({ ...chat, turns: [...chat.turns, { ...turn, id }] }, { ...turn, id }) };
}

/** An answer that ended by itself, or filled its context; a text can always go on. */
export const isComplete = ({ text, reasoning, calls, end }, kind) => end?.reason === "context" ||
  (kind !== "text" && Boolean(text || reasoning || calls) && (end?.reason ?? "stop") === "stop");
export const withChange = (chat, id, changes) =>
  ({ ...chat, turns: chat.turns.map((turn) => (turn.id === id ? { ...turn, ...changes } : turn)) });

export const withChosen = (chat, turn) => ({ ...chat, chosen: { ...chat.chosen, [turn.parent]: turn.id } });

/** And without all that follows it; the version before it is shown then, or the one after it. */
export function withoutTurn(chat, turn) {
  const gone = new Set([turn.id]);
  for (const { id, parent } of chat.turns) if (gone.has(parent)) gone.add(id); // parents come first
  const { [turn.parent]: _, ...chosen } = chat.chosen;
  const versions = versionsOf(chat, turn);
  const place = versions.findIndex(({ id }) => id === turn.id);
  const next = versions[place - 1] ?? versions[place + 1];
  const left = { ...chat, turns: chat.turns.filter(({ id }) => !gone.has(id)), chosen };
  return next ? withChosen(left, next) : left;
}

/** The files in fences, then the text. */
function contentOf({ text, files = [] }) {
  const fenced = files.map((file) => {
    const longest = Math.max(2, ...(file.text.match(/`+/g) ?? []).map((run) => run.length));
    const fence = "`".repeat(longest + 1);
    return `${file.name}:\n${fence}\n${file.text}\n${fence}`;
  });
  return [...fenced, text].filter(Boolean).join("\n\n");
}

const callOf = ({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } });

export function messagesOf({ system }, turns) {
  const messages = turns.map((turn) => {
    const { role, text, reasoning, calls, call } = turn;
    if (role === "user") return { role, content: contentOf(turn) };
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

export function titleOf({ kind, title, turns }) {
  if (title) return title;
  const first = turns.find(({ role }) => role === "user");
  const [line] = (first?.text || first?.files?.[0]?.name || "").trim().split("\n");
  return line.length > LONGEST_TITLE ? `${line.slice(0, LONGEST_TITLE - 1)}…` : line || `New ${kind}`;
}

export function contains(chat, words) {
  const texts = [titleOf(chat), ...chat.turns.map(({ text }) => text)].map((text) => text.toLowerCase());
  return words.toLowerCase().split(/\s+/).every((word) => texts.some((text) => text.includes(word)));
}
