// The conversations of this browser: search, rename, delete, export, import.
import { html, useRef, useState } from "../../core/html.js";
import { counted } from "../../core/numbers.js";
import { saveBlob } from "../../core/save.js";
import { select } from "../../core/state.js";
import { Problem } from "../../parts/problem.js";
import { Menu } from "../../parts/tools.js";
import { asFile, readFile } from "./files.js";
import { add, isStored, open, remove, shareBeginning, update } from "./history.js";
import { Icon } from "./icon.js";
import { contains, titleOf } from "./tree.js";

const SHOWN = 200; // conversations that are listed at once

export function ChatList({ kind, chats: all, current, onOpened }) {
  const [words, setWords] = useState("");
  const [problem, setProblem] = useState(null);
  const [renamed, setRenamed] = useState(null);
  const [isClearing, setClearing] = useState(false);
  const picker = useRef(null);
  const chats = all.filter((chat) => chat.kind === kind);
  const found = chats.filter((chat) => contains(chat, words.trim()));
  const choose = (chat) => {
    open(chat?.id ?? "");
    if (chat) {
      select({ chat_mode: chat.kind });
      shareBeginning(chat);
    }
    onOpened();
  };
  const take = async ([file]) => {
    setProblem(null);
    try {
      const [first] = add(await readFile(file));
      if (first) choose(first);
    } catch (error) {
      setProblem(error);
    }
  };
  const menuOf = (chat) => html`<${Menu}
    label=${html`<${Icon} of="more" /><span class="unseen">${`Options of ${titleOf(chat)}`}</span>`} items=${[
    { label: "Rename", run: () => setRenamed(chat.id) },
    { label: "Export", run: () => saveBlob(asFile([chat]), "lightwell-chat.json") },
    { label: "Delete", run: () => remove([chat.id]) },
  ]} />`;
  return html`<div class="chat-list">
    <button class="new-chat" onClick=${() => choose(null)}><${Icon} of="add" /> New ${kind}</button>
    <input type="search" placeholder="Search" aria-label="Search conversations" value=${words}
      onInput=${(event) => setWords(event.target.value)} />
    <ul aria-label="Conversations">${found.slice(0, SHOWN).map((chat) => html`<li key=${chat.id} class=${chat.id === current ? "on" : ""}>
      ${renamed === chat.id
        ? html`<${Rename} chat=${chat} onDone=${() => setRenamed(null)} />`
        : html`<button class="quiet" aria-current=${chat.id === current} title=${titleOf(chat)}
          onClick=${() => choose(chat)}>${titleOf(chat)}</button>${menuOf(chat)}`}</li>`)}</ul>
    ${found.length === 0 && html`<p class="hint">${chats.length ? `No ${kind} has these words.` : `No ${kind}s yet.`}</p>`}
    ${found.length > SHOWN && html`<p class="hint">${counted(found.length - SHOWN, `more ${kind}`)}: search for words.</p>`}
    <${Problem} error=${problem} isAction />
    <div class="list-end">
      ${isClearing
        ? html`<span>Delete ${counted(chats.length, kind)}?</span>
          <button onClick=${() => {
            remove(chats.map(({ id }) => id));
            setClearing(false);
          }}>Delete</button><button onClick=${() => setClearing(false)}>Keep</button>`
        : html`<button class="quiet" onClick=${() => picker.current.click()}>Import</button>
          <button class="quiet" disabled=${!chats.length}
            onClick=${() => saveBlob(asFile(chats), "lightwell-chats.json")}>Export</button>
          <button class="quiet" disabled=${!chats.length} onClick=${() => setClearing(true)}>Clear</button>`}
      <input type="file" accept=".json,application/json" hidden ref=${picker} aria-label="File to import" onChange=${(event) => {
        take(event.target.files);
        event.target.value = "";
      }} />
    </div>
    <p class="hint">${isStored ? "Kept in this browser only." : "Kept until this page is closed."}</p>
  </div>`;
}

function Rename({ chat, onDone }) {
  const [title, setTitle] = useState(titleOf(chat));
  const save = () => {
    update(chat.id, (now) => ({ ...now, title: title.trim().slice(0, 200) }), { isTouched: false });
    onDone();
  };
  return html`<form onSubmit=${(event) => {
    event.preventDefault();
    save();
  }}><input aria-label="Title" value=${title} ref=${(field) => field && field !== document.activeElement && field.focus()}
    onInput=${(event) => setTitle(event.target.value)} onBlur=${save} onKeyDown=${(event) => {
      if (event.key !== "Escape") return;
      event.preventDefault(); // it would close the list
      onDone();
    }} /></form>`;
}
