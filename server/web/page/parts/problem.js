// An error where it occurred, with advice; and progress while loading.
import { classes, html, useEffect, useLayoutEffect, useRef, useState } from "../core/html.js";
import { Store } from "../core/store.js";

const ADVICE = {
  0: "The page retries as soon as it answers.",
  401: "Give the key of this server at the top of the page.",
  413: "Choose a shorter text, or less of it.",
  429: "The server is busy; try again in a moment.",
  503: "The page retries as soon as the server is ready.",
};
const ADVICE_BY_CODE = { context_length_exceeded: "Shorten the text." };

const AGAIN_YOURSELF = "Try it again when the server answers.";
const LASTING = new Set([400, 403, 404, 413, 422, "saved"]); // the same request would be rejected again

// Advice about fields that this page does not offer.
const UNOFFERED = / Set truncate to cut it\.$/;

function adviceOn({ status, code, isPassing }, isAction) {
  if (isAction && isPassing && status !== 429) return AGAIN_YOURSELF;
  return ADVICE_BY_CODE[code] ?? ADVICE[status];
}

function titleOf({ status, title }) {
  if (title) return title;
  if (status === "saved") return "Not in this file";
  if (status === undefined) return "Something broke"; // in the page itself: there is no response
  return status === 0 ? "Not reached" : `Refused (${status})`;
}

const shown = new Store([]);

/** Whether an earlier problem on the page has the same text; retryAll retries all of them. */
function useOthers(element, says, retry) {
  const [isRepeated, setRepeated] = useState(false);
  const own = useRef({});
  Object.assign(own.current, { says, retry });
  useLayoutEffect(() => {
    own.current.element = element.current;
    const compare = (all) =>
      setRepeated(all.some((one) => one.says === own.current.says &&
        one.element.compareDocumentPosition(element.current) & Node.DOCUMENT_POSITION_FOLLOWING));
    const end = shown.follow(compare);
    shown.set([...shown.value.filter((one) => one !== own.current), own.current]);
    return () => {
      end();
      shown.set(shown.value.filter((one) => one !== own.current));
    };
  }, [says]);
  const retryAll = () => shown.value.filter((one) => one.says === says).forEach((one) => one.retry?.());
  return { isRepeated, retryAll };
}

/** An error with advice; of several with the same text only the first one. isAction: a click sent the request: it is not repeated. */
export const Problem = ({ error, ...more }) => (error ? html`<${OneProblem} error=${error} ...${more} />` : null);

function OneProblem({ error, retry, isAction = false }) {
  const element = useRef(null);
  const message = error.message.replace(UNOFFERED, "");
  const { isRepeated, retryAll } = useOthers(element, `${error.status} ${ADVICE_BY_CODE[error.code] ?? message}`, retry);
  const advice = adviceOn(error, isAction);
  const wait = error.retryAfter && isAction ? ` The server asks to wait ${error.retryAfter} s.` : "";
  return html`<div class="problem" role="alert" ref=${element} hidden=${isRepeated}>
    <strong>${error.title ?? titleOf(error)}</strong>
    <p>${message}</p>
    ${error.again
      ? html`<p>The server is busy. The page retries after ${error.again} s<${Countdown} error=${error} />.</p>`
      : advice && html`<p>${advice}${wait}</p>`}
    ${retry && !LASTING.has(error.status) && html`<button onClick=${retryAll}>${error.button ?? "Try again"}</button>`}
  </div>`;
}

/** The seconds until the next retry; not read aloud, because it changes every second. */
function Countdown({ error }) {
  const [left, setLeft] = useState(error.again);
  useEffect(() => {
    const end = performance.now() + error.again * 1000;
    const tell = () => setLeft(Math.max(0, Math.ceil((end - performance.now()) / 1000)));
    tell();
    const timer = setInterval(tell, 250);
    return () => clearInterval(timer);
  }, [error]);
  return html`<span aria-hidden="true">${left > 0 ? ` (in ${left})` : " (now)"}</span>`;
}

/** A skeleton, visible after half a second. usual: the seconds that the last such answer took, when its bar is full. */
export const Progress = ({ active, label = "Asking the server…", usual }) =>
  html`<div class=${classes("progress", active && "active", usual && "timed")} style=${usual && { "--usual": `${usual}s` }}
    role="status">${active ? `${label}${usual >= 1 ? ` usually ${Math.round(usual)} s` : ""}` : ""}</div>`;

/** Progress, the problem, or `children(data)`; older content stays, paler. minHeight: what the skeleton reserves. */
export function Answer({ answer, children, minHeight }) {
  const { data, error, loading, isStale, isPart, retry, usual } = answer;
  return html`<div class=${classes("answer", isStale && "stale", isPart && "is-part")} style=${{ minHeight }} aria-busy=${loading}>
    <${Progress} key=${Boolean(isPart)} active=${loading} usual=${usual} />
    <${Problem} error=${error} retry=${retry} />
    ${data !== null && children(data)}
  </div>`;
}
