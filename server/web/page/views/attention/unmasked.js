// Products q·k of masked pairs, computed from the head's queries and keys because the softmax excludes them.
import { useLook } from "../../core/fetching.js";
import { useMemo } from "../../core/html.js";
import { inputOf, stackAt, useCapabilities } from "../../core/model.js";
import { useSelection } from "../../core/state.js";

/** Whether a layer of that part hides any key from any query. */
export const hasMask = (part, stack, layer) => part !== "cross" && (stack.causal || Boolean(stack.sliding_windows?.[layer]));

/**
 * {answer, products, request}: q·k of every query and key of the chosen head, masked or not, [query, key], null until
 * requested; and one request, for all heads, that returns their queries and keys.
 */
export function useProducts(isWanted, { part, stack, layer, head }) {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const { num_heads: numHeads, num_kv_heads: numKeyHeads } = stackAt(stack, layer);
  const prefix = capabilities.kind === "encoder-decoder" ? `${part}.` : "";
  const points = ["q", "k"].map((name) => `${prefix}attn.hook_rot_${name}`); // the factors of q·k: after norm and rotation
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

/** The products of all rows of q and k, in float64. */
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
