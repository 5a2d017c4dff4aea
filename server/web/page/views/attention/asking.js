// Requests for the numbers of one head. The first request has one head only; for short texts the next ones have all
// heads of the layer, so that another head is drawn at once.
import { OTHER } from "../../core/compare.js";
import { look, useAnswer } from "../../core/fetching.js";
import { useEffect, useMemo, useState } from "../../core/html.js";
import { saved } from "../../core/place.js";

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
    if (saved || !whole.data || whole.isStale) return;
    const place = layers.indexOf(layer);
    for (const next of [layers[place + 1], layers[place - 1]]) {
      // fetched in advance for heads of the next layer; an error is shown when one of them is selected
      if (next !== undefined) look(route, { ...text, layers: next }).catch(() => {});
    }
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
