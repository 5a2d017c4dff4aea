// The field for the next message, with files: Enter sends, Shift+Enter starts a line, Escape stops the answer.
import { onEnter } from "../../core/draft.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../../core/html.js";
import { counted } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { Problem } from "../../parts/problem.js";
import { shareText } from "./history.js";
import { IconButton } from "./icon.js";

const MOST_FILES = 16;
const MOST_BYTES = 1e6; // of one file
const EMPTY = { text: "", files: [] };
const drafts = new Map(); // {text, files} by a conversation's id, while the page is open

const refused = (said) => Object.assign(new Error(said), { title: "Not attached", status: 422 });

async function readText(file) {
  if (file.size > MOST_BYTES) throw refused(`${file.name} has ${file.size} bytes; at most ${MOST_BYTES} are accepted.`);
  const text = await file.text();
  if (/[\0\ufffd]/.test(text)) throw refused(`${file.name} is no text in UTF-8.`);
  return { name: file.name, text };
}

/** The unsent message of a conversation. That of a new text is the page's text. */
function useUnsent(id) {
  const { text: shared, chat_draft: given } = useSelection();
  const [, setVersion] = useState(0);
  const isShared = id === "text";
  const { text: own, files } = drafts.get(id) ?? EMPTY;
  const text = isShared ? shared : own;
  const set = (changes) => {
    if (isShared && "text" in changes) shareText(changes.text);
    drafts.set(id, { ...EMPTY, ...drafts.get(id), ...changes });
    setVersion((version) => version + 1);
  };
  useEffect(() => { // the question of another view
    if (given === "") return;
    if (!text.includes(given)) set({ text: [text, given].filter(Boolean).join("\n") });
    select({ chat_draft: "" });
  }, [given]);
  return { text, files, set };
}

export function Composer({ id, kind, label, isBusy, onSend, onStop, dropped, onTaken }) {
  const { text, files, set } = useUnsent(id);
  const isText = kind === "text";
  const [problem, setProblem] = useState(null);
  const field = useRef(null);
  const picker = useRef(null);
  useEffect(() => { // a lesson keeps the focus
    if (!document.activeElement?.closest("[role=dialog]")) field.current.focus({ preventScroll: true });
  }, [id]);
  useLayoutEffect(() => { // the height of the text
    const { style } = field.current;
    style.height = "auto";
    style.height = `${field.current.scrollHeight + 2}px`;
  }, [text]);
  const attach = async (added) => {
    setProblem(null);
    try {
      const read = await Promise.all(Array.from(added, readText));
      if (isText) return set({ text: field.current.value + read.map((file) => file.text).join("") });
      const all = [...(drafts.get(id) ?? EMPTY).files, ...read];
      if (all.length > MOST_FILES) throw refused(`At most ${MOST_FILES} files are accepted.`);
      return set({ files: all });
    } catch (error) {
      return setProblem(error);
    }
  };
  useEffect(() => {
    if (!dropped) return;
    attach(dropped);
    onTaken();
  }, [dropped]);
  const isEmpty = (isText ? text : text.trim()) === "" && files.length === 0;
  const send = () => {
    const { value } = field.current; // keys may arrive before the next rendering
    const message = { text: isText ? value : value.trim(), files };
    if (isBusy || (message.text === "" && files.length === 0)) return;
    if (id !== "text") set(EMPTY);
    onSend(message);
  };
  return html`<form class="composer" onSubmit=${(event) => {
    event.preventDefault();
    send();
  }}>
    <${Problem} error=${problem} isAction />
    ${files.length > 0 && html`<ul class="attached" aria-label="Files">${files.map((file, i) => html`<li>${file.name}
      <small>${counted(file.text.length, "character")}</small>
      <button type="button" class="quiet" aria-label=${`Remove ${file.name}`} onClick=${() =>
        set({ files: files.filter((_, place) => place !== i) })}>✕</button></li>`)}</ul>`}
    <div class="composer-row">
      <${IconButton} icon="attach" label="Attach text files" onClick=${() => picker.current.click()} />
      <input type="file" multiple hidden ref=${picker} onChange=${(event) => {
        attach(event.target.files);
        event.target.value = "";
      }} />
      <label><span class="unseen">${label}</span><textarea id="message" ref=${field} rows="1" value=${text} spellcheck=${!isText}
        placeholder=${!isText ? "Message" : id === "text" ? "The beginning of a text" : "More text"}
        onInput=${(event) => set({ text: event.target.value })} onKeyDown=${onEnter(send)}></textarea></label>
      ${isBusy
        ? html`<${IconButton} icon="stop" label="Stop" class="round" onClick=${onStop} />`
        : html`<${IconButton} icon="send" label=${isText ? "Write" : "Send"} id=${isText ? "write" : undefined}
          class="round" disabled=${isEmpty} onClick=${send} />`}
    </div>
  </form>`;
}
