// A conversation with the model, or a text that it continues: the list, the turns, the settings, the field for a message.
import { classes, html, listen, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../../core/html.js";
import { inputOf, useCapabilities } from "../../core/model.js";
import { saved } from "../../core/place.js";
import { samplingOf } from "../../core/sampling.js";
import { select, useSelection } from "../../core/state.js";
import { useStore } from "../../core/store.js";
import { textOf } from "../../core/texts.js";
import { Problem } from "../../parts/problem.js";
import { Term } from "../../parts/term.js";
import { CopyMenu } from "../../parts/tools.js";
import { addTurn, answer, answerOnBothSides, live, proceed, stop } from "./answer.js";
import { Causes } from "./causes.js";
import { Composer } from "./composer.js";
import { begin, chatNow, find, history, noteShown, open, shareText, update } from "./history.js";
import { Icon, IconButton } from "./icon.js";
import { ChatList } from "./list.js";
import { NEUTRAL, requestOf } from "./requests.js";
import { Settings } from "./settings.js";
import { pathOf, titleOf, withChosen, withoutTurn } from "./tree.js";
import { Turn, useCode } from "./turn.js";

const EXAMPLES = {
  chat: ["What is the capital of France?", "Explain attention in a transformer in three sentences.",
    "Write a Python function that counts words.", "Tell me a short story about a fox."],
  text: ["Once upon a time there was a fox who", "The capital of France is", "def count_words(text):", "Roses are red,"],
};

/** It changes at the beginning and the end of an answer only. */
function useBusy(id) {
  const [isBusy, setBusy] = useState(live.value?.chat === id);
  useLayoutEffect(() => {
    const tell = () => setBusy(live.value !== null && live.value.chat === id);
    tell();
    return live.follow(tell);
  }, [id]);
  return isBusy;
}

/** side: "list" (on a phone) or "settings". Escape closes it, or stops an answer. */
function useSide(isBusy) {
  const [side, setSide] = useState("");
  useEffect(() => { // the focus may be anywhere: a clicked button is gone when the answer begins
    const escape = (event) => event.key === "Escape" && !event.defaultPrevented && (isBusy ? stop() : setSide(""));
    return listen(window, { keydown: escape });
  }, [isBusy]);
  return [side, setSide];
}

function useWholeWindow() {
  useLayoutEffect(() => {
    const { classList } = document.documentElement;
    classList.add("fills-window");
    return () => classList.remove("fills-window");
  }, []);
}

export function Conversation({ kind, modes }) {
  useCode();
  useWholeWindow();
  const stored = useStore(history);
  const { text } = useSelection();
  const chat = chatNow(stored, kind, text);
  noteShown(chat); // before the requests of its parts
  useEffect(() => {
    noteShown(chat);
    return () => noteShown(null);
  }, [chat]);
  const isBusy = useBusy(chat.id);
  const [side, setSide] = useSide(isBusy);
  const [isXRay, setXRay] = useState({ text: true });
  const [dropped, setDropped] = useState(null);
  const [problem, setProblem] = useState(null);
  const [undo, setUndo] = useState(null);
  const options = useOptions(kind);
  const turns = useMemo(() => pathOf(chat), [chat]);
  useEffect(() => [setProblem, setUndo].forEach((set) => set(null)), [chat.id]);
  const actions = useActions(chat.id, options, setProblem, setUndo);
  const more = useMemo(() => ({ ...options, chat, isBusy, isXRay: isXRay[kind], ...samplerOf(chat, options) }),
    [chat, isBusy, isXRay, options]);
  const turn = (name) => setSide(side === name ? "" : name);
  const isText = kind === "text";
  const isDraft = chat.id === kind;
  // a piece of a text is shown with its continuation
  const shown = isText ? turns.filter((one, i) => one.role !== "user" || turns[i + 1]?.role !== "assistant") : turns;
  const before = (one) => (isText && turns.find(({ id, role }) => id === one.parent && role === "user")?.text) || "";
  return html`<div class=${classes("chat", `is-${kind}`, saved && "is-saved", side && `shows-${side}`)}
    onDragOver=${(event) => event.preventDefault()} onDrop=${(event) => {
      event.preventDefault();
      if (event.dataTransfer.files.length) setDropped(event.dataTransfer.files);
    }}>
    ${!saved && html`<aside class="chat-side" aria-label="Conversations">
      <${ChatList} kind=${kind} chats=${stored.chats} current=${chat.id} onOpened=${() => setSide("")} /></aside>`}
    <section class="chat-main" aria-label="Conversation">
      <header class="chat-head">
        ${!saved && html`<${IconButton} icon="list" label="List of conversations" class="narrow"
          aria-expanded=${side === "list"} onClick=${() => turn("list")} />`}
        <h2>${titleOf(chat)}</h2>
        ${modes}
        <${IconButton} icon="xray" label="X-ray of all answers: the probability of each token" aria-pressed=${Boolean(isXRay[kind])}
          onClick=${() => setXRay({ ...isXRay, [kind]: !isXRay[kind] })} />
        <${IconButton} icon="settings" label="Settings" aria-expanded=${side === "settings"} onClick=${() => turn("settings")} />
        <${CopyMenu} ...${copied(chat, turns.length ? turns : [{ role: "user", text: isText ? text : "" }], options)} />
      </header>
      ${stored.problem && html`<p class="chat-note" role="alert">${stored.problem}</p>`}
      <${Scroll} id=${chat.id} numTurns=${turns.length} isBusy=${isBusy}>
        ${turns.length === 0 && html`<${Welcome} kind=${kind} model=${options.model} onPick=${actions.send} />`}
        ${shown.map((one, i) => html`<${Turn} key=${`${chat.id} ${one.parent}`} turn=${one} shown=${before(one)}
          isLast=${i === shown.length - 1} actions=${actions} more=${more} />`)}
      <//>
      <${Problem} error=${problem} isAction />
      ${undo && html`<p class="chat-note" role="status">Deleted. <button onClick=${() => {
        update(undo.id, (now) => ({ ...now, turns: undo.turns, chosen: undo.chosen }));
        setUndo(null);
      }}>Undo</button></p>`}
      ${!saved && (isDraft || !options.isPair) && html`<${Composer} id=${chat.id} isBusy=${isBusy} onSend=${actions.send} onStop=${stop}
        kind=${kind} label=${options.isPair ? "Text (the encoder reads it)" : isText ? "Text" : "Message"} dropped=${dropped}
        onTaken=${() => setDropped(null)} />`}
      ${!saved && html`<${Causes} chat=${chat} model=${options.model} />`}
    </section>
    ${side === "settings" && html`<aside class="chat-options" aria-label="Settings"><header><h2>Settings</h2>
      <button class="quiet" aria-label="Close the settings" onClick=${() => setSide("")}>✕</button></header>
      <${Settings} chat=${chat} shared=${options.shared} /></aside>`}
    <${Announcer} />
  </div>`;
}

/** second: the model that answers too. */
function useOptions(kind) {
  const selection = useSelection();
  const capabilities = useCapabilities();
  return useMemo(() => ({
    model: capabilities.model,
    maxModelLen: capabilities.max_model_len,
    defaults: capabilities.default_sampling_params ?? {},
    isPair: capabilities.kind === "encoder-decoder",
    shared: kind === "text" ? samplingOf(selection) : {},
    interventions: inputOf(selection, capabilities).interventions ?? [],
    second: kind === "chat" ? selection.change_model : "",
  }), [kind, selection, capabilities]);
}

function samplerOf({ settings }, { defaults, shared }) {
  const { seed, ...given } = { ...NEUTRAL, ...defaults, ...settings, ...shared };
  return { seed, sampling: { ...given, top_k: Math.max(0, given.top_k) } };
}

/** It never fails. */
function copied(chat, turns, options) {
  const asked = turns.at(-1).role === "assistant" ? turns.slice(0, -1) : turns;
  try {
    return requestOf(chat, asked, options);
  } catch {
    return requestOf({ ...chat, settings: {} }, asked, options);
  }
}

function useActions(id, options, setProblem, setUndo) {
  const latest = useRef(null);
  latest.current = { id, options };
  return useMemo(() => {
    const run = async (job) => {
      setProblem(null);
      setUndo(null);
      await Promise.resolve().then(() => job(latest.current)).catch(setProblem);
    };
    const sayAs = (turn, text, files = []) => ({ parent: turn?.id ?? 0, role: "user", text, ...(files.length ? { files } : {}) });
    return {
      send: ({ text, files }) => run((now) => {
        const chatId = begin(now.id);
        return answerOnBothSides(chatId, addTurn(chatId, sayAs(pathOf(find(chatId)).at(-1), text, files)), now.options);
      }),
      choose: (turn) => update(latest.current.id, (chat) => withChosen(chat, turn), { isTouched: false }),
      respond: (turn) => run((now) => answerOnBothSides(now.id, turn.id, now.options)),
      regenerate: (turn) => run((now) => answerOnBothSides(now.id, turn.parent, now.options)),
      proceed: (turn) => run((now) => proceed(now.id, turn, now.options)),
      save: (turn, text) => run((now) => {
        const { parent, role, model, files } = turn;
        if (role === "user") return answerOnBothSides(now.id, addTurn(now.id, sayAs({ id: parent }, text, files)), now.options);
        return addTurn(now.id, { parent, role, text, model, isEdited: true });
      }),
      remove: (turn) => {
        const chat = find(latest.current.id);
        update(chat.id, (one) => withoutTurn(one, turn));
        setUndo(chat);
      },
      fork: (turn, place, tokens, before) => run(async (now) => {
        const ids = [...before, ...tokens.map((token) => token.id)];
        const { text } = await textOf(ids);
        if (turn.reasoning) return answer(now.id, turn.parent, now.options, partsOf(turn, text));
        const forced = (turn.forced ?? []).filter((_, i, all) => all[i - (i % 2)] + all[i - (i % 2) + 1] <= place);
        const pieces = turn.pieces && [...turn.pieces.slice(0, place), ...tokens.map((token) => [token.text, token.logprob])];
        const begun = { text, ids, pieces, forced: [...forced, place, tokens.length], changes: turn.changes };
        return answer(now.id, turn.parent, now.options, begun);
      }),
      reply: (turn, results) => run((now) => {
        const last = results.reduce((parent, text, i) => addTurn(now.id, { parent, role: "tool", text, call: turn.calls[i].id }), turn.id);
        return answerOnBothSides(now.id, last, now.options);
      }),
      take: () => run((now) => {
        open("");
        shareText(pathOf(find(now.id)).map(({ text }) => text).join(""), { remember: true });
      }),
      keepSeed: (seed) => select({ write_seed: seed }),
    };
  }, []);
}

/** Of a text that begins like a turn's: the reasoning may be cut. */
function partsOf({ reasoning, text: whole }, text) {
  const place = text.indexOf(reasoning.trim());
  const rest = place < 0 ? "" : text.slice(place + reasoning.trim().length).replace(/^\s*<\/[^>]*>\s*/, "");
  if (place < 0) return { text: "", reasoning: text.replace(/^<[^>]*>\s*/, "") };
  return { reasoning, text: whole ? rest.trimStart() : rest };
}

function Welcome({ kind, model, onPick }) {
  return html`<div class="welcome">${kind === "chat"
    ? html`<p>Talk to <b>${model}</b></p>
      <p class="hint">Then point at a word of the answer to see the words that caused it, or turn on X-ray <${Icon} of="xray" /> to
      see the probability of each token and its alternatives.</p>`
    : html`<p>Let <b>${model}</b> continue a text</p>
      <p class="hint">The model gives every <${Term} of="token" /> of its <${Term} of="vocabulary" /> a probability, and one is drawn;
        then it reads the longer text and repeats this. Click a token to see its alternatives.</p>`}
    <ul>${EXAMPLES[kind].map((text) =>
      html`<li><button onClick=${() => onPick({ text })}>${text}</button></li>`)}</ul></div>`;
}

const NEAR_PX = 48; // from the end: the end is followed

function Scroll({ id, numTurns, isBusy, children }) {
  const box = useRef(null);
  const grows = useRef(isBusy);
  grows.current = isBusy;
  const follows = useRef(true);
  const [isAway, setAway] = useState(false);
  const toEnd = useCallback(() => {
    follows.current = true;
    box.current.scrollTop = box.current.scrollHeight;
  }, []);
  useEffect(() => {
    const observer = new ResizeObserver((changed) => {
      const isBox = changed.some(({ target }) => target === box.current); // the window or the composer
      if (follows.current && (grows.current || isBox)) toEnd();
    });
    observer.observe(box.current.firstElementChild);
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(toEnd, [id, numTurns]);
  useLayoutEffect(() => {
    if (follows.current) toEnd();
  }, [isBusy]);
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    follows.current = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    setAway(!follows.current);
  };
  return html`<div class="chat-scroll" ref=${box} onScroll=${onScroll} tabindex="0" role="group" aria-label="Turns">
    <div class="chat-column">${children}</div></div>
    ${isAway && html`<div class="to-end"><${IconButton} icon="down" label="Go to the end" class="round" onClick=${toEnd} /></div>`}`;
}

/** For screen readers: when an answer begins, and the whole answer at its end. */
function Announcer() {
  const [said, setSaid] = useState("");
  useEffect(() => {
    let last = null;
    return live.follow((now) => {
      if (now && !last) setSaid("The model answers…");
      if (!now && last) setSaid(find(last.chat)?.turns.find(({ id }) => id === last.turn.id)?.text || "The answer ended.");
      last = now;
    });
  }, []);
  return html`<p class="unseen" role="status">${said}</p>`;
}
