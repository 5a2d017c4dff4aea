// The role that a click on a word sets: query or key. Shift sets the other one.
import { html } from "../core/html.js";
import { Store, useStore } from "../core/store.js";

const role = new Store("query");

export const roleOf = (event) => (event.shiftKey ? { query: "key", key: "query" }[role.value] : role.value);

export function PickRole() {
  const chosen = useStore(role);
  const button = (name, says) => html`<button class=${`quiet ${name}`} aria-pressed=${chosen === name}
    onClick=${() => role.set(name)}>${says}</button>`;
  return html`<span class="pick-role" role="group" aria-label="A click on a word chooses">A click chooses${" "}
    ${button("query", "who looks")}${button("key", "who is looked at")}<span class="wide"> (with shift, the other)</span></span>`;
}
