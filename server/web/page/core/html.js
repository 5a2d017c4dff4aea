// Exports for components: preact, its hooks, and htm's templates. The only importer of vendor/.
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
