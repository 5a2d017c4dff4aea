// Fetching as components use it: one request at a time for each place, what is unwanted is cancelled, answers kept.
import { askJson, askLook, connection, whenReachable } from "./api.js";
import { useEffect, useRef, useState } from "./html.js";

const KEPT_BYTES = 64 * 1024 * 1024;

/** Answers by request, the least recently used dropped first. */
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
    const bytes = sizeOf(answer);
    this.#bytes -= this.#answers.get(key)?.bytes ?? 0; // two places may have asked the same at once
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

function sizeOf(answer) {
  if (!Array.isArray(answer)) return 20_000;
  const arrays = answer.flatMap((entry) => Object.values(entry?.arrays ?? {}));
  return arrays.reduce((sum, array) => sum + array.data.byteLength, 20_000);
}

const cache = new AnswerCache();
// A server that was away may be another one when it is back.
connection.follow((now) => now === "lost" && cache.clear());

/** The answer of a look (see `askLook`), from memory where it was asked before. */
export async function look(route, body, options) {
  return remembered(`look ${route} ${JSON.stringify(body)}`, () => askLook(route, body, options));
}

/** The JSON of a route that always answers the same, from memory where it was asked before. */
export async function json(route, body = null, options = {}) {
  return remembered(`json ${route} ${JSON.stringify(body)}`, () => askJson(route, body, options));
}

async function remembered(key, fetchIt) {
  const kept = cache.get(key);
  if (kept !== undefined) return kept;
  const answer = await fetchIt();
  cache.set(key, answer);
  return answer;
}

const NOTHING = { data: null, asked: null, error: null, loading: false, isStale: false, retry: () => {} };

/**
 * {data, asked, error, loading, isStale, retry} of `fetcher(route, body, {signal})`; a null route asks nothing.
 * While a new answer comes, `data` stays the old one (`asked` is the body that it answers) and isStale is true, so
 * that nothing flickers. A request that is no longer wanted is cancelled. After the server or the key is back, what
 * failed is asked again.
 */
export function useAnswer(fetcher, route, body) {
  const [result, setResult] = useState(NOTHING);
  const [attempt, setAttempt] = useState(0);
  const request = route === null ? null : `${route} ${JSON.stringify(body)}`;
  const hasFailed = useRef(false);
  hasFailed.current = Boolean(result.error && (result.error.isPassing || result.error.status === 401));
  useEffect(() => whenReachable(() => hasFailed.current && setAttempt((count) => count + 1)), []);
  useEffect(() => {
    if (route === null) {
      setResult(NOTHING);
      return undefined;
    }
    const abort = new AbortController();
    setResult((old) => ({ ...old, loading: true, isStale: old.data !== null }));
    fetcher(route, body, { signal: abort.signal }).then(
      (data) => abort.signal.aborted || setResult({ data, asked: body, error: null, loading: false, isStale: false }),
      (error) => {
        if (!abort.signal.aborted) setResult({ data: null, asked: null, error, loading: false, isStale: false });
      },
    );
    return () => abort.abort();
  }, [fetcher, request, attempt]);
  return { ...result, retry: () => setAttempt((count) => count + 1) };
}

/** The first (or only) input's entry of a look, in `data`; see useAnswer. */
export function useLook(route, body) {
  const answer = useAnswer(look, route, body);
  return { ...answer, entry: answer.data?.[0] ?? null };
}

/** The JSON of a route, in `data`; see useAnswer. */
export const useJson = (route, body = null) => useAnswer(json, route, body);
