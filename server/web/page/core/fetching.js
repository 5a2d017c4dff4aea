// Fetching for components: one request at a time for each place, unused requests are cancelled, answers are kept.
import { askJson, askLook, connection, whenReachable } from "./api.js";
import { named } from "./bytes.js";
import { chosenModel } from "./chosen_model.js";
import { OTHER, difference, sidesOfRequest } from "./compare.js";
import { useEffect, useRef, useState } from "./html.js";
import { forgetKept, hold, noteSeen } from "./saved.js";
import { otherModel } from "./seen.js";
import { checkServer, restarts } from "./served.js";
import { useSelection } from "./state.js";

const KEPT_BYTES = 64 * 1024 * 1024;

/** The least recently used answers are dropped first. */
class AnswerCache {
  #answers = new Map();
  #bytes = 0;

  get(key) {
    const kept = this.#answers.get(key);
    if (!kept) return undefined;
    this.#answers.delete(key);
    this.#answers.set(key, kept);
    return kept.answer;
  }

  set(key, answer) {
    const bytes = sizeOf(key) + sizeOf(answer);
    this.#bytes -= this.#answers.get(key)?.bytes ?? 0; // two places may have sent the same request at once
    this.#answers.delete(key);
    this.#answers.set(key, { answer, bytes });
    this.#bytes += bytes;
    for (const [oldKey, old] of this.#answers) {
      if (this.#bytes <= KEPT_BYTES || oldKey === key) break;
      this.#answers.delete(oldKey);
      this.#bytes -= old.bytes;
    }
  }

  clear() {
    this.#answers.clear();
    this.#bytes = 0;
  }
}

/** The approximate size of an answer in bytes. */
function sizeOf(part) {
  if (ArrayBuffer.isView(part)) return part.byteLength;
  if (typeof part === "string") return 16 + part.length;
  if (part === null || typeof part !== "object") return 8;
  return Object.values(part).reduce((sum, inner) => sum + sizeOf(inner), 40);
}

const cache = new AnswerCache();
const underway = new Map(); // pending requests, by the same keys

function forget() {
  cache.clear();
  forgetKept();
  underway.clear(); // their answers go to the callers, but are not kept
}
// After an interruption, the server may have another model.
connection.follow((now) => now === "lost" && forget());
restarts.follow(forget);

/** The answer of a look, from memory if possible; with another side, the difference of both. */
export async function look(route, body, options) {
  const { own, other } = sidesOfRequest(body);
  if (other) return difference(...(await Promise.all([own, other].map((side) => look(route, side, options)))));
  const ask = async (mine) => withBytesNamed(await askLook(route, body, mine), body?.input);
  noteSeen(route, body, "application/vnd.safetensors");
  return remembered(`look ${route} ${JSON.stringify(body)}`, ask, options);
}

function withBytesNamed(entries, input) {
  const texts = [input].flat();
  return entries.map((entry, i) => {
    return entry.tokens ? { ...entry, tokens: named(entry.tokens, entry.offsets, texts[i]) } : entry;
  });
}

export async function json(route, body = null, options = {}) {
  noteSeen(route, body, "application/json");
  return remembered(`json ${route} ${JSON.stringify(body)}`, (mine) => askJson(route, body, mine), options);
}

/** The kept answer for a request, or that of `fetchIt({signal})`. Callers share a request; it is cancelled when all have aborted. */
export async function remembered(request, fetchIt, { signal } = {}) {
  checkServer();
  const key = `${chosenModel.value} ${request}`;
  const kept = cache.get(key);
  if (kept !== undefined) return kept;
  const flight = underway.get(key) ?? start(key, fetchIt);
  flight.wanted += 1;
  return new Promise((resolve, reject) => {
    signal?.addEventListener("abort", () => {
      flight.wanted -= 1;
      if (flight.wanted === 0) flight.cancel();
      reject(signal.reason);
    });
    flight.answer.then(resolve, reject);
  });
}

function start(key, fetchIt) {
  const abort = new AbortController();
  const isListed = () => underway.get(key) === flight;
  const flight = { wanted: 0, answer: null, cancel: null };
  flight.cancel = () => {
    if (isListed()) underway.delete(key);
    abort.abort();
  };
  underway.set(key, flight);
  flight.answer = fetchIt({ signal: abort.signal }).then((answer) => {
    if (isListed()) cache.set(key, answer);
    return answer;
  });
  flight.answer.catch(() => {}).then(() => isListed() && underway.delete(key));
  return flight;
}

const NOTHING = { request: null, data: null, asked: null, error: null, loading: false, isStale: false };
const took = new Map(); // seconds of the last answer of a route
const BUSY_WAIT = 5; // seconds before a request is sent again to a busy server without Retry-After

const keyOf = (route, body) => {
  const { own, other } = sidesOfRequest(body);
  return `${route} ${JSON.stringify(own)}${other ? ` ${JSON.stringify(other)}` : ""}`;
};

/**
 * {data, asked, error, loading, isStale, retry, usual} of `fetcher(route, body, {signal})`; a null route sends no request.
 * While a new answer loads, `data` is the previous one (of the body `asked`), so that the view does not flicker. A busy server
 * gets the request again after `error.again` seconds; a failed one is sent again when the server or the key is back.
 */
export function useAnswer(fetcher, route, given) {
  const [result, setResult] = useState(NOTHING);
  const [attempt, setAttempt] = useState(0);
  const model = otherModel(useSelection());
  const body = model && given && !given[OTHER] ? { model, ...given } : given;
  const request = route === null ? null : keyOf(route, body);
  const retry = () => setAttempt((count) => count + 1);
  const hasFailed = useRef(false);
  hasFailed.current = Boolean(result.error && (result.error.isPassing || result.error.status === 401));
  useEffect(() => whenReachable(() => hasFailed.current && retry()), []);
  useEffect(() => {
    if (request === null) {
      setResult(NOTHING);
      return undefined;
    }
    const abort = new AbortController();
    let timer = null;
    const started = performance.now();
    const finish = (data, error) => {
      if (abort.signal.aborted) return;
      const seconds = (performance.now() - started) / 1000;
      if (seconds > 0.5 && !error) took.set(route, seconds);
      if (error?.status === 429) {
        error.again = error.retryAfter ?? BUSY_WAIT;
        timer = setTimeout(retry, error.again * 1000);
      }
      setResult({ request, data, asked: error ? null : body, error, loading: false, isStale: false });
    };
    const end = hold(route, body);
    setResult((old) => ({ ...old, request, loading: true, isStale: old.data !== null, usual: took.get(route) }));
    fetcher(route, body, { signal: abort.signal }).then((data) => finish(data, null), (error) => finish(null, error));
    return () => {
      end();
      abort.abort();
      clearTimeout(timer);
    };
  }, [fetcher, request, attempt]);
  if (result.request === request) return { ...result, retry };
  // drawn before its effect has run: the data belongs to the previous request
  if (request === null) return { ...NOTHING, retry };
  return { ...result, loading: true, isStale: result.data !== null, retry };
}

/** The first input's entry of a look; see useAnswer. */
export function useLook(route, body) {
  const answer = useAnswer(look, route, body);
  return { ...answer, entry: answer.data?.[0] ?? null };
}

/** As useLook; the answer of `part`, a smaller request (null: none), is sent first, and shown until the whole one comes. */
export function useLookInParts(route, body, part) {
  const first = useLook(part && route, part);
  const whole = useLook(part && first.loading ? null : route, body);
  const last = useRef(null); // shown until there is a part of the new one
  const isNew = ({ data, isStale }) => data !== null && !isStale;
  if (isNew(whole)) last.current = whole;
  if (!part || route === null || isNew(whole) || whole.error) return whole;
  const waits = { loading: true, usual: took.get(route) };
  if (isNew(first)) return { ...first, ...waits, isPart: true };
  return { ...(last.current ?? first), ...waits, isStale: last.current !== null };
}

export const useJson = (route, body = null) => useAnswer(json, route, body);
