// One turn of a conversation: its text, its panels for reasoning, calls and files, and its buttons.
import { classes, html, memo, useEffect, useRef, useState } from "../../core/html.js";
import { counted, format } from "../../core/numbers.js";
import { saved } from "../../core/place.js";
import { useStore } from "../../core/store.js";
import { Problem } from "../../parts/problem.js";
import { copy } from "../../parts/tools.js";
import { live } from "./answer.js";
import { IconButton } from "./icon.js";
import { useCode } from "./later.js";
import { versionsOf } from "./tree.js";
import { XRay } from "./xray.js";

/**
 * turn, isLast; actions {choose(turn), regenerate(turn), proceed(turn), save(turn, text), remove(turn),
 * fork(turn, place, tokens, ids before), reply(turn, results)}; more: {chat, model, interventions, sampling, isXRay, isBusy}.
 */
export const Turn = memo(function Turn({ turn, isLast, actions, more }) {
  const { chat, isBusy } = more;
  const versions = versionsOf(chat, turn);
  const [isEdited, setEdited] = useState(false);
  const [own, setOwn] = useState(null); // X-ray of this turn only; null: as the conversation
  const isUser = turn.role === "user";
  const isXRay = turn.role === "assistant" && !isBusy && (own ?? more.isXRay);
  const name = { user: "You", assistant: turn.model ?? "Model", tool: "Result of a tool" }[turn.role];
  const isLive = isBusy && live.value?.turn.id === turn.id;
  const close = () => setEdited(false);
  const buttons = !isLive && !isEdited && html`<${Buttons} turn=${turn} versions=${versions} actions=${actions} isBusy=${isBusy}
    onEdit=${() => setEdited(true)} isXRay=${isXRay} onXRay=${() => setOwn(!isXRay)} />`;
  return html`<article class=${classes("turn", `of-${turn.role}`, isLast && "is-last")} aria-label=${name}>
    ${!isUser && html`<p class="turn-name">${name}${turn.isChanged && html` <span>edited model</span>`}</p>`}
    ${isEdited
      ? html`<${Editor} turn=${turn} onClose=${close} onSave=${(text) => {
        close();
        actions.save(turn, text);
      }} />`
      : isXRay
        ? html`<${XRay} key=${turn.id} chat=${chat} turn=${turn} model=${more.model} sampling=${more.sampling} hasKey=${isLast}
            interventions=${turn.isChanged ? more.interventions : []} onFork=${(...fork) => actions.fork(turn, ...fork)} />`
        : isLive ? html`<${LiveBody} id=${turn.id} />` : html`<${Body} turn=${turn} />`}
    ${isLast && turn.end?.reason === "tool_calls" && !isBusy && html`<${Results} turn=${turn} onReply=${actions.reply} />`}
    ${!isLive && turn.end && html`<${Ending} turn=${turn} onRetry=${() => actions.proceed(turn)} isLast=${isLast} isBusy=${isBusy} />`}
    ${buttons}
  </article>`;
});

/** The turn while it is written. */
function LiveBody({ id }) {
  const now = useStore(live);
  if (now?.turn.id !== id) return null;
  const { turn } = now;
  const isEmpty = !turn.text && !turn.reasoning && !turn.calls;
  return isEmpty
    ? html`<p class="waiting" aria-busy="true"><span class="unseen">The model reads the conversation…</span><i></i><i></i><i></i></p>`
    : html`<${Body} turn=${turn} isLive />`;
}

function Body({ turn, isLive = false }) {
  const code = useCode();
  const { role, text, reasoning, calls = [], files = [], isStructured } = turn;
  if (role === "user") {
    return html`${files.map((file) => html`<${Panel} title=${`${file.name}, ${counted(file.text.length, "character")}`}><pre
      tabindex="0">${file.text}</pre><//>`)}
      ${text && html`<div class="bubble">${text}</div>`}`;
  }
  if (role === "tool") return html`<${Panel} title="Result" isOpen><pre tabindex="0">${text}</pre><//>`;
  const shape = isStructured && !isLive ? prettyOf(text) : null;
  return html`${reasoning && html`<${Thought} turn=${turn} isLive=${isLive && !text} />`}
    ${shape !== null
      ? html`<${Panel} title="Structured answer" isOpen>${code ? html`<${code.Code} text=${shape} lang="json" />` : shape}<//>`
      : text && (code ? html`<${code.Markdown} text=${text} isLive=${isLive} />` : html`<p class="plain-text">${text}</p>`)}
    ${calls.map((call) => html`<${Panel} title=${`Calls ${call.name}`} isOpen>${
      code ? html`<${code.Code} text=${prettyOf(call.arguments) ?? call.arguments} lang="json" label="arguments" />`
        : call.arguments}<//>`)}`;
}

/** A part that can be folded. */
function Panel({ title, isOpen = false, children }) {
  return html`<details class="panel" open=${isOpen}><summary>${title}</summary>${children}</details>`;
}

function Thought({ turn, isLive }) {
  const said = `${isLive ? "Thinking" : "Thought"} for ${((turn.thoughtMs ?? 0) / 1000).toFixed(1)} s`;
  return html`<details class="panel thought"><summary>${turn.thoughtMs ? said : "Reasoning"}</summary>
    <div class="plain-text">${turn.reasoning.trim()}</div></details>`;
}

function prettyOf(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

const ENDS = {
  length: "Stopped at the largest number of tokens.",
  stopped: "Stopped by you.",
};

function Ending({ turn, onRetry, isLast, isBusy }) {
  const { reason, message, error } = turn.end;
  const stored = { title: "Not finished", status: 422, message }; // of a conversation that was opened again
  const problem = reason === "error" && (error instanceof Error ? error : stored);
  const isOpen = isLast && !isBusy && !saved && reason !== "stop" && reason !== "tool_calls";
  return html`${problem && html`<${Problem} error=${problem} isAction />`}
    ${(ENDS[reason] || isOpen) && html`<p class="turn-end">${ENDS[reason]}
      ${isOpen && html`<button type="button" onClick=${onRetry}>${turn.text || turn.reasoning ? "Continue" : "Try again"}</button>`}</p>`}`;
}

function Buttons({ turn, versions, actions, isBusy, onEdit, isXRay, onXRay }) {
  const [said, setSaid] = useState("");
  const place = versions.findIndex(({ id }) => id === turn.id);
  const run = () => copy(turn.text).then(setSaid, (error) => setSaid(error.message)).then(() => setTimeout(() => setSaid(""), 2000));
  const isAnswer = turn.role === "assistant";
  const speed = turn.perSecond ? `${format(turn.perSecond, 3)} tokens/s` : "";
  const detail = turn.firstMs ? `${counted(turn.ids?.length ?? 0, "token")}, the first after ${format(turn.firstMs, 3)} ms` : "";
  return html`<div class="turn-buttons" role="group" aria-label="This turn">
    ${versions.length > 1 && html`<span class="versions">
      <${IconButton} icon="before" label="Version before" disabled=${place === 0 || isBusy}
        onClick=${() => actions.choose(versions[place - 1])} />
      <span aria-label=${`Version ${place + 1} of ${versions.length}`}>${place + 1}/${versions.length}</span>
      <${IconButton} icon="after" label="Next version" disabled=${place === versions.length - 1 || isBusy}
        onClick=${() => actions.choose(versions[place + 1])} /></span>`}
    <${IconButton} icon="copy" label="Copy" onClick=${run} />
    ${isAnswer && !saved && html`<${IconButton} icon="again" label="Regenerate" disabled=${isBusy}
      onClick=${() => actions.regenerate(turn)} />`}
    ${turn.role !== "tool" && !saved && html`<${IconButton} icon="edit" label="Edit" disabled=${isBusy} onClick=${onEdit} />`}
    ${!saved && html`<${IconButton} icon="remove" label="Delete from here" disabled=${isBusy}
      onClick=${() => actions.remove(turn)} />`}
    ${isAnswer && html`<${IconButton} icon="xray" label="X-ray: the probability of each token" aria-pressed=${isXRay} disabled=${isBusy}
      onClick=${onXRay} />`}
    ${speed && html`<span class="speed" title=${detail}>${speed}</span>`}
    <span class="said" role="status">${said}</span>
  </div>`;
}

function Editor({ turn, onSave, onClose }) {
  const [text, setText] = useState(turn.text);
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  const isUser = turn.role === "user";
  const onKeyDown = (event) => {
    if (event.key === "Escape") onClose();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || !isUser) return;
    event.preventDefault();
    onSave(text);
  };
  return html`<form class="turn-editor" onSubmit=${(event) => {
    event.preventDefault();
    onSave(text);
  }}><label><span class="unseen">The turn's text</span>
      <textarea ref=${field} value=${text} rows=${Math.min(16, text.split("\n").length + 1)}
        onInput=${(event) => setText(event.target.value)} onKeyDown=${onKeyDown}></textarea></label>
    <button type="button" onClick=${onClose}>Cancel</button>
    <button type="submit" class="primary" disabled=${text.trim() === ""}>${isUser ? "Send" : "Save"}</button></form>`;
}

/** Fields for the results of called tools. */
function Results({ turn, onReply }) {
  const [results, setResults] = useState({});
  const send = (event) => {
    event.preventDefault();
    onReply(turn, turn.calls.map(({ id }) => results[id] ?? ""));
  };
  return html`<form class="turn-editor" onSubmit=${send}>${turn.calls.map(({ id, name }) => html`<label>Result of ${name}
    <textarea rows="2" required value=${results[id] ?? ""}
      onInput=${(event) => setResults({ ...results, [id]: event.target.value })}></textarea></label>`)}
    <button type="submit" class="primary">Send the ${turn.calls.length > 1 ? "results" : "result"}</button></form>`;
}
