// Lessons and the tour: a card that guides users through the views. The code is loaded when a lesson is opened.
import { html, listen, useEffect, useState } from "../core/html.js";
import { useSelection } from "../core/state.js";
import { closeLesson } from "./lessons/opening.js";

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
    return listen(window, { keydown: close });
  }, [isOpen]);
  return lesson && module ? html`<${module.Card} key=${lesson} name=${lesson} />` : null;
}
