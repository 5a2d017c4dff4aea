// How the changes of the selection are written: all of them, or one more.
import { refusal } from "../../core/api.js";
import { writeChange, writeChanges } from "../../core/changes.js";
import { select } from "../../core/state.js";

/** Put changes into the selection. */
export function setChanges(changes, more = {}) {
  refusal.set(null); // it was about the changes before
  select({ ...more, change: writeChanges(changes) });
}

/** Add a change, in place of one of the same kind at the same place; where the unchanged side is shown, show the other. */
export function addChange(changes, change, show) {
  const kind = ({ value, ...rest }) => writeChange({ ...rest, value: null });
  const others = changes.filter((one) => kind(one) !== kind(change));
  setChanges([...others, change], show === "before" ? { change_show: "after" } : {});
}
