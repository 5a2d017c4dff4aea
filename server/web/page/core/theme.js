// Light or dark mode: the system's setting unless the user selects one. Pictures get the colours of the CSS from
// here.
import { Store } from "./store.js";

const system = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;

function resolved() {
  return chosen ?? (system.matches ? "dark" : "light");
}

export const theme = new Store(resolved());

function apply() {
  document.documentElement.dataset.theme = resolved();
  theme.set(resolved());
}

system.addEventListener("change", apply);
apply();

export function toggleTheme() {
  chosen = resolved() === "dark" ? "light" : "dark";
  apply();
}

/** The colours of the pictures as CSS strings, by name: ink, muted, line, paper, query, key, value, accent, ... */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  return new Proxy({}, { get: (_, name) => style.getPropertyValue(`--${name}`).trim() });
}
