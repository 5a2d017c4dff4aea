// The numbers of the flow at the chosen positions, in as few and small requests as they need.
import { useLook } from "../../core/fetching.js";
import { useMemo } from "../../core/html.js";
import { inputOf, useCapabilities } from "../../core/model.js";
import { useSelection } from "../../core/state.js";
import { nodesOf } from "./diagram.js";

const hasAxis = (node, ...axes) => axes.some((axis) => node.point.axes.includes(axis));

/** Whether the tensor is about the word that is looked at: keys and values; the others are about the one that looks. */
export const isOfKey = (node) => hasAxis(node, "kv_head") || node.isEncoderOutput === true;
/** Whether its positions are the encoder's, in a decoder. */
export const isOfEncoder = (node) => node.isEncoderOutput === true || (node.id.startsWith("cross_attn.") && hasAxis(node, "kv_head"));

/** The number of the key head that a query head reads. */
export const keyHeadOf = (stack, head) => Math.floor((head * stack.num_kv_heads) / stack.num_heads);

/** The body that asks for these nodes at one position of one head; null where there are none. */
function bodyOf(asked, nodes, positions, heads) {
  if (nodes.length === 0) return null;
  const names = [...new Set(nodes.flatMap((node) => [node.full, ...(node.scale ? [node.scale] : [])]))];
  const withHeads = nodes.some((node) => hasAxis(node, "head", "kv_head"));
  return { ...asked, points: names, positions, ...(withHeads ? { heads } : {}), dtype: "float32" };
}

/**
 * {strips, scales, answers}: strips is a Map of node id to {values, kind} at the chosen query (keys and values: the
 * chosen key), scales of norm id to what the norm divides by; bodies are the requests. Logits are left out: they are as
 * many as the vocabulary.
 */
export function useNumbers(graph, { stack, head, query, key, encoderKey }) {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const asked = inputOf(selection, capabilities);
  const nodes = useMemo(() => nodesOf(graph).filter((node) => node.id !== "logits"), [graph]);
  const isReady = selection.text !== "" && query !== null;
  const keyHead = keyHeadOf(stack, head);
  const bodies = [
    bodyOf(asked, nodes.filter((node) => !isOfKey(node)), query, head),
    bodyOf(asked, nodes.filter((node) => isOfKey(node) && !isOfEncoder(node)), key, keyHead),
    bodyOf(asked, nodes.filter(isOfEncoder), encoderKey, keyHead),
  ];
  // One call each, and always all three, as hooks want it.
  const first = useLook(isReady && bodies[0] ? "v1/trace" : null, bodies[0]);
  const second = useLook(isReady && bodies[1] ? "v1/trace" : null, bodies[1]);
  const third = useLook(isReady && bodies[2] ? "v1/trace" : null, bodies[2]);
  const [strips, scales] = useMemo(() => {
    const arrays = { ...first.entry?.arrays, ...second.entry?.arrays, ...third.entry?.arrays };
    const found = nodes.filter((node) => node.full in arrays);
    return [
      new Map(found.map((node) => [node.id, { values: arrays[node.full].data, kind: node.id.endsWith("hook_pattern") ? "sequential" : "diverging" }])),
      new Map(found.filter((node) => node.scale in arrays).map((node) => [node.id, arrays[node.scale].data[0]])),
    ];
  }, [nodes, first.entry, second.entry, third.entry]);
  const answers = [first, second, third];
  const failed = answers.find((answer) => answer.error);
  return {
    strips,
    scales,
    body: bodies[0],
    error: failed?.error ?? null,
    loading: answers.some((answer) => answer.loading),
    retry: () => answers.forEach((answer) => answer.error && answer.retry()),
  };
}
