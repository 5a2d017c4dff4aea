// Requests for the numbers of one head. The first request has one head only; for short texts the next ones have all
// heads of the layer, so that another head is drawn at once.
import { OTHER } from "../../core/compare.js";
import { look, useAnswer, useLook } from "../../core/fetching.js";
import { useEffect, useMemo, useState } from "../../core/html.js";
import { inputOf, useCapabilities } from "../../core/model.js";
import { saved } from "../../core/place.js";
import { useSelection } from "../../core/state.js";

const MOST_OF_A_LAYER = 1 << 18; // largest layer (numbers of all heads) that is fetched in advance: 1 MB

/** {answer, values} of the request for one head: see useAnswer; its numbers [query, key], null before the first answer. */
export function useHeadAnswer(route, body, { layer, head, layers, numHeads }) {
  const { heads, layers: ofLayer, ...text } = body ?? {};
  const [short, setShort] = useState(null); // the text, kind and part with layers known to be small
  const mayAskLayer = route === "v1/attention" && (saved || short === keyOf(text));
  const whole = useAnswer(look, mayAskLayer ? route : null, { ...text, layers: ofLayer });
  // decided once per request: an answer for the whole layer must not redraw a picture that is already shown
  const isWhole = useMemo(() => Boolean(whole.data), [keyOf(body)]) && !whole.error;
  const one = useAnswer(look, isWhole ? null : route, body);
  const usesWhole = isWhole || (one.error && whole.data && !whole.isStale);
  useEffect(() => {
    if (one.data && !one.isStale && numHeads * numbersOf(one.data[0]).length <= MOST_OF_A_LAYER) setShort(keyOf(text));
  }, [one.data, one.isStale]);
  useEffect(() => {
    if (saved || !whole.data || whole.isStale) return undefined;
    const abort = new AbortController();
    const place = layers.indexOf(layer);
    for (const next of [layers[place + 1], layers[place - 1]]) {
      // fetched in advance for heads of the next layer; an error is shown when one of them is selected
      if (next !== undefined) look(route, { ...text, layers: next }, { signal: abort.signal }).catch(() => {});
    }
    return () => queueMicrotask(() => abort.abort()); // after the view's own request has joined one of them
  }, [whole.data, whole.isStale]);
  const answer = usesWhole ? whole : one;
  const entry = answer.data?.[0];
  const values = useMemo(() => {
    if (!entry) return null;
    const numbers = numbersOf(entry);
    if (!usesWhole) return numbers;
    const [queries, keys] = entry.shape.slice(-2);
    const size = queries * keys;
    return numbers.subarray(head * size, (head + 1) * size);
  }, [entry, usesWhole && head]);
  return { answer, values };
}

const numbersOf = ({ arrays }) => (arrays.attention ?? arrays.norms).data;

/** A request's body as a string key, including the other side of a comparison. */
const keyOf = (body) => JSON.stringify([body, body?.[OTHER]]);

/** Whether a layer of that part hides any key from any query. */
export const hasMask = (part, stack, layer) => part !== "cross" && (stack.causal || Boolean(stack.sliding_windows?.[layer]));

/**
 * {answer, products, request}: q·k of every query and key of the chosen head, masked or not, [query, key], null until
 * requested; and one request, for all heads, that returns their queries and keys.
 */
export function useProducts(isWanted, { prefix, layer, head, keyHead }) {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const points = ["q", "k"].map((name) => `${prefix}attn.hook_rot_${name}`); // the factors of q·k: after norm and rotation
  const route = isWanted && selection.text !== "" ? "v1/trace" : null;
  const common = { ...inputOf(selection, capabilities), points, layers: layer, dtype: "float32" };
  const bodyOf = (point, heads) => ({ ...common, points: [point], heads });
  const queries = useLook(route, bodyOf(points[0], head));
  const keys = useLook(route, bodyOf(points[1], keyHead));
  const isReady = queries.entry && keys.entry && !queries.loading && !keys.loading;
  const products = useMemo(
    () => (isReady ? productsOf(...[queries, keys].map(({ entry }) => Object.values(entry.arrays)[0])) : null),
    [isReady, queries.entry, keys.entry],
  );
  return { answer: queries.error ? queries : keys, products, request: { route: "v1/trace", body: common } };
}

function productsOf(q, k) {
  const [numQueries, size] = [q.shape[0], q.shape.at(-1)];
  const numKeys = k.shape[0];
  const products = new Float32Array(numQueries * numKeys);
  for (let query = 0; query < numQueries; query += 1) {
    for (let key = 0; key < numKeys; key += 1) {
      let sum = 0;
      for (let i = 0; i < size; i += 1) sum += q.data[query * size + i] * k.data[key * size + i];
      products[query * numKeys + key] = sum;
    }
  }
  return products;
}
