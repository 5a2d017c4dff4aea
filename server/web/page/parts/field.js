// A text field of one line, committed by Enter or when it loses focus. Escape restores the committed value.
import { useDraft } from "../core/draft.js";
import { html, useEffect } from "../core/html.js";

const MOMENT = 400; // milliseconds after the last key

/** onTake(text): called with a text different from `value`; isLive: also a moment after the last key. */
export function Field({ value, onTake, isLive = false, ...input }) {
  const draft = useDraft(String(value), onTake);
  useEffect(() => {
    if (!isLive || !draft.isTyped) return undefined;
    const timer = setTimeout(draft.take, MOMENT);
    return () => clearTimeout(timer);
  }, [draft.text]);
  const onKeyDown = (event) => {
    if (event.isComposing) return; // Enter may end the composition of an input method
    if (event.key === "Enter") draft.take();
    if (event.key === "Escape" && draft.isTyped) {
      event.stopPropagation(); // it would close the parent
      draft.drop();
    }
  };
  return html`<input ...${input} value=${draft.text} onInput=${(event) => draft.write(event.target.value)}
    onKeyDown=${onKeyDown} onChange=${draft.take} onBlur=${draft.take} />`;
}
