// The name, the colour and a one-line description of each tensor in the flow.
import { TERMS } from "../../parts/terms.js";

const TURNED = {
  rotary: "Rotated by angles that grow with the position, so that q·k depends on the distance of the two words.",
  normed: "Scaled to a standard length before they are compared.",
};
const ADDED = "this is added to the residual stream.";

/** [title, tone, about] by the last part of a point's name. */
const WORDS = {
  hook_embed: ["embedding", "ink", "The vector of each token, independent of its context."],
  hook_pos_embed: ["+ position", "ink", "The addition for the position in the text."],
  hook_token_type_embed: ["+ token type", "ink", "The addition for the segment of the text."],
  hook_resid_pre: ["x", "ink", "The residual stream at the beginning of this block: the embedding plus the outputs of all earlier blocks."],
  hook_predicted: ["x seen", "ink", "The input of this block: a mixture of the streams."],
  hook_laurel_out: ["around", "ink", `A path parallel to the attention, through a few numbers: ${ADDED}`],
  hook_resid_mid: ["x mid", "ink", "The stream after the addition of attention."],
  hook_resid_mid_cross: ["x cross", "ink", "The stream after cross-attention."],
  hook_resid_mid_mlp: ["x mlp", "ink", "The stream after the addition of the neurons."],
  hook_per_layer_input: ["of token", "ink", "The per-layer embedding of the token, independent of the stream."],
  hook_per_layer_out: ["let through", "ink", `The stream after the token's gate: ${ADDED}`],
  hook_resid_post: ["x out", "ink", "The stream at the beginning of the next block."],
  hook_q: ["q", "query", "The query: the content that the word at the chosen position looks for."],
  hook_k: ["k", "key", "The key: a description of the word's content."],
  hook_v: ["v", "value", "The value: the content that a word passes on."],
  hook_attn_scores: ["scores", "ink", "The similarity of query and key. Masked scores are minus infinity, and are left blank here."],
  hook_pattern: ["pattern", "ink", "The attention: the weight of each word. Every row sums to 1."],
  hook_z: ["z", "value", "The values, weighted by the pattern."],
  hook_result: ["result", "value", "The output of this head, in the width of the stream."],
  hook_attn_out: ["attn out", "ink", `The sum of all heads' outputs: ${ADDED}`],
  hook_cross_attn_out: ["attn out", "ink", `The sum of all heads' outputs: ${ADDED}`],
  hook_pre: ["up", "ink", "The input of each neuron's activation: a weighted sum of the word's numbers."],
  hook_pre_gate: ["gate", "ink", "The gate of each neuron, before the activation."],
  hook_pre_linear: ["up", "ink", "The number of each neuron that its gate multiplies."],
  hook_post: ["neurons", "ink", "The neurons after the activation."],
  hook_router_logits: ["router", "ink", "The score of each expert for the word."],
  hook_expert_weights: ["experts", "ink", "The probability of each expert. The word uses only the largest."],
  hook_dense_out: ["of the mlp", "ink", "The normed output of the shared mlp."],
  hook_experts_out: ["of experts", "ink", "The normed sum of the chosen experts' outputs."],
  hook_mlp_out: ["mlp out", "ink", `The output of the neurons: ${ADDED}`],
  logits: ["logits", "ink", "A number for every token of the vocabulary: softmax turns them into the probabilities of the next token."],
};

/** By full name, for points with an ambiguous last part. */
const WHOLE = {
  "conv.hook_in": ["gated in", "ink", "The input of the convolution for each word, kept for the next few words."],
  "delta.hook_in": ["q, k, v", "ink", "Queries, keys and values before the convolution, kept for the next few words."],
  "delta.hook_v": ["v", "value", "The values: each word's content for the memory of its head."],
  "delta.hook_z": ["read", "value", "The result of each word's query to the memory, after the word's own update."],
  "delta.hook_out": ["gated out", "ink", "The result, normed to a standard length, times the gate."],
  "conv.hook_out": ["gated out", "ink", "Each number's mixture over a few words, times the gate."],
};

export function wordsOf(id, stack) {
  const name = id.split(".").at(-1);
  if (name === "hook_out" && !(id in WHOLE)) {
    const title = id.startsWith("ln_final") ? "final norm" : id.startsWith("embed") ? "norm" : "n";
    return { title, tone: "ink", about: TERMS[stack.norm === "rmsnorm" ? "RMSNorm" : "LayerNorm"] };
  }
  if (name === "hook_rot_q" || name === "hook_rot_k") {
    const isQuery = name.endsWith("q");
    const about = stack.positions.includes("rotary") ? TURNED.rotary : TURNED.normed;
    return { title: isQuery ? "q′" : "k′", tone: isQuery ? "query" : "key", about };
  }
  if (name === "hook_pattern" && stack.attention_sinks) {
    return { title: "pattern", tone: "ink", about: "The attention: the weight of each word. The head's sink gets the rest." };
  }
  const [title, tone, about] = WHOLE[id] ?? WORDS[name === "hook_pre" && stack.gated_mlp ? "hook_pre_gate" : name];
  return { title, tone, about };
}
