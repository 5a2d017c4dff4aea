// Exports for components: preact, its hooks, and htm's templates. The only importer of preact-htm.js.
import { html, useMemo } from "../vendor/preact-htm.js";

export {
  html,
  render,
  createContext,
  useCallback,
  useContext,
  useEffect,
  useErrorBoundary,
  useLayoutEffect,
  useMemo,
  useRef,
  useState,
} from "../vendor/preact-htm.js";

export const classes = (...parts) => parts.filter(Boolean).join(" ");

/** Whether the key is the browser's: Alt+Left goes back. */
export const hasModifier = ({ altKey, ctrlKey, metaKey }) => altKey || ctrlKey || metaKey;

/** Keep an event from the browser and from the elements around. */
export function used(event) {
  event.preventDefault();
  event.stopPropagation();
}

/** Call handlers by the names of a target's events; returns a function that ends this. */
export function listen(target, handlers, options) {
  const abort = new AbortController();
  for (const name in handlers) target.addEventListener(name, handlers[name], { ...options, signal: abort.signal });
  return () => abort.abort();
}

export const memo = (Component) => function Memo(properties) {
  const values = Object.values(properties);
  return useMemo(() => html`<${Component} ...${properties} />`, [...values]);
};
