// Changes inside the model, below the shared text: the sides of the comparison, and the drawer that edits changes.
import { changesOf, sayChange } from "../core/changes.js";
import { sideNames, useDifferenceName } from "../core/compare.js";
import { html, useEffect, useState } from "../core/html.js";
import { UNCHANGED_VIEWS, canShowBoth, canSubtract, isCompared } from "../core/seen.js";
import { select, useSelection } from "../core/state.js";
import { Choices, Select } from "../parts/choices.js";

const MOST_SAID = 2; // changes, in the line
const UNREACHED = "This view shows the unchanged model. Changes affect the views of the text above.";

/** canChange: whether there is space for the drawer; others: the names of models to compare with. */
export function ChangeBar({ view, canChange, others }) {
  const selection = useSelection();
  if (UNCHANGED_VIEWS.has(view.id)) {
    const hasChange = selection.change !== "" || selection.change_text !== "";
    return hasChange ? html`<p class="hint" role="note">${UNREACHED}</p>` : null;
  }
  const { changes, dropped } = changesOf(selection);
  if (!canChange && !isCompared(selection)) return null;
  const canCompare = canShowBoth(view.id) || (view.id === "chat" && selection.chat_mode === "chat");
  return html`<section class="change-bar" aria-label="Changes">
    ${canChange && html`<button id="change" aria-expanded=${selection.change_open}
      onClick=${() => select({ change_open: !selection.change_open })}>Edit the model…</button>`}
    ${canChange && canCompare && others.length > 0 && html`<${Select} label="Compare with" value=${selection.change_model}
      options=${[["", "no model"], ...others.map((name) => [name, name])]}
      onPick=${(name) => select({ change_model: name, change_show: name ? "both" : "after" }, { remember: true })} />`}
    ${isCompared(selection) && html`<${Sides} selection=${selection} view=${view} />`}
    ${changes.length > 0 && html`<span class="hint change-said">${said(changes)}</span>`}
    <${DifferenceNote} />
    ${dropped.map((sentence) => html`<p class="hint change-dropped" role="status">${sentence}</p>`)}
  </section>`;
}

function Sides({ selection, view }) {
  const [before, after] = sideNames(selection);
  const choices = [["before", before], ["after", after], ...(canShowBoth(view.id) ? [["both", "side by side"]] : []),
    ...(canSubtract(selection) ? [["difference", "difference"]] : [])];
  return html`<${Choices} label="Show" value=${selection.change_show} choices=${choices}
    onPick=${(change_show) => select({ change_show })} />`;
}

function DifferenceNote() {
  const name = useDifferenceName();
  return name && html`<span class="hint" role="status">Numbers below are ${name}: <b class="positive">above 0</b> it became more,${" "}
    <b class="negative">below 0</b> less.</span>`;
}

function said(changes) {
  const more = changes.length - MOST_SAID;
  return changes.slice(0, MOST_SAID).map(sayChange).join("; ") + (more > 0 ? `; and ${more} more` : "");
}

export function ChangeDrawer({ view }) {
  const { change_open: isOpen } = useSelection();
  const isHere = isOpen && !UNCHANGED_VIEWS.has(view.id);
  const [module, setModule] = useState(null);
  const [isLost, setLost] = useState(false);
  useEffect(() => {
    if (!isHere || module) return;
    setLost(false);
    import("./change/drawer.js").then(setModule, () => setLost(true));
  }, [isHere]);
  if (!isHere) return null;
  if (isLost) return html`<p class="hint" role="alert">The code of the editor could not be loaded. Close it and open it again.</p>`;
  return module && html`<${module.Drawer} />`;
}
