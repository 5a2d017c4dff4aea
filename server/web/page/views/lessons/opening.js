// Opens and closes lessons, and gives back what the visitor looked at before.
import { initialState, select, state } from "../../core/state.js";

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
