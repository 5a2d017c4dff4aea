// An error where it happened, with what to do; and progress where something is awaited.
import { classes, html } from "../core/html.js";

const ADVICE = {
  0: "It is asked again as soon as it answers.",
  401: "Give the key of this server at the top of the page.",
  413: "Choose a shorter text, or less of it.",
  429: "The server is busy; try again in a moment.",
  503: "It is asked again as soon as the server is ready.",
};

const AGAIN_YOURSELF = "Try it again when the server answers.";

function adviceOn({ status, isPassing }, isAction) {
  return isAction && isPassing && status !== 429 ? AGAIN_YOURSELF : ADVICE[status];
}

function titleOf(status) {
  if (status === undefined) return "Something broke"; // in the page itself: no answer of the server
  return status === 0 ? "Not reached" : `Refused (${status})`;
}

/**
 * The error of a request, with what can be done about it. isAction: somebody's click asked it, so it is not asked again
 * when the server is back.
 */
export function Problem({ error, retry, isAction = false }) {
  if (!error) return null;
  const advice = adviceOn(error, isAction);
  const wait = error.retryAfter ? ` The server asks to wait ${error.retryAfter} s.` : "";
  return html`<div class="problem" role="alert">
    <strong>${titleOf(error.status)}</strong>
    <p>${error.message}</p>
    ${advice && html`<p>${advice}${wait}</p>`}
    ${retry && html`<button type="button" onClick=${retry}>Try again</button>`}
  </div>`;
}

/** A quiet line while something loads; its place is kept so that nothing jumps. */
export const Progress = ({ active, label = "Asking the server…" }) =>
  html`<div class=${classes("progress", active && "active")} role="status">${active ? label : ""}</div>`;

/**
 * What a view shows of one answer (see useAnswer): progress, the problem, or its content from `children(data)`.
 * Old content stays, paler, while new comes.
 */
export function Answer({ answer, children, minHeight }) {
  const { data, error, loading, isStale, retry } = answer;
  return html`<div class=${classes("answer", isStale && "stale")} style=${{ minHeight }} aria-busy=${loading}>
    <${Progress} active=${loading} />
    <${Problem} error=${error} retry=${retry} />
    ${data !== null && children(data)}
  </div>`;
}
