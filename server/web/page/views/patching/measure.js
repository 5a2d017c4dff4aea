// Effects of patches: the two words that distinguish the texts, and the result of a patched request.
import { json, look, useAnswer, useLook } from "../../core/fetching.js";
import { useCallback, useEffect, useMemo, useState } from "../../core/html.js";

const AT_ONCE = 8; // requests of a row
const [NAMED, MOST_NAMED] = [100, 1024]; // tokens of an answer; the server accepts 1024

/**
 * Of the two inputs (null: no request). words: the token that is likelier by most after A, and the one after B; apart: the logit
 * of the first minus the second's, [after A, after B]; count: how many tokens most likely contain both words.
 */
export function useEnds(inputs) {
  const answers = inputs.map((input) => useLook(input && "v1/next", { ...input, num_tokens: NAMED, full: true }));
  const entries = answers.map(({ entry, loading }) => (loading ? null : entry));
  return { ends: useMemo(() => (entries.includes(null) ? null : endsOf(entries)), entries), answers };
}

const tokenOf = (tokens, id) => tokens.find((one) => one.token_id === id);

function endsOf(entries) {
  const [a, b] = entries.map(({ arrays }) => arrays.probabilities.data);
  const rises = a.map((chance, id) => chance - b[id]);
  const likeliest = entries.map(({ temperatures }) => temperatures[0].tokens);
  const ids = [Math.max, Math.min].map((most) => rises.indexOf(rises.reduce((one, other) => most(one, other))));
  const words = ids.map((id) => ({ id, name: tokenOf(likeliest.flat(), id)?.token ?? `#${id}` }));
  const apart = entries.map(({ arrays: { logits } }) => logits.data[ids[0]] - logits.data[ids[1]]);
  const areNear = ids.every((id) => likeliest.every((tokens) => tokenOf(tokens, id)));
  return { words, apart, likeliest, count: areNear ? NAMED : MOST_NAMED };
}

/** share: the logit difference, scaled as in TransformerLens (0: as in text B, 1: as in text A); chances: of both words. */
async function measured(body, { words, apart: [a, b] }, options) {
  const { tokens } = (await json("v1/next", body, options)).data[0].temperatures[0];
  let found = words.map(({ id }) => tokenOf(tokens, id));
  if (found.includes(undefined)) {
    const [{ arrays: { logits, probabilities } }] = await look("v1/next", { ...body, full: true }, options);
    found = words.map(({ id }) => ({ logit: logits.data[id], probability: probabilities.data[id] }));
  }
  return { share: (found[0].logit - found[1].logit - b) / (a - b), chances: found.map((one) => one.probability), tokens };
}

/** The results of patched requests (null: none). */
export function useMeasured(bodies, ends) {
  const fetcher = useCallback(async (_, all, options) => {
    const found = [];
    while (found.length < all.length) {
      const some = all.slice(found.length, found.length + AT_ONCE);
      found.push(...(await Promise.all(some.map((body) => measured(body, ends, options)))));
    }
    return found;
  }, [ends]);
  return useAnswer(fetcher, bodies && "v1/next", bodies);
}

/** results [row][column], row by row; every eighth row comes first, so that the whole is visible early. */
export function useGrid(rows, ends, key) {
  const [arrived, setArrived] = useState({ key, cells: {} });
  const cells = arrived.key === key ? arrived.cells : {};
  const row = [8, 4, 2, 1].flatMap((step) => Object.keys(rows).filter((i) => i % step === 0)).find((i) => !cells[i]);
  const { data, error, retry, loading } = useMeasured(rows[row] ?? null, ends);
  useEffect(() => {
    if (data && !loading) setArrived({ key, cells: { ...cells, [row]: data.map(({ share, chances }) => ({ share, chances })) } });
  }, [data, loading]);
  return { cells, error, retry };
}
