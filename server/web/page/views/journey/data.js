// The data of the journey: a few looks at one layer and head, for the words around the selected pair.
import { useLook, useJson } from "../../core/fetching.js";
import { useMemo, useRef } from "../../core/html.js";
import { clamp, stackAt, useCapabilities, useHead, useInput } from "../../core/model.js";
import { useSequences } from "../../core/sequences.js";
import { useSelection } from "../../core/state.js";
import { useStrongestPair } from "../../core/strongest.js";
import { placing } from "../flow/bands.js";
import { nodesOf } from "../flow/diagram.js";
import { graphOf, pointsOf } from "../flow/graph.js";
import { useNumbers } from "../flow/numbers.js";

const MOST_WORDS = 24; // a longer text shows only those up to the chosen ones
const TOP = 5;
const ROWS = ["hook_embed", "hook_pos_embed", "hook_resid_pre", "ln1.hook_out"];

/** All positions of a short text, else a range with the query and, if possible, the key. */
function windowOf(count, query, key) {
  const size = Math.min(count, MOST_WORDS);
  const last = Math.max(query, key);
  const hasBoth = Math.abs(query - key) < size;
  const end = Math.min(count, Math.max(size, (hasBoth ? last : query) + 1));
  return Array.from({ length: size }, (_, i) => end - size + i);
}

function usePlace() {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const { part, layer, head, numLayers } = useHead();
  const stackName = part === "cross" ? "decoder" : part;
  const sequences = useSequences();
  const choosing = useStrongestPair({ keepsQuery: true });
  const tokens = sequences[stackName];
  const isReady = selection.text !== "" && tokens.length > 0 && !sequences.loading && !choosing;
  const whole = capabilities.stacks[stackName];
  const at = (position, all) => (isReady ? clamp(position, all.length) : null);
  const place = {
    isReady, stackName, whole, stack: stackAt(whole, layer), layer, head, numLayers, tokens, encoderTokens: sequences.encoder,
    query: at(selection.query, tokens), key: at(selection.key, tokens), encoderKey: at(selection.key, sequences.encoder),
  };
  return { place, error: sequences.error, isPair: capabilities.kind === "encoder-decoder" };
}

export function useJourney() {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const { place, error, isPair } = usePlace();
  const { isReady, stackName, layer, head, query, key, tokens } = place;
  const graph = useMemo(() => graphOf(capabilities, stackName, layer, place.numLayers), [capabilities, stackName, layer]);
  const points = useMemo(() => pointsOf(capabilities, stackName, layer), [capabilities, stackName, layer]);
  const shown = useMemo(() => (isReady ? windowOf(tokens.length, query, key) : []), [tokens.length, query, key]);
  const full = (id, at = layer) => points.get(id)?.name.replace("{layer}", at);
  const numbers = useNumbers(graph, place);
  const given = useInput();
  const of = (more) => ({ ...given, ...more });
  const hasNormBefore = placing(place.stack).isBefore; // otherwise the norm comes later, on a sum
  const body = of({ ...(isPair && { part: stackName }), layer, head, query_position: query });
  const explain = useLook(isReady ? "v1/explain" : null, body);
  const rows = useLook(isReady ? "v1/trace" : null, of({
    points: [...ROWS, "attn.hook_rot_q", "attn.hook_attn_scores"]
      .filter((id) => points.has(id) && (id !== "ln1.hook_out" || hasNormBefore)).map((id) => full(id)),
    heads: head, positions: shown, key_positions: "all", dtype: "float32",
  }));
  const whole = useLook(isReady ? "v1/trace" : null, of({
    points: [full("attn.hook_result"), ...Array.from({ length: place.numLayers }, (_, at) => full("hook_resid_post", at))],
    positions: query, dtype: "float32",
  }));
  const works = (route) => capabilities.routes[route].works && (stackName === "decoder" || capabilities.kind === "encoder");
  const lens = useLook(isReady && works("/v1/lens") ? "v1/lens" : null, of({ positions: query, top_k: 1 }));
  const next = useJson(isReady && works("/v1/next") ? "v1/next" : null, of({ position: query, num_tokens: TOP }));
  const cross = useLook(isReady && isPair && stackName === "decoder" ? "v1/explain" : null,
    of({ part: "cross", layer, head, query_position: query }));
  const answers = [explain, rows, whole, lens, next, cross];
  const failed = [{ error }, numbers, ...answers].find((one) => one.error);
  const loading = !failed && (answers.some((one) => one.loading) || numbers.loading || !isReady);
  // A new selection is shown when all its data is here; the first picture as early as possible.
  const kept = useRef(null);
  if (selection.text === "" || explain.error || rows.error) kept.current = null;
  const isWaiting = loading && kept.current !== null;
  kept.current = useMemo(() => {
    if (isWaiting || !isReady || !explain.entry || !rows.entry) return kept.current;
    const arrays = (id) => rows.entry.arrays[full(id)] ?? null;
    return {
      ...place,
      capabilities,
      shown,
      text: isPair && stackName === "decoder" ? tokens.join("") : selection.text,
      nodes: new Map(nodesOf(graph).map((node) => [node.id, node])),
      strips: numbers.strips, scales: numbers.scales, explain: explain.entry, cross: cross.entry, lens: lens.entry,
      rows: Object.fromEntries(ROWS.map((id) => [id, arrays(id)])),
      queries: arrays("attn.hook_rot_q"),
      scores: arrays("attn.hook_attn_scores"),
      results: whole.entry?.arrays[full("attn.hook_result")] ?? null,
      states: whole.entry && Array.from({ length: place.numLayers }, (_, at) =>
        whole.entry.arrays[full("hook_resid_post", at)]?.data ?? null),
      hasNext: works("/v1/next"),
      next: next.data?.data[0] ?? null,
    };
  }, [isWaiting, isReady, tokens, place.encoderTokens, numbers.strips, ...answers.map((one) => one.data)]);
  return {
    data: kept.current,
    body,
    error: failed?.error ?? null,
    loading,
    retry: () => [numbers, ...answers].forEach((one) => one.error && one.retry()),
  };
}
