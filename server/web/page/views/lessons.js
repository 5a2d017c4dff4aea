// Lessons, the tour among them: a card that walks somebody through the views. Its code is loaded when one is opened.
import { html, useEffect, useState } from "../core/html.js";
import { initialState, select, state, useSelection } from "../core/state.js";

/** The name that stands in the address where the list of lessons is open. */
export const LIST = "list";

let opener = null; // what had the keyboard's focus before
let before = null; // what the visitor looked at before; null where an address opened the lesson

/** Open a lesson at its first step, or the list of them. */
export function openLesson(name) {
  if (state.value.lesson === "") {
    opener = document.activeElement;
    before = state.value;
  }
  select({ lesson: name, lesson_step: 1 }, { remember: true });
}

/** Close what is open. The visitor's text and selection come back, unless what is seen is to stay. */
export function closeLesson({ isToStay = false } = {}) {
  const rest = isToStay || before === null ? {} : before;
  const { lesson, lesson_step } = initialState;
  select({ ...rest, lesson, lesson_step }, { remember: true });
  before = null;
  opener?.focus();
}

/** The open lesson, or the list of them; Escape closes it. */
export function Lessons() {
  const { lesson } = useSelection();
  const isOpen = lesson !== "";
  const [module, setModule] = useState(null);
  useEffect(() => {
    if (lesson && !module) import("./lessons/card.js").then(setModule, () => closeLesson({ isToStay: true }));
  }, [lesson]);
  useEffect(() => {
    if (!isOpen) return undefined;
    const close = (event) => event.key === "Escape" && !event.defaultPrevented && closeLesson();
    addEventListener("keydown", close);
    return () => removeEventListener("keydown", close);
  }, [isOpen]);
  return lesson && module ? html`<${module.Card} key=${lesson} name=${lesson} />` : null;
}
