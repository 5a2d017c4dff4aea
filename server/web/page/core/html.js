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

/** Class names from the truthy parts: `classes("chip", isOn && "on")`. */
export const classes = (...parts) => parts.filter(Boolean).join(" ");

/** Whether a key is pressed with one that makes it the browser's: Alt+Left goes back. */
export const hasModifier = ({ altKey, ctrlKey, metaKey }) => altKey || ctrlKey || metaKey;

/** A component that is rendered again only when a property changes. */
export const memo = (Component) => function Memo(properties) {
  const values = Object.values(properties);
  return useMemo(() => html`<${Component} ...${properties} />`, [...values]);
};
