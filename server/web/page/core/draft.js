// Uncommitted text of a field: it is kept when the page is drawn again.
import { useRef, useState } from "./html.js";

/**
 * The draft of a field with the text `value`: {text, isTyped (and not committed), write(text), take(), drop()}; take
 * commits by onTake(text), drop restores the value. A new value from outside replaces the typed text.
 */
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
