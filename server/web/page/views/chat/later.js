// The code that reads Markdown: it is loaded when Chat first shows a turn, and turns are plain text until then.
import { Store, useStore } from "../../core/store.js";

const code = new Store(null);
let asked = null;

/** {Markdown, Code}, or null while they are loaded. */
export function useCode() {
  asked ??= import("./markdown.js").then((module) => code.set(module), () => {
    asked = null; // tried again with the next turn
  });
  return useStore(code);
}
