// Uncommitted text of a field: it is kept when the page is drawn again.
import { useRef, useState } from "./html.js";

/** {text, isTyped, write(text), take(), drop()}; take commits by onTake(text), drop restores the value. */
export function useDraft(value, onTake) {
  const draft = useRef({ text: null, shown: value, taken: value }).current;
  const [, setVersion] = useState(0);
  if (value !== draft.shown) {
    if (value !== draft.taken) draft.text = null;
    draft.shown = value;
  }
  const set = (text) => {
    draft.text = text;
    setVersion((version) => version + 1);
  };
  const take = () => {
    const { text } = draft; // the current draft: it may be newer than the last rendering
    if (text === null) return;
    draft.taken = text;
    set(null);
    if (text !== draft.shown) onTake(text);
  };
  return { text: draft.text ?? value, isTyped: draft.text !== null, write: set, take, drop: () => set(null) };
}

/** A handler of keys: Enter takes the text, and with Shift starts a line. */
export const onEnter = (take) => (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  take();
};
