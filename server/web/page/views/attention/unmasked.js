// What the mask hides: q·k of the pairs that no softmax sees, from the queries and keys of the head themselves.
import { useLook } from "../../core/fetching.js";
import { useMemo } from "../../core/html.js";
import { inputOf, stackAt, useCapabilities, useHead } from "../../core/model.js";
import { useSelection } from "../../core/state.js";

/** Whether a layer of that part hides any key from any query. */
export const hasMask = (part, stack, layer) => part !== "cross" && (stack.causal || Boolean(stack.sliding_windows?.[layer]));

/**
 * {answer, products, request}: q·k of every query and key of the chosen head, hidden or not, [query, key], null until it is
 * asked for; and the one request, of all heads, that gives what it is made of.
 */
export function useProducts(isWanted) {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const { part, stack, layer, head } = useHead();
  const { num_heads: numHeads, num_kv_heads: numKeyHeads } = stackAt(stack, layer);
  const prefix = capabilities.kind === "encoder-decoder" ? `${part}.` : "";
  const points = ["q", "k"].map((name) => `${prefix}attn.hook_rot_${name}`); // as they are multiplied: after norm and rotation
  const route = isWanted && selection.text !== "" ? "v1/trace" : null;
  const common = { ...inputOf(selection, capabilities), points, layers: layer, dtype: "float32" };
  const bodyOf = (point, heads) => ({ ...common, points: [point], heads });
  const queries = useLook(route, bodyOf(points[0], head));
  const keys = useLook(route, bodyOf(points[1], Math.floor((head * numKeyHeads) / numHeads)));
  const isReady = queries.entry && keys.entry && !queries.loading && !keys.loading;
  const products = useMemo(
    () => (isReady ? productsOf(...[queries, keys].map(({ entry }) => Object.values(entry.arrays)[0])) : null),
    [isReady, queries.entry, keys.entry],
  );
  return { answer: queries.error ? queries : keys, products, request: { route: "v1/trace", body: common } };
}

/** The rows of q times those of k, in float64. */
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
