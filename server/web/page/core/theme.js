// Light or dark mode: the system's setting unless the user selects one; and the colours of the CSS for pictures.
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

const colours = { light: {}, dark: {} }; // by name, read once: computing a style takes longer than drawing

/** The colours of the pictures as CSS strings, by name. */
export const palette = () => new Proxy(colours[resolved()], { get: (own, name) =>
  (own[name] ||= getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()) });
