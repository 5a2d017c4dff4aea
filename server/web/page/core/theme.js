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
  chosen = theme.value === "dark" ? "light" : "dark";
  apply();
}

const colours = { light: {}, dark: {} }; // by name, read once: computing a style takes longer than drawing

/** The colours of the pictures as CSS strings, by name. Reading system.matches here would swallow its change event. */
export const palette = () => new Proxy(colours[theme.value], { get: (own, name) =>
  (own[name] ||= getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()) });
