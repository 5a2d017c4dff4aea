// What each tensor is called in the flow, which colour it has, and what it is, in a line.

const NORMED = {
  rmsnorm:
    "Each vector is divided by its root mean square and weighted, " +
    "so that the sublayer reads directions, not lengths.",
  layernorm:
    "From each vector its mean is taken, it is divided by its standard deviation, then weighted and shifted, " +
    "so that the sublayer reads directions, not lengths.",
};
const TURNED = {
  rotary: "Rotated by angles that grow with the position: q·k then depends on how far apart the two words are.",
  normed: "Brought to a standard length before they are compared.",
};
const ADDED = "this is added to the residual stream.";

/** [title, tone, about] by the last part of a point's name, or by all of it. */
const WORDS = {
  hook_embed: ["embedding", "ink", "The vector of each token, whatever stands around it."],
  hook_pos_embed: ["+ position", "ink", "What is added for the position in the text."],
  hook_token_type_embed: ["+ token type", "ink", "What is added for the segment of the text."],
  hook_resid_pre: [
    "x",
    "ink",
    "The residual stream as this block finds it: the embedding, and all that was added to it so far.",
  ],
  hook_predicted: ["x seen", "ink", "What this block reads: the stream with something of the other streams."],
  hook_laurel_out: ["around", "ink", `A path beside the attention, through a few numbers: ${ADDED}`],
  hook_resid_mid: ["x mid", "ink", "The stream with what attention added."],
  hook_resid_mid_cross: ["x cross", "ink", "The stream with what was read from the encoder."],
  hook_resid_mid_mlp: ["x mlp", "ink", "The stream with what the neurons added."],
  hook_per_layer_input: ["of token", "ink", "What this layer gets of the token itself, whatever the stream holds."],
  hook_per_layer_out: ["let through", "ink", `What the token lets through of the stream: ${ADDED}`],
  hook_resid_post: ["x out", "ink", "The stream as the next block finds it."],
  hook_q: ["q", "query", "The query: what the word at the chosen position looks for."],
  hook_k: ["k", "key", "The key: what a word offers to be found by."],
  hook_v: ["v", "value", "The value: what a word hands over when it is looked at."],
  hook_attn_scores: [
    "scores",
    "ink",
    "How well each key answers the query. What may not be seen is minus infinity, and left blank here.",
  ],
  hook_pattern: ["pattern", "ink", "The attention: how much of each word is taken. Every row sums to 1."],
  hook_z: ["z", "value", "The values, mixed by the pattern: what this head has read."],
  hook_result: ["result", "value", "What this head alone writes, back in the width of the stream."],
  hook_attn_out: ["attn out", "ink", `What all heads wrote together: ${ADDED}`],
  hook_cross_attn_out: ["attn out", "ink", `What all heads wrote together: ${ADDED}`],
  hook_pre: ["up", "ink", "What each neuron computes of the word, before the activation: a weighted sum of its numbers."],
  hook_pre_gate: ["gate", "ink", "The gate of each neuron, before the activation."],
  hook_pre_linear: ["up", "ink", "What each neuron lets through where its gate is open."],
  hook_post: ["neurons", "ink", "The neurons after the activation."],
  hook_router_logits: ["router", "ink", "How well each expert suits the word."],
  hook_expert_weights: ["experts", "ink", "The probability of each expert. The word goes through those with the largest alone."],
  hook_dense_out: ["of the mlp", "ink", "What the neurons of the one mlp write, normed."],
  hook_experts_out: ["of experts", "ink", "What the chosen experts write together, normed."],
  hook_mlp_out: ["mlp out", "ink", `What the neurons write: ${ADDED}`],
  logits: [
    "logits",
    "ink",
    "A number for every token of the vocabulary: softmax makes them the probabilities of what comes next.",
  ],
};

/** The same by the whole name, of points whose last part means something else elsewhere. */
const WHOLE = {
  "conv.hook_in": ["gated in", "ink", "What the convolution reads of each word, and keeps for the next few."],
  "delta.hook_in": ["q, k, v", "ink", "Queries, keys and values before the convolution, and what it keeps of each word."],
  "delta.hook_v": ["v", "value", "The values: what each word writes into the memory of its head."],
  "delta.hook_z": ["read", "value", "What each word's query reads from the memory, after the word has written to it."],
  "delta.hook_out": ["gated out", "ink", "What was read, brought to a standard length, as far as the gate lets it through."],
  "conv.hook_out": ["gated out", "ink", "Each number's mixture over a few words, as far as the gate lets it through."],
};

/** {title, tone, about} of a point of a stack. */
export function wordsOf(id, stack) {
  const name = id.split(".").at(-1);
  if (id in WHOLE) {
    const [title, tone, about] = WHOLE[id];
    return { title, tone, about };
  }
  if (name === "hook_out") {
    const title = id.startsWith("ln_final") ? "final norm" : id.startsWith("embed") ? "norm" : "n";
    return { title, tone: "ink", about: NORMED[stack.norm] };
  }
  if (name === "hook_rot_q" || name === "hook_rot_k") {
    const isQuery = name.endsWith("q");
    const about = stack.positions.includes("rotary") ? TURNED.rotary : TURNED.normed;
    return { title: isQuery ? "q′" : "k′", tone: isQuery ? "query" : "key", about };
  }
  if (name === "hook_pattern" && stack.attention_sinks) {
    return { title: "pattern", tone: "ink", about: "The attention: how much of each word is taken. The head's sink takes the rest." };
  }
  const [title, tone, about] = WORDS[name === "hook_pre" && stack.gated_mlp ? "hook_pre_gate" : name];
  return { title, tone, about };
}
