// A head during generation: each new token adds the row of the query that predicted it.
import { askStream } from "../../core/api.js";
import { useEffect, useRef, useState } from "../../core/html.js";
import { inputOf, lackOf, useCapabilities, useHead } from "../../core/model.js";
import { samplingOf } from "../../core/sampling.js";
import { select, useSelection } from "../../core/state.js";
import { gridOf, maskOf, requestKind } from "./numbers.js";

/** Null if generation can be watched. */
export function lackOfWatching(capabilities, part) {
  if (part === "encoder" || !capabilities.attention.with_generation) {
    return lackOf(capabilities, "/v1/completions") ?? "The encoder reads the whole text at once and generates no text.";
  }
  return null;
}

/**
 * live: null while nothing is generated; queries from firstNew on were generated (before: `from`). The newest token has no row
 * yet. At the end the whole text becomes the shared one; call `drop` when its answer has arrived.
 */
export function useWatching() {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const { part, stack, layer, head } = useHead();
  const [live, setLive] = useState(null);
  const [error, setError] = useState(null);
  const running = useRef(null);
  const watched = useRef("");
  watched.current = `${part} ${layer} ${head} ${selection.attention_kind}`;
  useEffect(() => () => {
    const now = running.current;
    running.current = null; // the text of a view that is left stays
    now?.abort();
  }, []);
  // Another head or kind: the rows do not belong to it, but the generated text is kept.
  useEffect(() => {
    running.current?.abort();
    setLive(null);
  }, [watched.current]);
  // Another text: the running generation continues the old one.
  useEffect(() => {
    if (running.current === null) return;
    running.current.abort();
    running.current = null;
    setLive(null);
  }, [selection.text, selection.decoder]);

  const start = async (grid) => {
    const abort = new AbortController();
    running.current = abort;
    setError(null);
    const rows = new Rows(grid, part === "cross");
    const from = grid.queries;
    const hides = maskOf(part, stack, layer);
    const begun = watched.current;
    const show = () => {
      if (running.current !== abort || watched.current !== begun) return;
      setLive({ grid: rows.grid(selection.attention_sink, hides), firstNew: rows.firstNew, from, isDone: false });
    };
    const request = requestOf(selection, capabilities, { part, layer, head });
    let frame = null;
    try {
      for await (const event of askStream("v1/completions", request, { signal: abort.signal })) {
        const [choice] = event.choices;
        if (!choice) continue;
        rows.add(choice);
        frame ??= requestAnimationFrame(() => {
          frame = null;
          show();
        });
      }
    } catch (problem) {
      if (problem.name !== "AbortError") setError(problem);
    }
    cancelAnimationFrame(frame);
    if (running.current !== abort) return;
    show();
    running.current = null;
    if (rows.written === "") {
      setLive(null);
      return;
    }
    setLive((now) => now && { ...now, isDone: true });
    const field = capabilities.kind === "encoder-decoder" ? "decoder" : "text";
    select({ [field]: selection[field] + rows.written, query: -1 },
      { remember: true, side: selection.change_show });
  };
  const stop = () => running.current?.abort();
  return { live, error, start, stop, drop: () => setLive(null), isRunning: live !== null && !live.isDone };
}

function requestOf(selection, capabilities, { part, layer, head }) {
  const { input: prompt, ...others } = inputOf(selection, capabilities);
  const kind = selection.attention_kind === "norm" ? "pattern" : requestKind(selection.attention_kind);
  const attention = { part, layers: layer, heads: head, kind, encoding_format: "base64" };
  return { prompt, ...others, ...samplingOf(selection), attention };
}

class Rows {
  #queries;
  #keys;
  #rows;
  #kind;
  #isCross;
  written = "";

  constructor(grid, isCross) {
    const { length } = grid.keys;
    this.#kind = grid.kind === "norm" ? "pattern" : grid.kind;
    this.#isCross = isCross;
    this.#queries = [...grid.queries];
    this.#keys = grid.keys;
    // value-weighted rows are no weights, so the rows of the text stay empty for this kind
    const values = grid.kind === "norm" ? grid.values.map(() => NaN) : grid.values;
    this.#rows = grid.queries.map((_, query) => values.slice(query * length, (query + 1) * length));
    this.firstNew = grid.queries.length;
  }

  /** The row belongs to the query before the token. */
  add(choice) {
    const { attention } = choice;
    if (attention?.attention) {
      const bytes = Uint8Array.from(atob(attention.attention), (character) => character.charCodeAt(0));
      this.#rows[attention.query_positions[0]] = new Float32Array(bytes.buffer);
    }
    this.written += choice.text;
    this.#queries.push(choice.text);
  }

  grid(showsFirst, hides) {
    const queries = [...this.#queries];
    const keys = this.#isCross ? this.#keys : queries;
    const isPattern = this.#kind === "pattern";
    const values = new Float32Array(queries.length * keys.length).fill(NaN);
    this.#rows.forEach((row, query) => {
      const start = query * keys.length;
      if (isPattern) values.fill(0, start, start + keys.length);
      values.set(row.subarray(0, keys.length), start);
    });
    return gridOf({ queries, keys, values, kind: this.#kind, showsFirst, hides });
  }
}
