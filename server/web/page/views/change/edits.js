// Edits the changes of the selection: all of them, or one more.
import { refusal } from "../../core/api.js";
import { writeChange, writeChanges } from "../../core/changes.js";
import { select } from "../../core/state.js";

export function setChanges(changes, more = {}) {
  refusal.set(null); // it belongs to the previous changes
  select({ ...more, change: writeChanges(changes) });
}

/** Replaces one of the same kind at the same place. If the unchanged side is shown, show the changed one. */
export function addChange(changes, change, show) {
  const kind = ({ value, ...rest }) => writeChange({ ...rest, value: null });
  const others = changes.filter((one) => kind(one) !== kind(change));
  setChanges([...others, change], show === "before" ? { change_show: "after" } : {});
}
