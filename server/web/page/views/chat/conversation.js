// A conversation with the model: the list of conversations, the turns, the settings, the field for the next message.
import { askJson } from "../../core/api.js";
import { classes, html, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../../core/html.js";
import { inputOf, useCapabilities } from "../../core/model.js";
import { saved } from "../../core/place.js";
import { useSelection } from "../../core/state.js";
import { useStore } from "../../core/store.js";
import { Problem } from "../../parts/problem.js";
import { CopyMenu } from "../../parts/tools.js";
import { answer, grow, live, requestOf, stop } from "./answer.js";
import { Composer } from "./composer.js";
import { begin, chatNow, find, history, update } from "./history.js";
import { Icon, IconButton } from "./icon.js";
import { useCode } from "./later.js";
import { ChatList } from "./list.js";
import { Settings } from "./settings.js";
import { pathOf, titleOf, withChosen, withoutTurn, withTurn } from "./tree.js";
import { Turn } from "./turn.js";

const EXAMPLES = [
  "What is the capital of France?",
  "Explain attention in a transformer in three sentences.",
  "Write a Python function that counts words.",
  "Tell me a short story about a fox.",
];

/** Whether an answer of the conversation is written now; it changes at the beginning and the end only. */
function useBusy(id) {
  const [isBusy, setBusy] = useState(live.value?.chat === id);
  useLayoutEffect(() => {
    const tell = () => setBusy(live.value !== null && live.value.chat === id);
    tell();
    return live.follow(tell);
  }, [id]);
  return isBusy;
}

/** modes: the switch between chat and text, or null. */
export function Conversation({ modes }) {
  useCode();
  useLayoutEffect(() => {
    const { classList } = document.documentElement;
    classList.add("fills-window");
    return () => classList.remove("fills-window");
  }, []);
  const stored = useStore(history);
  const chat = chatNow(stored);
  const isBusy = useBusy(chat.id);
  const [side, setSide] = useState(""); // on a phone: the open panel; settings on any screen
  const [isXRay, setXRay] = useState(false);
  const [dropped, setDropped] = useState(null);
  const [problem, setProblem] = useState(null);
  const [undo, setUndo] = useState(null);
  const options = useOptions();
  const turns = useMemo(() => pathOf(chat), [chat]);
  useEffect(() => setProblem(null), [chat.id]);
  const actions = useActions(chat.id, options, setProblem, setUndo);
  const more = useMemo(() => {
    return { chat, isBusy, isXRay, model: options.model, interventions: options.interventions, sampling: samplingOf(chat, options) };
  }, [chat, isBusy, isXRay, options]);
  const turn = (name) => setSide(side === name ? "" : name);
  const drop = (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length) setDropped(event.dataTransfer.files);
  };
  return html`<div class=${classes("chat", saved && "is-saved", side && `shows-${side}`)}
    onDragOver=${(event) => event.preventDefault()} onDrop=${drop} onKeyDown=${(event) => event.key === "Escape" && setSide("")}>
    ${!saved && html`<aside class="chat-side" aria-label="Conversations">
      <${ChatList} chats=${stored.chats} current=${stored.current} onOpened=${() => setSide("")} /></aside>`}
    <section class="chat-main" aria-label="Conversation">
      <header class="chat-head">
        ${!saved && html`<${IconButton} icon="list" label="List of conversations" class="narrow"
          aria-expanded=${side === "list"} onClick=${() => turn("list")} />`}
        <h2>${titleOf(chat)}</h2>
        ${modes}
        <${IconButton} icon="xray" label="X-ray of all answers: the probability of each token" aria-pressed=${isXRay}
          onClick=${() => setXRay(!isXRay)} />
        <${IconButton} icon="settings" label="Settings" aria-expanded=${side === "settings"} onClick=${() => turn("settings")} />
        <${CopyMenu} ...${copied(chat, turns, options)} />
      </header>
      ${stored.problem && html`<p class="chat-note" role="alert">${stored.problem}</p>`}
      <${Scroll} id=${chat.id} numTurns=${turns.length} isBusy=${isBusy}>
        ${turns.length === 0 && html`<${Welcome} model=${options.model} onPick=${(text) => actions.send({ text, files: [] })} />`}
        ${turns.map((one, i) => html`<${Turn} key=${`${chat.id} ${one.parent}`} turn=${one}
          isLast=${i === turns.length - 1} actions=${actions} more=${more} />`)}
      <//>
      <${Problem} error=${problem} isAction />
      ${undo && html`<p class="chat-note" role="status">Deleted. <button type="button" onClick=${() => {
        update(undo.id, () => undo);
        setUndo(null);
      }}>Undo</button></p>`}
      ${!saved && html`<${Composer} id=${chat.id} isBusy=${isBusy} onSend=${actions.send} onStop=${stop} dropped=${dropped}
        onTaken=${() => setDropped(null)} />`}
    </section>
    ${side === "settings" && html`<aside class="chat-options" aria-label="Settings"><header><h2>Settings</h2>
      <button type="button" class="quiet" aria-label="Close the settings" onClick=${() => setSide("")}>✕</button></header>
      <${Settings} chat=${chat} /></aside>`}
    <${Announcer} />
  </div>`;
}

/** {model, maxModelLen, interventions}: of the requests. */
function useOptions() {
  const selection = useSelection();
  const capabilities = useCapabilities();
  return useMemo(() => ({
    model: capabilities.model,
    maxModelLen: capabilities.max_model_len,
    defaults: capabilities.default_sampling_params ?? {},
    interventions: inputOf(selection, capabilities).interventions ?? [],
  }), [selection, capabilities]);
}

const samplingOf = ({ settings }, { defaults }) => {
  const of = (name, other) => settings[name] ?? defaults[name] ?? other;
  return { temperature: of("temperature", 1), top_p: of("top_p", 1), top_k: Math.max(0, of("top_k", 0)) };
};

/** The request for the last answer, without it; it never fails. */
function copied(chat, turns, options) {
  const asked = turns.at(-1)?.role === "assistant" ? turns.slice(0, -1) : turns;
  try {
    return requestOf(chat, asked, options);
  } catch {
    return requestOf({ ...chat, settings: {} }, asked, options);
  }
}

/** Actions on the turns of a conversation; they stay the same functions. */
function useActions(id, options, setProblem, setUndo) {
  const latest = useRef(null);
  latest.current = { id, options };
  return useMemo(() => {
    const now = () => ({ ...latest.current, chat: find(latest.current.id) });
    const run = async (job) => {
      setProblem(null);
      setUndo(null);
      await Promise.resolve().then(job).catch(setProblem);
    };
    const addTurn = (chatId, turn) => {
      let made = 0;
      update(chatId, (chat) => {
        const added = withTurn(chat, turn);
        made = added.id;
        return added.chat;
      });
      return made;
    };
    const userTurn = (parent, text, files = []) => ({ parent, role: "user", text, ...(files.length ? { files } : {}) });
    return {
      send: ({ text, files }) => run(() => {
        const chatId = begin();
        const parent = pathOf(find(chatId)).at(-1)?.id ?? 0;
        return answer(chatId, addTurn(chatId, userTurn(parent, text, files)), latest.current.options);
      }),
      choose: (turn) => update(now().id, (chat) => withChosen(chat, turn), { isTouched: false }),
      regenerate: (turn) => run(() => answer(now().id, turn.parent, now().options)),
      proceed: (turn) => run(() => grow(now().id, turn.id, now().options)),
      save: (turn, text) => run(() => {
        const { id: chatId } = now();
        if (turn.role === "user") {
          return answer(chatId, addTurn(chatId, userTurn(turn.parent, text, turn.files)), now().options);
        }
        return addTurn(chatId, { parent: turn.parent, role: "assistant", text, model: turn.model, isEdited: true });
      }),
      remove: (turn) => {
        const { chat } = now();
        update(chat.id, (one) => withoutTurn(one, turn.id));
        setUndo(chat);
      },
      fork: (turn, place, tokens, before) => run(async () => {
        const ids = [...before, ...tokens.map((token) => token.id)];
        const { prompt: text } = await askJson("detokenize", { tokens: ids, skip_special_tokens: true });
        const begun = turn.reasoning ? partsOf(turn, text) : { text, ids, forced: [place, tokens.length] };
        return answer(now().id, turn.parent, now().options, begun);
      }),
      reply: (turn, results) => run(() => {
        const chatId = now().id;
        const last = results.reduce((parent, text, i) => addTurn(chatId, { parent, role: "tool", text, call: turn.calls[i].id }), turn.id);
        return answer(chatId, last, now().options);
      }),
    };
  }, []);
}

/** {reasoning, text} of a text that begins like a turn's: the reasoning may be cut. */
function partsOf({ reasoning, text: whole }, text) {
  const place = text.indexOf(reasoning.trim());
  const rest = place < 0 ? "" : text.slice(place + reasoning.trim().length).replace(/^\s*<\/[^>]*>\s*/, "");
  if (place < 0) return { text: "", reasoning: text.replace(/^<[^>]*>\s*/, "") };
  return { reasoning, text: whole ? rest.trimStart() : rest };
}

function Welcome({ model, onPick }) {
  return html`<div class="welcome"><p>Talk to <b>${model}</b></p>
    <p class="hint">Then turn on X-ray <${Icon} of="xray" /> to see the probability of each token and its alternatives.</p>
    <ul>${EXAMPLES.map((text) => html`<li><button type="button" onClick=${() => onPick(text)}>${text}</button></li>`)}</ul></div>`;
}

const NEAR_PX = 48; // from the end: the end is followed

/** Follows the end of an answer, until the reader scrolls up. */
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

/** Tells screen readers when an answer begins, and the whole answer at its end. */
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
