// The field for the next message, with files: Enter sends, Shift+Enter starts a line, Escape stops the answer.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../../core/html.js";
import { counted } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { Problem } from "../../parts/problem.js";
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

/** {draft, set(changes), latest}: the unsent message of a conversation; `latest.current.draft` may be newer than `draft`. */
function useUnsent(id) {
  const [draft, setDraft] = useState(drafts.get(id) ?? EMPTY);
  const latest = useRef({ id, draft }); // keys may arrive before the next rendering
  const show = (next) => {
    latest.current = { id, draft: next };
    setDraft(next);
  };
  const set = (changes) => {
    const next = { ...latest.current.draft, ...changes };
    drafts.set(id, next);
    show(next);
  };
  useLayoutEffect(() => {
    if (latest.current.id !== id) show(drafts.get(id) ?? EMPTY);
  }, [id]);
  return { draft, set, latest };
}

/** id: the conversation's; dropped: files that were dropped on the view, or null; onSend({text, files}). */
export function Composer({ id, isBusy, onSend, onStop, dropped, onTaken }) {
  const { draft, set, latest } = useUnsent(id);
  const [problem, setProblem] = useState(null);
  const field = useRef(null);
  const picker = useRef(null);
  const { chat_draft: given } = useSelection();
  useEffect(() => field.current?.focus({ preventScroll: true }), [id]);
  useEffect(() => {
    if (given === "") return;
    set({ text: given });
    select({ chat_draft: "" });
  }, [given]);
  useLayoutEffect(() => { // the height of the text
    const { style } = field.current;
    style.height = "auto";
    style.height = `${field.current.scrollHeight + 2}px`;
  }, [draft.text]);
  const attach = async (files) => {
    setProblem(null);
    try {
      const read = await Promise.all(Array.from(files, readText));
      const all = [...latest.current.draft.files, ...read];
      if (all.length > MOST_FILES) throw refused(`At most ${MOST_FILES} files are accepted.`);
      set({ files: all });
    } catch (error) {
      setProblem(error);
    }
  };
  useEffect(() => {
    if (!dropped) return;
    attach(dropped);
    onTaken();
  }, [dropped]);
  const isEmpty = draft.text.trim() === "" && draft.files.length === 0;
  const send = () => {
    if (isEmpty || isBusy) return;
    const message = { text: draft.text.trim(), files: draft.files };
    set(EMPTY);
    drafts.delete(id);
    onSend(message);
  };
  const onKeyDown = (event) => {
    if (event.key === "Escape" && isBusy) onStop();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  return html`<form class="composer" onSubmit=${(event) => {
    event.preventDefault();
    send();
  }}>
    <${Problem} error=${problem} isAction />
    ${draft.files.length > 0 && html`<ul class="attached" aria-label="Files">${draft.files.map((file, i) => html`<li>${file.name}
      <small>${counted(file.text.length, "character")}</small>
      <button type="button" class="quiet" aria-label=${`Remove ${file.name}`} onClick=${() =>
        set({ files: draft.files.filter((_, place) => place !== i) })}>✕</button></li>`)}</ul>`}
    <div class="composer-row">
      <${IconButton} icon="attach" label="Attach text files" onClick=${() => picker.current.click()} />
      <input type="file" multiple hidden ref=${picker} onChange=${(event) => {
        attach(event.target.files);
        event.target.value = "";
      }} />
      <label><span class="unseen">Message</span><textarea id="message" ref=${field} rows="1" placeholder="Message" value=${draft.text}
        onInput=${(event) => set({ text: event.target.value })} onKeyDown=${onKeyDown}></textarea></label>
      ${isBusy
        ? html`<${IconButton} icon="stop" label="Stop" class="round" onClick=${onStop} />`
        : html`<${IconButton} icon="send" label="Send" class="round" disabled=${isEmpty} onClick=${send} />`}
    </div>
  </form>`;
}
