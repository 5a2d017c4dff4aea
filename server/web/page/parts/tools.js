// The small tools at a picture's corner: copy the request, save the picture or its data.
import { asCurl, asPython } from "../core/calls.js";
import { html, useEffect, useRef, useState } from "../core/html.js";
import { csvOfArray, npyBytes, saveBlob } from "../core/save.js";
import { address } from "../core/state.js";

/** [said, run]: the message of an action, which is shown for a moment, and a function that runs one. */
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

/** A button that opens a short list of actions: items [{label, run}], null ones left out. */
export function Menu({ label, items, title }) {
  const [isOpen, setOpen] = useState(false);
  const [said, run] = useSaid();
  const element = useRef(null);
  const opener = useRef(null); // gets the focus again when the list is closed
  useEffect(() => {
    if (!isOpen) return undefined;
    const close = (event) => {
      if (event.key === "Escape") {
        if (element.current?.contains(document.activeElement)) opener.current.focus();
        setOpen(false);
      } else if (event.type === "pointerdown" && !element.current?.contains(event.target)) {
        setOpen(false);
      }
    };
    document.addEventListener("pointerdown", close);
    document.addEventListener("keydown", close);
    return () => {
      document.removeEventListener("pointerdown", close);
      document.removeEventListener("keydown", close);
    };
  }, [isOpen]);
  const pick = (item) => {
    opener.current.focus();
    setOpen(false);
    run(item.run);
  };
  return html`<div class="menu" ref=${element}>
    <button type="button" class="quiet" ref=${opener} title=${title} aria-expanded=${isOpen}
      onClick=${() => setOpen(!isOpen)}>${label}</button>
    <span class="said" role="status">${said}</span>
    ${isOpen &&
    html`<ul>
      ${items.filter(Boolean).map((item) => html`<li><button type="button" onClick=${() => pick(item)}>${item.label}</button></li>`)}
    </ul>`}
  </div>`;
}

/** Browsers allow access to the clipboard only on https and localhost; elsewhere users can copy the selected text. */
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

/** Copy the request of a view, as curl or Python; `requests` is a list of {route, body}, or one of them. */
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

/** A file's name, from the names of the picture and, if there are several, of the array. */
function fileOf(name, label, isOnly) {
  return isOnly ? name : `${name}-${label.toLowerCase().match(/\w+/g).join("-")}`;
}

/**
 * Save the picture (`picture.current` as parts/picture.js sets it) and the data: `arrays` is
 * [{label, array: {data, shape}, rows, columns}], names of rows and columns for the CSV.
 */
export function SaveMenu({ picture, arrays = [], name }) {
  return html`<${Menu}
    label="Save…"
    title="Picture or data"
    items=${[
      picture && { label: "picture (PNG)", run: async () => saveBlob(await picture.current.png(), `${name}.png`) },
      picture && { label: "picture (SVG)", run: async () => saveBlob(await picture.current.svg(), `${name}.svg`) },
      ...arrays.flatMap(({ label, array, rows, columns }) => {
        const file = fileOf(name, label, arrays.length === 1);
        const csv = () => new Blob([csvOfArray(array, rows, columns)], { type: "text/csv" });
        return [
          { label: `${label} (npy)`, run: () => saveBlob(npyBytes(array), `${file}.npy`) },
          { label: `${label} (CSV)`, run: () => saveBlob(csv(), `${file}.csv`) },
        ];
      }),
    ]}
  />`;
}
