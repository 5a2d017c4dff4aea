// One turn of a conversation or of a text: its text, its panels for reasoning, calls and files, and its buttons.
import { classes, html, memo, useEffect, useRef, useState } from "../../core/html.js";
import { counted, format } from "../../core/numbers.js";
import { saved } from "../../core/place.js";
import { Store, useStore } from "../../core/store.js";
import { Problem } from "../../parts/problem.js";
import { copy, useSaid } from "../../parts/tools.js";
import { live } from "./answer.js";
import { IconButton } from "./icon.js";
import { Sources } from "./sources.js";
import { isComplete, versionsOf } from "./tree.js";
import { XRay } from "./xray.js";

const nothing = new Store(null);
const code = new Store(null);
let asked = null;

/** Null while the code is loaded: turns are plain text until then. */
export function useCode() {
  asked ??= import("./markdown.js").then((module) => code.set(module), () => {
    asked = null; // tried again with the next turn
  });
  return useStore(code);
}

/** shown: the text before the turn; actions: see conversation.js; more: {chat, model, isPair, sampling, seed, isXRay, isBusy}. */
export const Turn = memo(function Turn({ turn: stored, shown, isLast, actions, more }) {
  const { chat, isBusy } = more;
  const module = useCode();
  const [isEdited, setEdited] = useState(false);
  const [own, setOwn] = useState(null); // X-ray of this turn only; null: as the conversation
  const isLive = isBusy && live.value?.turn.id === stored.id;
  const now = useStore(isLive ? live : nothing);
  const turn = now?.turn.id === stored.id ? now.turn : stored;
  const isText = chat.kind === "text";
  const isAnswer = turn.role === "assistant";
  const isXRay = isAnswer && (!isLive || Boolean(turn.pieces)) && (own ?? more.isXRay);
  const name = { user: "You", assistant: turn.model ?? "Model", tool: "Result of a tool" }[turn.role];
  const xray = (one, hasKey) => html`<${XRay} key=${one.id} turn=${one} shown=${shown} more=${more} hasKey=${hasKey}
    onFork=${(...fork) => actions.fork(one, ...fork)} />`;
  const content = html`${isEdited
    ? html`<${Editor} turn=${turn} onClose=${() => setEdited(false)} onSave=${(text) => {
      setEdited(false);
      actions.save(turn, text);
    }} />`
    : isXRay ? xray(turn, isLast && !isLive) : html`<${Body} turn=${turn} shown=${shown} isText=${isText} isLive=${isLive} />`}
    ${isLive && !turn.text && !turn.reasoning && !turn.calls && html`<p class="waiting" aria-busy="true">
      <span class="unseen">The model reads the conversation…</span><i></i><i></i><i></i></p>`}`;
  const twin = turn.twin && chat.turns.find(({ id }) => id === turn.twin);
  return html`<article class=${classes("turn", `of-${turn.role}`, isLast && "is-last")} aria-label=${name}
      data-turn=${twin ? null : turn.id}>
    ${isAnswer && !isText && html`<p class="turn-name">${name}${turn.changes && html` <span>edited model</span>`}</p>`}
    ${twin ? html`<div class="columns"><section class="card side" data-turn=${twin.id}><h2>${isText ? "Before" : twin.model}</h2>
        ${isText || isXRay ? xray(twin) : html`<${Body} turn=${twin} />`}</section>
      <section class="card side" data-turn=${turn.id}><h2>${isText ? "After" : turn.model}</h2>${content}</section></div>` : content}
    ${isAnswer && !isText && !isEdited && !isXRay && !isLive && html`<${Sources} chat=${chat} turn=${turn} code=${module} />`}
    ${!isLive && html`<${Ending} turn=${turn} twin=${twin} isOpen=${isLast && !isBusy && !saved} isText=${isText} actions=${actions} />
      ${!isEdited && html`<${Buttons} turn=${turn} versions=${versionsOf(chat, turn)} actions=${actions} more=${more}
        onEdit=${() => setEdited(true)} isXRay=${isXRay} onXRay=${() => setOwn(!isXRay)} />`}`}
  </article>`;
});

function Body({ turn, shown, isText, isLive }) {
  const module = useCode();
  const { role, text, reasoning, calls = [], files = [], isStructured } = turn;
  if (isText) return html`<p class="plain-text">${shown && html`<span class="prompt">${shown}</span>`}${text}</p>`;
  if (role === "user") {
    return html`${files.map((file) => html`<${Panel} title=${`${file.name}, ${counted(file.text.length, "character")}`}><pre
      tabindex="0">${file.text}</pre><//>`)}
      ${text && html`<div class="bubble">${text}</div>`}`;
  }
  if (role === "tool") return html`<${Panel} title="Result" isOpen><pre tabindex="0">${text}</pre><//>`;
  const inJson = (source, label) => (module ? html`<${module.Code} text=${source} lang="json" label=${label} />` : source);
  const shape = isStructured && !isLive ? prettyOf(text) : null;
  const plain = () => (module ? html`<${module.Markdown} text=${text} isLive=${isLive} />` : html`<p class="plain-text">${text}</p>`);
  return html`${reasoning && html`<${Panel} title=${thoughtOf(turn, isLive && !text)} class="thought">
      <div class="plain-text">${reasoning.trim()}</div><//>`}
    ${shape !== null ? html`<${Panel} title="Structured answer" isOpen>${inJson(shape)}<//>` : text && plain()}
    ${calls.map((call) => html`<${Panel} title=${`Calls ${call.name}`} isOpen>${
      inJson(prettyOf(call.arguments) ?? call.arguments, "arguments")}<//>`)}`;
}

const Panel = ({ title, isOpen = false, class: more, children }) =>
  html`<details class=${classes("panel", more)} open=${isOpen}><summary>${title}</summary>${children}</details>`;

const thoughtOf = ({ thoughtMs }, isThinking) =>
  (thoughtMs ? `${isThinking ? "Thinking" : "Thought"} for ${(thoughtMs / 1000).toFixed(1)} s` : "Reasoning");

function prettyOf(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

const ENDS = { length: "Stopped at the largest number of tokens.", stopped: "Stopped by you." };

function Ending({ turn, twin, isOpen, isText, actions }) {
  const { role, text, reasoning, calls, end } = turn;
  const { reason, message, error } = end ?? {};
  if (reason === "tool_calls" && calls?.length) return isOpen && html`<${Results} turn=${turn} onReply=${actions.reply} />`;
  const stored = { title: "Not finished", status: 422, message }; // of a conversation that was opened again
  const problem = reason === "error" && (error instanceof Error ? error : stored);
  const said = { ...ENDS, context: message, stop: isText && "The model ended its text." }[reason];
  const isDone = [turn, twin].every((one) => !one || isComplete(one, isText ? "text" : "chat"));
  const button = (label, run) => html`<button onClick=${() => run(turn)}>${label}</button>`;
  const next = role !== "assistant" ? button(isText ? "Continue" : "Answer", actions.respond)
    : !isDone && button(text || reasoning ? "Continue" : "Try again", actions.proceed);
  return html`${problem && html`<${Problem} error=${problem} isAction />`}
    ${(said || isOpen) && html`<p class="turn-end">${said} ${isOpen && next}
      ${isOpen && isText && text && role === "assistant" && html`<button class="quiet" onClick=${actions.take}
        title="To edit it, or to open it in the other views">Use the whole text as the prompt</button>`}</p>`}`;
}

function Buttons({ turn, versions, actions, more, onEdit, isXRay, onXRay }) {
  const [said, run] = useSaid();
  const { isBusy } = more;
  const isText = more.chat.kind === "text";
  const place = versions.findIndex(({ id }) => id === turn.id);
  const isAnswer = turn.role === "assistant";
  const numTokens = counted(turn.ids?.length ?? 0, "token");
  const speed = turn.perSecond ? `${format(turn.perSecond, 3)} tokens/s` : "";
  const detail = turn.firstMs ? `${numTokens}, the first after ${format(turn.firstMs, 3)} ms` : "";
  const show = (icon, label, to) => html`<${IconButton} icon=${icon} label=${label} disabled=${!versions[to] || isBusy}
    onClick=${() => actions.choose(versions[to])} />`;
  const button = (icon, label, action) =>
    !saved && html`<${IconButton} icon=${icon} label=${label} disabled=${isBusy} onClick=${() => action(turn)} />`;
  return html`<div class="turn-buttons" role="group" aria-label="This turn">
    ${versions.length > 1 && html`<span class="versions">${show("before", "Version before", place - 1)}
      <span aria-label=${`Version ${place + 1} of ${versions.length}`}>${place + 1}/${versions.length}</span>
      ${show("after", "Next version", place + 1)}</span>`}
    <${IconButton} icon="copy" label="Copy" onClick=${() => run(() => copy(turn.text))} />
    ${isAnswer && button("again", "Regenerate", actions.regenerate)}
    ${turn.role !== "tool" && button("edit", "Edit", onEdit)}
    ${button("remove", "Delete from here", actions.remove)}
    ${isAnswer && html`<${IconButton} icon="xray" label="X-ray: the probability of each token" aria-pressed=${isXRay} disabled=${isBusy}
      onClick=${onXRay} />`}
    ${speed && html`<span class="speed" title=${detail}>${isText && `${numTokens}, `}${speed}</span>`}
    ${turn.seed !== undefined && html`<span class="seed">seed ${turn.seed}</span>${turn.seed !== more.seed && html`<button
      class="quiet" onClick=${() => actions.keepSeed(turn.seed)}>keep it</button>`}`}
    <span class="said" role="status">${said}</span>
  </div>`;
}

function Editor({ turn, onSave, onClose }) {
  const [text, setText] = useState(turn.text);
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  const isUser = turn.role === "user";
  const save = (event) => {
    event.preventDefault();
    onSave(text);
  };
  const onKeyDown = (event) => {
    if (event.key === "Escape") {
      event.preventDefault(); // it would close the settings
      onClose();
    }
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing && isUser) save(event);
  };
  return html`<form class="turn-editor" onSubmit=${save}><label><span class="unseen">The turn's text</span>
      <textarea ref=${field} value=${text} rows=${Math.min(16, text.split("\n").length + 1)}
        onInput=${({ target }) => setText(target.value)} onKeyDown=${onKeyDown}></textarea></label>
    <button type="button" onClick=${onClose}>Cancel</button>
    <button type="submit" class="primary" disabled=${text.trim() === ""}>${isUser ? "Send" : "Save"}</button></form>`;
}

function Results({ turn, onReply }) {
  const [results, setResults] = useState({});
  const send = (event) => {
    event.preventDefault();
    onReply(turn, turn.calls.map(({ id }) => results[id] ?? ""));
  };
  return html`<form class="turn-editor" onSubmit=${send}>${turn.calls.map(({ id, name }) => html`<label>Result of ${name}
    <textarea rows="2" required value=${results[id] ?? ""}
      onInput=${({ target }) => setResults({ ...results, [id]: target.value })}></textarea></label>`)}
    <button type="submit" class="primary">Send the ${turn.calls.length > 1 ? "results" : "result"}</button></form>`;
}
