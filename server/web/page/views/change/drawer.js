// The drawer: the available and the current changes, and a second text for comparison.
import { MOST_CHANGES, changesOf } from "../../core/changes.js";
import { html, useEffect, useRef } from "../../core/html.js";
import { useCapabilities, useHead } from "../../core/model.js";
import { select, useSelection } from "../../core/state.js";
import { DelayedText } from "../../parts/shared_bar.js";
import { addChange, setChanges } from "./edits.js";
import { Form } from "./form.js";
import { List } from "./list.js";

export function Drawer() {
  const selection = useSelection();
  const drawer = useRef(null);
  useEffect(() => {
    // keyboard focus moves to a drawer opened by a user; a drawer opened by an address takes no focus
    if (document.activeElement !== document.body) drawer.current.focus({ preventScroll: true });
  }, []);
  const close = () => {
    select({ change_open: false });
    document.getElementById("change")?.focus();
  };
  const onKeyDown = (event) => {
    if (event.key !== "Escape" || event.defaultPrevented) return;
    event.stopPropagation();
    close();
  };
  const { changes } = changesOf(selection);
  const isFull = changes.length >= MOST_CHANGES;
  return html`<aside class="change card" aria-label="Edit the model" tabindex="-1" ref=${drawer} onKeyDown=${onKeyDown}>
    <header><h2>Edit the model</h2>
      <button class="quiet" aria-label="Close the drawer" onClick=${close}>✕</button></header>
    <p class="hint">A change applies only to the requests of this page. Every view shows its effect.</p>
    <${ThisHead} changes=${changes} isFull=${isFull} />
    <${Form} changes=${changes} isFull=${isFull} />
    ${isFull && html`<p class="hint" role="status">These are ${MOST_CHANGES} changes: a request takes no more.</p>`}
    <${List} changes=${changes} />
    <${SecondText} />
  </aside>`;
}

function ThisHead({ changes, isFull }) {
  const { part, layer, head } = useHead();
  const { change_show: show, part: chosen } = useSelection();
  const { parts } = useCapabilities().attention;
  const own = { place: "head", part: chosen === "" ? "" : part, layer, head, position: null, value: null };
  const isOf = (change) => change.place === "head" && change.layer === layer && change.head === head &&
    change.position === null && (change.part || parts[0]) === part;
  const isChanged = changes.some(isOf);
  const restore = () => setChanges(changes.filter((change) => !isOf(change)));
  const make = (op) => () => addChange(changes, { ...own, op }, show);
  const name = `Layer ${layer}, head ${head}${parts.length > 1 ? ` (${part})` : ""}`;
  return html`<div class="toolbar change-head" role="group" aria-label=${name}>
    <b>${name}</b>
    <button class=${isChanged ? "" : "primary"} disabled=${isFull && !isChanged}
      onClick=${isChanged ? restore : make("zero")}>${isChanged ? "Restore this head" : "Zero this head"}</button>
    ${!isChanged && html`<button disabled=${isFull} onClick=${make("mean")}
      title="Its output at every position becomes the mean over the text">Use its mean</button>`}
  </div>`;
}

function SecondText() {
  const { change_text: second } = useSelection();
  return html`<section><h3>Compare two texts</h3>
    <${DelayedText} label="Text B (the text above is A)" value=${second}
      onText=${(text) => select({ change_text: text, ...(second === "" ? { change_show: "after" } : {}) })} />
    ${second && html`<button onClick=${() => select({ change_text: "", change_show: "after" })}>Only text A</button>`}
    <p class="hint">The model reads both${second ? ", with the changes above in both" : ""}. To subtract them, both
      texts need the same number of tokens.</p>
  </section>`;
}
