// A field of one line whose text counts once it is taken over: with Enter, or when the field is left. Escape gives back
// what was there.
import { useDraft } from "../core/draft.js";
import { html } from "../core/html.js";

/** onTake(text): called with a text that is not `value`; further properties are the input's. */
export function Field({ value, onTake, ...input }) {
  const draft = useDraft(String(value), onTake);
  const onKeyDown = (event) => {
    if (event.isComposing) return; // Enter ends a word of an input method
    if (event.key === "Enter") draft.take();
    if (event.key === "Escape" && draft.isTyped) {
      event.stopPropagation(); // it would close what the field stands in
      draft.drop();
    }
  };
  return html`<input ...${input} value=${draft.text} onInput=${(event) => draft.write(event.target.value)}
    onKeyDown=${onKeyDown} onChange=${draft.take} onBlur=${draft.take} />`;
}
