// Effects of patches: the two words that distinguish the texts, and the result of a patched request.
import { json, look, useAnswer, useLook } from "../../core/fetching.js";
import { useCallback, useEffect, useMemo, useState } from "../../core/html.js";

const NAMED = 100; // tokens of an answer
const MOST_NAMED = 1024; // that the server accepts

/**
 * {ends, answers} of the two inputs (null: no request). ends: null until both have arrived, then {words, apart, chances,
 * count}. words: [{id, name}], the token whose probability is larger by most in A, and the one in B. apart: the logit of
 * the first minus that of the second, [of A, of B]. chances: the probabilities of all tokens, [of A, of B]. count: tokens
 * to request, so that the answers most likely contain both words.
 */
export function useEnds(inputs) {
  const answers = inputs.map((input) => useLook(input && "v1/next", { ...input, num_tokens: NAMED, full: true }));
  const entries = answers.map(({ entry, loading }) => (loading ? null : entry));
  const ends = useMemo(() => (entries[0] && entries[1] ? endsOf(entries) : null), entries);
  return { ends, answers };
}

function endsOf(entries) {
  const chances = entries.map(({ arrays }) => arrays.probabilities.data);
  let [rise, fall] = [0, 0];
  const more = (id) => chances[0][id] - chances[1][id];
  for (let id = 1; id < chances[0].length; id += 1) {
    if (more(id) > more(rise)) rise = id;
    if (more(id) < more(fall)) fall = id;
  }
  const named = entries.map(({ temperatures: [{ tokens }] }) => new Map(tokens.map((one) => [one.token_id, one.token])));
  const words = [rise, fall].map((id) => ({ id, name: named[0].get(id) ?? named[1].get(id) ?? `#${id}` }));
  const apart = entries.map(({ arrays: { logits: { data } } }) => data[rise] - data[fall]);
  const areNear = words.every(({ id }) => named.every((one) => one.has(id)));
  return { words, apart, chances, count: areNear ? NAMED : MOST_NAMED };
}

/**
 * {share, chances, tokens} of a patched request: the normalised logit difference, 0 as in text B and 1 as in text A (as
 * TransformerLens computes it); the probabilities of both words; the likeliest tokens.
 */
async function measured(body, { words, apart: [a, b] }, options) {
  const { tokens } = (await json("v1/next", body, options)).data[0].temperatures[0];
  let found = words.map(({ id }) => tokens.find((token) => token.token_id === id));
  if (found.includes(undefined)) {
    const [{ arrays: { logits, probabilities } }] = await look("v1/next", { ...body, full: true }, options);
    found = words.map(({ id }) => ({ logit: logits.data[id], probability: probabilities.data[id] }));
  }
  return { share: (found[0].logit - found[1].logit - b) / (a - b), chances: found.map((one) => one.probability), tokens };
}

/** The answer (see useAnswer) with the result of each patched request. */
export function useMeasured(bodies, ends) {
  const fetcher = useCallback((_, all, options) => Promise.all(all.map((body) => measured(body, ends, options))), [ends]);
  return useAnswer(fetcher, bodies && "v1/next", bodies);
}

/**
 * {cells, error, retry}: results [row][column] of a grid of requests. The rows are computed one after another; those that
 * are not here yet are missing. Every eighth comes first, so that the whole is visible early. Another `key` is another grid.
 */
export function useGrid(rows, ends, key) {
  const [arrived, setArrived] = useState({ key, cells: {} });
  const cells = arrived.key === key ? arrived.cells : {};
  const row = [8, 4, 2, 1].flatMap((step) => Object.keys(rows).filter((i) => i % step === 0)).find((i) => !cells[i]);
  const { data, error, retry, loading } = useMeasured(rows[row] ?? null, ends);
  useEffect(() => {
    if (data && !loading) setArrived({ key, cells: { ...cells, [row]: data } });
  }, [data, loading]);
  return { cells, error, retry };
}
