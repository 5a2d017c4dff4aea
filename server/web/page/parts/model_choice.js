// The header's list of the server's models, and the messages about a model that is being loaded or cannot be shown.
import { classes, hasModifier, html, useEffect, useRef, useState } from "../core/html.js";
import { purposeOf, stateOf } from "../core/models.js";

/** A list that opens from a button, with the keys of a combobox. served: see useServed. */
export function ModelChoice({ served: { models, name, isOpening, refresh, choose } }) {
  const [at, setAt] = useState(null); // index of the pointed model, or null
  const list = useRef(null);
  const isOpen = at !== null;
  useEffect(() => list.current.children[at]?.scrollIntoView({ block: "nearest" }), [at]);
  const open = () => {
    setAt(Math.max(0, models.findIndex(({ id }) => id === name)));
    refresh();
  };
  const take = ({ id }) => {
    setAt(null);
    if (id !== name) choose(id);
  };
  const onKeyDown = (event) => {
    if (hasModifier(event)) return;
    if (!isOpen && !OPENING.has(event.key)) return;
    const next = isOpen ? placeAfter(event.key, at, models) : at;
    if (next === undefined) return;
    event.preventDefault();
    event.stopPropagation(); // Escape would also close a lesson
    if (!isOpen) open();
    else if (TAKING.has(event.key)) take(models[at]);
    else setAt(next);
  };
  return html`<span class="wide" id="model-label">Model</span><div class="model-choice">
    <button role="combobox" aria-labelledby="model-label" aria-haspopup="listbox" aria-expanded=${isOpen}
      aria-controls="models" aria-activedescendant=${isOpen ? `model-${at}` : undefined} aria-busy=${isOpening}
      onKeyDown=${onKeyDown} onClick=${() => (isOpen ? setAt(null) : open())} onBlur=${() => setAt(null)}>
      <b>${name}</b></button>
    <ul role="listbox" id="models" aria-labelledby="model-label" hidden=${!isOpen} ref=${list}
      onMouseDown=${keepFocus}>${models.map((model, i) => html`<li role="option" id=${`model-${i}`} key=${model.id}
        aria-selected=${model.id === name} class=${classes(i === at && "pointed")}
        onMouseMove=${() => setAt(i)} onClick=${() => take(model)}>
        <b>${model.id}</b>${" "}<span>${purposeOf(model)}</span>${" "}<${ModelState} model=${model} /></li>`)}
    </ul>
  </div>`;
}

const OPENING = new Set(["ArrowDown", "ArrowUp", "Enter", " "]);
const TAKING = new Set(["Enter", " "]);
const keepFocus = (event) => event.preventDefault();

/** The pointed place after a key in the open list; null closes it, undefined is no key of it. */
function placeAfter(key, at, models) {
  if (TAKING.has(key)) return at;
  if (key.length === 1) {
    const others = models.map((_, i) => (at + 1 + i) % models.length);
    return others.find((i) => models[i].id.toLowerCase().startsWith(key.toLowerCase())) ?? at;
  }
  const end = models.length - 1;
  return { ArrowDown: Math.min(at + 1, end), ArrowUp: Math.max(at - 1, 0), Home: 0, End: end, Escape: null }[key];
}

export const ModelState = ({ model }) => html`<span class=${`model-state ${model.status.value}`}>${stateOf(model)}</span>`;

export function ModelNote({ served: { data, name, note, isOpening, isLoading, dismiss } }) {
  return html`<div class="model-note">
    <p role="status" aria-busy=${Boolean(data && isOpening && isLoading)}>${data && isOpening && isLoading && html`<span
      class="model-state loading"></span>Loading the model <b>${name}</b>. The page shows <b>${data.model}</b> until then.`}</p>
    ${note && html`<div role="alert"><p>${note}</p>
      <button class="quiet" aria-label="Close the message" onClick=${dismiss}>✕</button></div>`}
  </div>`;
}
