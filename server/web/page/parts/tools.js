// The small tools at a picture's corner: copy the request, save the picture or its data.
import { asCurl, asPython } from "../core/calls.js";
import { classes, html, listen, useContext, useLayoutEffect, useRef, useState } from "../core/html.js";
import { csvOfArray, npyBytes, saveBlob } from "../core/save.js";
import { address } from "../core/state.js";
import { SavedPicture } from "./picture.js";

export function useSaid() {
  const [said, setSaid] = useState("");
  const timer = useRef(0);
  const run = async (action) => {
    setSaid(await Promise.resolve().then(action).then((message) => message ?? "", (error) => error.message));
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setSaid(""), 2500);
  };
  return [said, run];
}

/** A button that opens a list of actions. items: [{label, run}], or a function that returns them; null ones are left out. */
export function Menu({ label, items, title }) {
  const [isOpen, setOpen] = useState(false);
  const [said, run] = useSaid();
  const element = useRef(null);
  const opener = useRef(null); // gets the focus again when the list is closed
  useLayoutEffect(() => { // in the same frame as the list: Escape may be pressed before the next one
    if (!isOpen) return undefined;
    const close = (event) => {
      if (event.key === "Escape") {
        event.preventDefault(); // it would close the parent
        if (element.current?.contains(document.activeElement)) opener.current.focus();
        setOpen(false);
      } else if (event.type === "pointerdown" && !element.current?.contains(event.target)) {
        setOpen(false);
      }
    };
    return listen(document, { pointerdown: close, keydown: close });
  }, [isOpen]);
  const pick = (item) => {
    opener.current.focus();
    setOpen(false);
    run(item.run);
  };
  return html`<div class="menu" ref=${element}>
    <button class="quiet" ref=${opener} title=${title} aria-expanded=${isOpen}
      onClick=${() => setOpen(!isOpen)}>${label}</button>
    <span class="said" role="status">${said}</span>
    ${isOpen && html`<ul>${(typeof items === "function" ? items() : items).filter(Boolean).map((item) =>
      html`<li><button onClick=${() => pick(item)}>${item.label}</button></li>`)}</ul>`}
  </div>`;
}

/** Browsers allow access to the clipboard only on https and localhost. */
export async function copy(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return "Copied";
  }
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "unseen";
  const focused = document.activeElement;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  focused?.focus();
  if (!isCopied) throw new Error("This browser copies only on https and localhost.");
  return "Copied";
}

/** A part of a view; copy, save: properties of the menus in its header, if any; aside: more content of the header. */
export function Card({ title, copy, save, aside, class: own, children, ...more }) {
  const picture = useRef(null);
  return html`<${SavedPicture.Provider} value=${picture}><section class=${classes("card", own)} ...${more}>
    <header><h2>${title}</h2>${aside}${copy && html`<${CopyMenu} ...${copy} />`}${save && html`<${SaveMenu} ...${save} />`}</header>
    ${children}</section><//>`;
}

export function CopyMenu({ route, body }) {
  const python = asPython(route, body);
  return html`<${Menu}
    label="Copy as…"
    title="The request behind this view"
    items=${[
      { label: "curl", run: () => copy(asCurl(route, body)) },
      python && { label: "Python", run: () => copy(python) },
      { label: "link to this view", run: () => copy(address()) },
    ]}
  />`;
}

const arrayOf = (lists) => ({ data: Float64Array.from(lists.flatMap((list) => [...list])), shape: [lists.length, lists[0].length] });

/**
 * picture: its handle (default: of the first one in the Card); arrays: [{label, array: {data, shape}, rows, columns}], the
 * names for the CSV; or `lists`, one a row, for the array.
 */
export function SaveMenu({ picture, arrays = [], name }) {
  const ofCard = useContext(SavedPicture);
  const shown = picture ?? ofCard;
  return html`<${Menu}
    label="Save…"
    title="Picture or data"
    items=${() => [
      ...(shown?.current ? ["png", "svg"].map((type) => ({ label: `picture (${type.toUpperCase()})`,
        run: async () => saveBlob(await shown.current[type](), `${name}.${type}`) })) : []),
      ...arrays.flatMap(({ label, lists, array = arrayOf(lists), rows, columns }) => {
        const file = arrays.length === 1 ? name : `${name}-${label.toLowerCase().match(/\w+/g).join("-")}`;
        const csv = () => new Blob([csvOfArray(array, rows, columns)], { type: "text/csv" });
        return [
          { label: `${label} (npy)`, run: () => saveBlob(npyBytes(array), `${file}.npy`) },
          { label: `${label} (CSV)`, run: () => saveBlob(csv(), `${file}.csv`) },
        ];
      }),
    ]}
  />`;
}
