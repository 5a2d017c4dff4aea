// The numbers of the flow at the selected positions, with few and small requests.
import { useLook } from "../../core/fetching.js";
import { useMemo } from "../../core/html.js";
import { useInput } from "../../core/model.js";
import { useSelection } from "../../core/state.js";
import { nodesOf } from "./diagram.js";

const hasAxis = (node, ...axes) => axes.some((axis) => node.point.axes.includes(axis));

/** Keys and values belong to the key's position, all others to the query's. */
export const isOfKey = (node) => hasAxis(node, "kv_head") || node.isEncoderOutput === true;
export const isOfEncoder = (node) =>
  node.isEncoderOutput === true || (node.id.startsWith("cross_attn.") && hasAxis(node, "kv_head"));

/** Weights are never below 0, but their differences can be. */
export const kindOf = (node, isDifference) => (node.id.endsWith("hook_pattern") && !isDifference ? "sequential" : "diverging");

function bodyOf(asked, nodes, positions, heads) {
  if (nodes.length === 0) return null;
  const names = [...new Set(nodes.flatMap((node) => [node.full, ...(node.scale ? [node.scale] : [])]))];
  const withHeads = nodes.some((node) => hasAxis(node, "head", "kv_head"));
  return { ...asked, points: names, positions, ...(withHeads ? { heads } : {}), dtype: "float32" };
}

/**
 * strips: by node id, at the chosen query (keys and values: the chosen key); scales: the norms' divisors; body: the block's
 * request. Logits are omitted: there are too many.
 */
export function useNumbers(graph, { head, keyHead, query, key, encoderKey }) {
  const selection = useSelection();
  const asked = useInput();
  const nodes = useMemo(() => nodesOf(graph).filter((node) => node.id !== "logits"), [graph]);
  const isReady = selection.text !== "" && query !== null;
  const useNodes = (wanted, position, itsHead) => {
    const body = bodyOf(asked, nodes.filter(wanted), position, itsHead);
    return { ...useLook(isReady && body ? "v1/trace" : null, body), body };
  };
  const isOfBlock = (node) => node.full.includes("blocks.");
  const block = useNodes((node) => isOfBlock(node) && !isOfKey(node), query, head);
  const keys = useNodes((node) => isOfKey(node) && !isOfEncoder(node), key, keyHead);
  const encoderKeys = useNodes(isOfEncoder, encoderKey, keyHead);
  // A separate request: these are the same for all blocks, and the final norm needs the whole pass.
  const ends = useNodes((node) => !isOfBlock(node) && !isOfKey(node), query, null);
  const answers = [block, keys, encoderKeys, ends];
  const [strips, scales] = useMemo(() => {
    const arrays = Object.assign({}, ...answers.map((answer) => answer.entry?.arrays));
    const found = nodes.filter((node) => node.full in arrays);
    const isDifference = answers.some((answer) => answer.entry?.isDifference);
    const strips = found.map((node) => [node.id, { values: arrays[node.full].data, kind: kindOf(node, isDifference) }]);
    const normed = found.filter((node) => !isDifference && node.scale in arrays);
    return [new Map(strips), new Map(normed.map((node) => [node.id, arrays[node.scale].data[0]]))];
  }, [nodes, ...answers.map((answer) => answer.entry)]);
  const failed = answers.find((answer) => answer.error);
  return {
    strips,
    scales,
    body: block.body,
    error: failed?.error ?? null,
    loading: answers.some((answer) => answer.loading),
    retry: () => answers.forEach((answer) => answer.error && answer.retry()),
  };
}
