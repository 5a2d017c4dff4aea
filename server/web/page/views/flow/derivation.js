// How one tensor is made, line by line, with the numbers of the chosen words and the shapes of the matrices.
import { shownToken } from "../../core/model.js";
import { format } from "../../core/numbers.js";
import { isOfEncoder } from "./numbers.js";

const length = (strip) => Math.hypot(...strip.values);

function dot(left, right) {
  let sum = 0;
  for (let i = 0; i < left.length; i += 1) sum += left[i] * right[i];
  return sum;
}

/** "‖x‖ = 5.1" of strips that are there. */
const lengths = (parts) => parts.filter(([, strip]) => strip).map(([name, strip]) => `‖${name}‖ = ${format(length(strip))}`).join(", ");

/** [[formula, shapes]] of a node; [] where there is nothing to add to what the box says. */
export function derivation(node, { place, strips, scale }) {
  const { stack, tokens, encoderTokens } = place;
  const [name] = node.id.split(".");
  const of = (id) => strips.get(id);
  const [n, d, heads, keyHeads, width] = [isOfEncoder(node) ? encoderTokens.length : tokens.length, stack.hidden_size, stack.num_heads, stack.num_kv_heads, stack.head_dim];
  const projected = (count) => [[`${node.title} = ${node.how[0]}`, `[${n}, ${d}] · [${d}, ${count} × ${width}] → [${n}, ${count}, ${width}]`]];
  switch (node.id.split(".").at(-1)) {
    case "hook_normalized":
      return scale === undefined ? [] : [[`n = ${stack.norm === "rmsnorm" ? "x" : "(x − mean)"} / ${format(scale)} × w${stack.norm === "rmsnorm" ? "" : " (+ b)"}`, `${format(scale)} is this word's ${stack.norm === "rmsnorm" ? "root mean square" : "standard deviation"}`]];
    case "hook_q":
      return projected(heads);
    case "hook_k":
    case "hook_v":
      return projected(keyHeads);
    case "hook_attn_scores":
      return scoreLines(name, place, strips);
    case "hook_pattern":
      return patternLine(name, place, strips);
    case "hook_z":
      return [[`z = Σ pattern[q, k] · v[k]`, `[${n}, keys] · [keys, ${width}] → [${n}, ${width}]`]];
    case "hook_result":
      return [[`result = z · W_O of this head`, `[${n}, ${width}] · [${width}, ${d}] → [${n}, ${d}]`]];
    case "hook_attn_out":
    case "hook_cross_attn_out":
      return [[`Σ over ${heads} heads of z · W_O`, lengths([["this head's", of(`${node.id === "hook_attn_out" ? "attn" : "cross_attn"}.hook_result`)], ["all heads'", of(node.id)]])]];
    case "hook_resid_mid":
      return [[`x + attention`, lengths([["x", of("hook_resid_pre")], ["attention", of("hook_attn_out")], ["sum", of(node.id)]])]];
    case "hook_resid_post":
      return [[stack.parallel_blocks ? "x + attention + mlp" : "x + mlp", lengths([["x", of("hook_resid_mid_cross") ?? of("hook_resid_mid") ?? of("hook_resid_pre")], ["mlp", of("hook_mlp_out")], ["sum", of(node.id)]])]];
    case "hook_pre":
    case "hook_pre_linear":
      return [[`${node.title} = ${node.how[0]}`, `[${n}, ${d}] · [${d}, ${stack.intermediate_size}] → [${n}, ${stack.intermediate_size}]`]];
    case "hook_mlp_out":
      return [[`mlp = neurons · W_down`, `[${n}, ${stack.intermediate_size}] · [${stack.intermediate_size}, ${d}] → [${n}, ${d}]`]];
    default:
      return [];
  }
}

const pairOf = (name, { tokens, encoderTokens, query, key, encoderKey }) => {
  const isCross = name === "cross_attn";
  return { at: isCross ? encoderKey : key, words: `“${shownToken(tokens[query])}” to “${shownToken((isCross ? encoderTokens : tokens)[isCross ? encoderKey : key])}”` };
};

/** q·k of the chosen pair, times the scale, and the score that came of it. */
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
    [factor === 1 ? `not scaled` : `${format(product)} × ${format(factor)} = ${format(product * factor)}`, factor === 1 ? "" : "scaled, so that long vectors do not drown the softmax"],
    [`score = ${others}`, "after cap, bias and mask, where the model has them"],
  ];
}

/** exp(score) over the sum of the row. */
function patternLine(name, place, strips) {
  const scores = strips.get(`${name}.hook_attn_scores`);
  const pattern = strips.get(`${name}.hook_pattern`);
  const { at, words } = pairOf(name, place);
  if (!scores || !pattern) return [];
  let sum = 0;
  for (const score of scores.values) sum += Math.exp(score);
  const score = scores.values[at];
  const own = Number.isFinite(score) ? `exp(${format(score)}) / ${format(sum)}` : "exp(−∞)";
  return [[`${own} = ${format(pattern.values[at])}`, `${words}; ${format(sum)} is the sum over the row's keys`]];
}
