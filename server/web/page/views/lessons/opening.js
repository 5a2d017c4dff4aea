// Opens and closes lessons, and restores the user's earlier selection.
import { initialState, select, state } from "../../core/state.js";

export const LIST = "list";

let opener = null; // the element with the keyboard's focus before
let before = null; // the user's selection before; null if an address opened the lesson

export function openLesson(name) {
  if (state.value.lesson === "") {
    opener = document.activeElement;
    before = state.value;
  }
  select({ lesson: name, lesson_step: 1 }, { remember: true });
}

/** Restores the user's text and selection unless isToStay keeps the current ones. */
export function closeLesson({ isToStay = false } = {}) {
  const rest = isToStay || before === null ? {} : { ...before, model: state.value.model };
  const { lesson, lesson_step } = initialState;
  select({ ...rest, lesson, lesson_step }, { remember: true });
  before = null;
  opener?.focus();
}
