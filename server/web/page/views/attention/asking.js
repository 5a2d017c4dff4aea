// Requests for the numbers of one head. After the first one, for short texts, they have all heads of the layer.
import { OTHER } from "../../core/compare.js";
import { look, useAnswer, useLook } from "../../core/fetching.js";
import { useEffect, useMemo, useState } from "../../core/html.js";
import { useInput } from "../../core/model.js";
import { saved } from "../../core/place.js";
import { useSelection } from "../../core/state.js";

import { productsOf } from "../../core/projection.js";
const MOST_OF_A_LAYER = 1 << 18; // numbers of all heads of a layer that is fetched in advance: 1 MB

/** answer: for one head; values: its numbers [query, key], null before the first answer. */
export function useHeadAnswer(route, body, { layer, head, layers, numHeads }) {
  const { heads, layers: ofLayer, ...text } = body ?? {};
  const [short, setShort] = useState(null); // of which the layers are small
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

const keyOf = (body) => JSON.stringify([body, body?.[OTHER]]);

/** Whether the part hides any key from any query in that layer. */
export const hasMask = (part, stack, layer) => part !== "cross" && (stack.causal || Boolean(stack.sliding_windows?.[layer]));

/** products: q·k of the chosen head, masked or not, null until requested; request: one, for all heads, of queries and keys. */
export function useProducts(isWanted, { prefix, layer, head, keyHead }) {
  const selection = useSelection();
  const points = ["q", "k"].map((name) => `${prefix}attn.hook_rot_${name}`); // the factors of q·k: after norm and rotation
  const route = isWanted && selection.text !== "" ? "v1/trace" : null;
  const common = { ...useInput(), points, layers: layer, dtype: "float32" };
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
