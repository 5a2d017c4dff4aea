// The computation of one tensor, line by line, with the numbers of the selected words.
import { shownToken } from "../../core/model.js";
import { format, sum } from "../../core/numbers.js";
import { dot, lengthOf } from "../../core/projection.js";
import { isOfEncoder } from "./numbers.js";

const length = (strip) => lengthOf(strip.values);
const lengths = (parts) =>
  parts
    .filter(([, strip]) => strip)
    .map(([name, strip]) => `‖${name}‖ = ${format(length(strip))}`)
    .join(", ");

export function derivation(node, { place, strips, scale }) {
  const [part] = node.id.split(".");
  const name = node.id.split(".").at(-1);
  if (name === "hook_attn_scores") return scoreLines(part, place, strips);
  if (name === "hook_pattern") return patternLine(part, place, strips);
  if (name === "hook_out" && scale !== undefined) return normLine(place.stack, scale);
  const product = productsOf(node, place)[name];
  if (product) return [product];
  const made = sumsOf(place.stack, strips)[name];
  return made ? [[made[0], lengths([...made[1], ["sum", strips.get(node.id)]])]] : [];
}

function normLine({ norm }, scale) {
  const [input, weights, what] =
    norm === "rmsnorm" ? ["x", "weight", "root mean square"] : ["(x − mean)", "weight + bias", "standard deviation"];
  return [[`n = ${input} / ${format(scale)} × ${weights}`, `${format(scale)} is this word's ${what}`]];
}

function productsOf(node, { stack, tokens, encoderTokens }) {
  const n = isOfEncoder(node) ? encoderTokens.length : tokens.length;
  const { hidden_size: d, num_heads: heads, num_kv_heads: keyHeads, head_dim: width, intermediate_size: neurons, experts } = stack;
  const formula = `${node.title} = ${node.how[0]}`;
  const projected = (count) => [formula, `[${n}, ${d}] · [${d}, ${count} × ${width}] → [${n}, ${count}, ${width}]`];
  const product = (from, to) => `[${n}, ${from}] · [${from}, ${to}] → [${n}, ${to}]`;
  const up = [formula, product(d, neurons)];
  const chosen = experts && `${experts.num_chosen} of ${experts.num_experts} experts, each of ${experts.intermediate_size} neurons`;
  return {
    hook_q: projected(heads),
    hook_k: projected(keyHeads),
    hook_v: projected(keyHeads),
    hook_z: ["z = Σ pattern[q, k] · v[k]", `[${n}, keys] · [keys, ${width}] → [${n}, ${width}]`],
    hook_result: ["result = z · W_O of this head", product(width, d)],
    hook_pre: up,
    hook_pre_linear: up,
    hook_router_logits: experts && [formula, product(d, experts.num_experts)],
    hook_experts_out: experts && [`of experts = norm(${node.how[0]})`, chosen],
    hook_dense_out: ["of the mlp = norm(neurons · W_down)", product(neurons, d)],
    hook_mlp_out: experts?.beside_mlp ? null : experts ? [`mlp out = ${node.how[0]}`, chosen]
      : ["mlp out = neurons · W_down", product(neurons, d)],
  };
}

function sumsOf(stack, strips) {
  const of = (id) => strips.get(id);
  const before = of("hook_resid_mid_cross") ?? of("hook_resid_mid") ?? of("hook_resid_pre");
  const attention = ["attention", of("hook_attn_out")];
  const mlp = ["mlp", of("hook_mlp_out")];
  const heads = `Σ over ${stack.num_heads} heads of z · W_O`;
  return {
    hook_attn_out: [heads, [["this head", of("attn.hook_result")]]],
    hook_cross_attn_out: [heads, [["this head", of("cross_attn.hook_result")]]],
    hook_mlp_out: ["norm(of the mlp + of experts)",
      [["of the mlp", of("mlp.hook_dense_out")], ["of experts", of("mlp.hook_experts_out")]]],
    hook_resid_mid: stack.altup
      ? ["(x + attention + around) / √2", [["x", of("hook_predicted")], attention, ["around", of("hook_laurel_out")]]]
      : ["x + attention", [["x", of("hook_resid_pre")], attention]],
    hook_resid_mid_cross: ["x + cross", [["x", of("hook_resid_mid")], ["cross", of("hook_cross_attn_out")]]],
    hook_resid_mid_mlp: ["x + mlp", [["x", before], mlp]],
    hook_resid_post: lastSum(stack, before, attention, mlp, of),
  };
}

function lastSum(stack, before, attention, mlp, of) {
  if (stack.parallel_blocks) return ["x + attention + mlp", [["x", before], attention, mlp]];
  if (stack.altup) return ["x seen + w · (x mlp − x seen)", [["x mlp", of("hook_resid_mid_mlp")], ["x seen", of("hook_predicted")]]];
  const times = stack.stream_scales ? ", times the layer's number" : "";
  const middle = of("hook_resid_mid_mlp");
  if (middle) return [`x + let through${times}`, [["x", middle], ["let through", of("hook_per_layer_out")]]];
  return [`x + mlp${times}`, [["x", before], mlp]];
}

const pairOf = (name, { tokens, encoderTokens, query, key, encoderKey }) => {
  const isCross = name === "cross_attn";
  return {
    at: isCross ? encoderKey : key,
    words: `“${shownToken(tokens[query])}” to “${shownToken((isCross ? encoderTokens : tokens)[isCross ? encoderKey : key])}”`,
  };
};

function scoreLines(name, place, strips) {
  const q = strips.get(`${name}.hook_rot_q`) ?? strips.get(`${name}.hook_q`);
  const k = strips.get(`${name}.hook_rot_k`) ?? strips.get(`${name}.hook_k`);
  const scores = strips.get(`${name}.hook_attn_scores`);
  const { at, words } = pairOf(name, place);
  if (!q || !k || !scores) return [];
  const { attention_scale: factor, head_dim: width } = place.stack;
  const product = dot(q.values, k.values);
  const score = scores.values[at];
  const others = Number.isFinite(score) ? format(score) : "−∞ (masked)";
  return [
    [`q·k = ${format(product)}`, `${words}: ${width} products, summed`],
    [
      factor === 1 ? `not scaled` : `${format(product)} × ${format(factor, 4)} = ${format(product * factor)}`,
      factor === 1 ? "" : "scaled, so that the softmax does not give all to one key",
    ],
    [`score = ${others}`, "after cap, bias and mask, where the model has them"],
  ];
}

function patternLine(name, place, strips) {
  const scores = strips.get(`${name}.hook_attn_scores`);
  const pattern = strips.get(`${name}.hook_pattern`);
  const { at, words } = pairOf(name, place);
  if (!scores || !pattern) return [];
  const whole = sum(Array.from(scores.values, Math.exp));
  const score = scores.values[at];
  const own = Number.isFinite(score) ? `exp(${format(score)}) / ${format(whole)}` : "exp(−∞)";
  return [[`${own} = ${format(pattern.values[at])}`, `${words}; ${format(whole)} is the sum over the row's keys`]];
}
