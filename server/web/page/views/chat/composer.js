// The field for the next message, with files: Enter sends, Shift+Enter starts a line, Escape stops the answer.
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

/** {name, text} of a file. Raises an error for one that is too long or no text. */
async function readText(file) {
  if (file.size > MOST_BYTES) throw refused(`${file.name} has ${file.size} bytes; at most ${MOST_BYTES} are accepted.`);
  const text = await file.text();
  if (/[\0\ufffd]/.test(text)) throw refused(`${file.name} is no text in UTF-8.`);
  return { name: file.name, text };
}

/** {text, files, set(changes)}: the unsent message of a conversation. The message of a new text is the page's text. */
function useUnsent(id) {
  const { text: shared, chat_draft: given } = useSelection();
  const [, setVersion] = useState(0);
  const isShared = id === "text";
  const { text, files } = drafts.get(id) ?? EMPTY;
  const set = (changes) => {
    if (isShared && "text" in changes) shareText(changes.text);
    drafts.set(id, { ...EMPTY, ...drafts.get(id), ...changes });
    setVersion((version) => version + 1);
  };
  useEffect(() => { // the question of another view
    if (given === "") return;
    set({ text: given });
    select({ chat_draft: "" });
  }, [given]);
  return { text: isShared ? shared : text, files, set };
}

/** id: the conversation's; label: of the field; dropped: files that were dropped on the view, or null; onSend({text, files}). */
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
  const onKeyDown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
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
        onInput=${(event) => set({ text: event.target.value })} onKeyDown=${onKeyDown}></textarea></label>
      ${isBusy
        ? html`<${IconButton} icon="stop" label="Stop" class="round" onClick=${onStop} />`
        : html`<${IconButton} icon="send" label=${isText ? "Write" : "Send"} id=${isText ? "write" : undefined}
          class="round" disabled=${isEmpty} onClick=${send} />`}
    </div>
  </form>`;
}
