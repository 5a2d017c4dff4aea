// Features of the loaded model, and the selection as positions and numbers that exist in it.
import { named } from "./bytes.js";
import { interventionsOf } from "./changes.js";
import { chosenModel } from "./chosen_model.js";
import { OTHER } from "./compare.js";
import { useJson } from "./fetching.js";
import { createContext, useContext, useMemo } from "./html.js";
import { comparesModels, otherModel } from "./seen.js";
import { useSelection } from "./state.js";

export const Capabilities = createContext(null);
export const useCapabilities = () => useContext(Capabilities);

/** The reason why the model does not support a route; null if it does. */
export function lackOf(capabilities, route) {
  const { works, reason } = capabilities.routes[route];
  if (works) return null;
  const said = reason.replace(/; \/v1\/\S.* are accepted$/, "");
  return `${said[0].toUpperCase()}${said.slice(1)}.`;
}

export function textsOf(selection, capabilities) {
  const isPair = capabilities.kind === "encoder-decoder";
  return { input: selection.text, ...(isPair && selection.decoder ? { decoder_input: selection.decoder } : {}) };
}

/** The common fields of all looks; for a difference, OTHER holds the other side. */
export function inputOf(selection, capabilities) {
  const { change_show: show, change_text: second } = selection;
  const texts = textsOf(selection, capabilities);
  const interventions = interventionsOf(selection, capabilities);
  const model = otherModel(selection);
  const isChanged = interventions.length && (second || comparesModels(selection) || show !== "before");
  const changed = isChanged ? { ...texts, interventions } : texts;
  const own = model ? { ...changed, model } : changed;
  if (show !== "difference" || (!second && own === texts)) return own;
  if (model) return { ...own, [OTHER]: { ...changed, model: chosenModel.value } };
  return second ? { ...changed, input: second, [OTHER]: changed } : { ...changed, [OTHER]: texts };
}

export const useInput = () => inputOf(useSelection(), useCapabilities());

/** The nearest existing position; a negative one counts from the end. */
export function clamp(position, count) {
  const counted = position < 0 ? count + position : position;
  return Math.max(0, Math.min(count - 1, counted));
}

/** The layer with attention nearest to `layer`, which may not exist or may have none. */
function attendingLayer(stack, layer) {
  const asked = clamp(layer, stack.num_layers);
  return stack.attention_layers.reduce((best, own) => (Math.abs(own - asked) < Math.abs(best - asked) ? own : best));
}

/**
 * The selection within the model. prefix: of the names of its blocks; layer: one with attention, unless ofAnyBlock is set;
 * layers: all that `layer` can be; ofPart: another part than the chosen one.
 */
export function useHead({ ofAnyBlock = false, ofPart = null } = {}) {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const parts = capabilities.attention.parts;
  const part = ofPart ?? (parts.includes(selection.part) ? selection.part : parts[0]);
  const stack = capabilities.stacks[part === "cross" ? "decoder" : part];
  const layer = ofAnyBlock ? clamp(selection.layer, stack.num_layers) : attendingLayer(stack, selection.layer);
  const head = clamp(selection.head, stack.num_heads);
  return {
    part,
    prefix: capabilities.kind !== "encoder-decoder" ? "" : part === "encoder" ? "encoder." : "decoder.",
    stack,
    layer,
    head,
    keyHead: Math.floor((head * (stackAt(stack, layer).num_kv_heads ?? stack.num_heads)) / stack.num_heads),
    layers: stack.attention_layers,
    numLayers: stack.num_layers,
    numHeads: stack.num_heads,
  };
}

export const hasPositionBias = (stack) => stack.positions.some((name) => name === "relative" || name === "alibi");

/** A stack with the properties of one layer. */
export function stackAt(stack, layer) {
  const isUnrotated = stack.unrotated_layers?.includes(layer);
  const isDense = stack.experts?.dense_layers.includes(layer);
  if (!isUnrotated && !isDense && !stack.layer_sizes) return stack;
  return {
    ...stack,
    ...stack.layer_sizes?.[layer],
    positions: stack.positions.filter((name) => name !== "rotary" || !isUnrotated),
    experts: isDense ? null : stack.experts,
  };
}

/** The tokens on both sides of an attention. */
export function sidesOf(entry, part) {
  const encoder = entry.encoder_tokens ?? entry.tokens;
  return { queries: part === "encoder" ? encoder : entry.tokens, keys: part === "decoder" ? entry.tokens : encoder };
}

export function useTokens(text) {
  const { data, asked, error, loading } = useJson(
    text === "" ? null : "tokenize",
    useMemo(() => ({ prompt: text, return_token_strs: true, return_offsets: true }), [text]),
  );
  const tokens = useMemo(() => (data ? named(data.token_strs, data.offsets, asked.prompt) : []), [data]);
  return { tokens, ids: data?.tokens ?? [], offsets: data?.offsets ?? [], error, loading };
}

const SIGNS = { " ": "␣", "\n": "↵", "\t": "⇥" };
const signOf = (unseen) => SIGNS[unseen] ?? `U+${unseen.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;

/** A token in readable form; invisible characters are shown as symbols. */
export function shownToken(token) {
  if (token === "") return "∅";
  if (token.includes("\ufffd")) return token.replaceAll("\ufffd", "◌").trim(); // parts of a character
  return /^[\s\p{C}]+$/u.test(token) ? [...token].map(signOf).join("") : token.trim();
}
