// What is typed into a field and not taken over yet: it stays, whatever is drawn meanwhile.
import { useRef, useState } from "./html.js";

/**
 * The draft of a field whose text is `value`, {text, isTyped, write, take, drop}: what the field shows, whether that
 * was typed and not taken over, what to call with each change, what takes it over by onTake(text), and what gives the
 * value back. A value that others choose meanwhile replaces what was typed; drawing the field again does not.
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
    const { text } = draft; // of now: a key may have come since this was drawn
    if (text === null) return;
    draft.taken = text;
    set(null);
    if (text !== draft.shown) onTake(text);
  };
  return { text: draft.text ?? value, isTyped: draft.text !== null, write: set, take, drop: () => set(null) };
}
