// The stops of the journey for the served model: a title, a sentence or two with its numbers, and a view for each.
import { lackOf, shownToken } from "../../core/model.js";
import { format, grouped, percent } from "../../core/numbers.js";
import { NORMS, placing } from "../flow/bands.js";

const quoted = (token) => `“${shownToken(token)}”`;
const lengthOf = (values) => Math.hypot(...values);
const plural = (count, one, many = `${one}s`) => `${grouped(count)} ${count === 1 ? one : many}`;
const flowAt = (id) => ({ view: "flow", flow_open: id });

/** Values for the sentences: the two words, and the numbers of their pair. */
function wordsOf({ data, products, rowWeights }) {
  const { tokens, query, key, explain } = data;
  const hasKey = key < products.numKeys;
  const number = (name) => explain.arrays[name]?.data[key];
  return {
    query: quoted(tokens[query]),
    key: quoted(tokens[key]),
    weight: hasKey ? rowWeights[key] : 0,
    dot: number("dots"),
    scaled: number("scaled"),
    capped: number("capped"),
    bias: number("position_bias"),
    score: number("scores"),
  };
}

function modelStop({ data }) {
  const { whole, tokens, capabilities } = data;
  const name = capabilities.model;
  const heads = `${plural(whole.num_layers, "block")} of ${plural(whole.num_heads, "head")}`;
  const shared = data.stack.num_kv_heads < data.stack.num_heads
    ? ` ${data.stack.num_heads / data.stack.num_kv_heads} heads share each key and value.` : "";
  return {
    title: "The whole way",
    says: `${name} (${capabilities.architecture}) reads ${plural(tokens.length, "token")} and sends each through ${heads}, as ` +
      `${grouped(whole.hidden_size)} numbers.${shared} The journey follows one token through block ${data.layer}, head ${data.head}.`,
    to: { view: "weights" }, link: "Weights: where the parameters are",
  };
}

function tokensStop({ data }, { query, key }) {
  const { tokens } = data;
  const part = data.shown.length < tokens.length ? ` ${data.shown.length} of them are drawn.` : "";
  return {
    title: "The text becomes tokens",
    says: `The text is cut into ${plural(tokens.length, "token")}.${part} The journey follows ${query}, number ${data.query} ` +
      `(blue), which looks at ${key}, number ${data.key} (orange).`,
    to: { view: "attention" }, link: "Attention: who looks at whom",
  };
}

const POSITIONS = {
  learned: "A learned vector for its place in the text is added.",
  sinusoidal: "Sines and cosines of its place in the text are added.",
  rotary: "Its place in the text comes in later: queries and keys are rotated.",
  relative: "Its place in the text comes in later: scores get a number for the distance.",
  alibi: "Its place in the text comes in later: scores fall with the distance.",
};

function embeddingStop({ data }, { query }) {
  const { hook_embed: embed } = data.rows;
  const width = embed.shape.at(-1);
  const row = data.shown.indexOf(data.query);
  const values = embed.data.subarray(row * width, (row + 1) * width);
  const scale = data.whole.embedding_scale === 1 ? "" : `, times ${format(data.whole.embedding_scale, 4)}`;
  const positions = data.whole.positions.map((name) => POSITIONS[name]).join(" ");
  return {
    title: "Each token becomes a vector",
    says: `${query} is one row of the token table${scale}: ${grouped(width)} numbers, of length ${format(lengthOf(values))}. ${positions ||
      "No position is added."}`,
    to: flowAt("hook_embed"), link: "Flow: the embedding",
  };
}

const NORM_DIVISORS = { rmsnorm: "its root mean square", layernorm: "its standard deviation, after its mean was taken off" };

function normStop({ data }, { query }) {
  const name = NORMS[data.stack.norm];
  return {
    title: `${name} before the attention`,
    says: `${name} divides the vector of ${query} by ${format(data.scales.get("ln1.hook_out"))}, ${NORM_DIVISORS[data.stack.norm]}, ` +
      "and multiplies each number by a learned one. The heads read directions, not lengths.",
    to: flowAt("ln1.hook_out"), link: "Flow: the norm",
  };
}

function queryKeyStop({ data }, { query, key }) {
  const { stack, explain } = data;
  const isRotated = stack.positions.includes("rotary");
  const shared = stack.num_kv_heads < stack.num_heads ? ` This key is number ${explain.kv_head}, shared by ${
    stack.num_heads / stack.num_kv_heads} heads.` : "";
  const normed = stack.qk_norm ? " Both are normed." : "";
  const rotated = isRotated ? ` Both are rotated by angles that grow with their places, ${data.query} and ${data.key}.` : "";
  return {
    title: "A query and a key for each token",
    says: `W_Q makes the query of ${query}, W_K the key of ${key}: ${stack.head_dim} numbers each, of length ${
      format(lengthOf(explain.arrays.q.data))} and ${format(lengthOf(keyOf(data)))}.${normed}${rotated}${shared}`,
    to: flowAt("attn.hook_q"), link: "Flow: the query",
  };
}

const keyOf = ({ explain, key }) => {
  const width = explain.arrays.k.shape[1];
  return explain.arrays.k.data.subarray(key * width, (key + 1) * width);
};

function dotsStop({ data, products }, { query, key, dot }) {
  return {
    title: "Every query meets every key",
    says: `A dot is as large as the product q · k of its row and column; pink ones are below 0. ${query} · ${key} = ${
      format(dot)}, the sum of ${data.stack.head_dim} products. All ${grouped(data.shown.length ** 2)} pairs are drawn${
      products.isMasked.some(Boolean) ? ", including masked ones" : ""}.`,
    to: { view: "attention", attention_kind: "dots" }, link: "Attention: q · k",
  };
}

function scaleStop({ data }, { query, key, dot, scaled, capped, bias, score }) {
  const { explain } = data;
  const steps = [];
  if (explain.scale !== 1) {
    const root = Math.abs(explain.scale * Math.sqrt(data.stack.head_dim) - 1) < 1e-6 ? ` (which is 1 / √${data.stack.head_dim})` : "";
    steps.push(`${format(dot)} × ${format(explain.scale, 4)}${root} = ${format(scaled)}`);
  } else {
    steps.push(`${format(dot)} is not scaled in this model`);
  }
  if (capped !== undefined) steps.push(`softcapped at ±${format(explain.softcap, 4)} it is ${format(capped)}`);
  if (bias !== undefined && Number.isFinite(score)) steps.push(`the bias for the distance, ${format(bias)}, makes it ${format(score)}`);
  const why = explain.scale === 1 ? "" : " Without the scale, long vectors would give nearly all weight to one token.";
  return {
    title: "From products to scores",
    says: `The score of ${query} for ${key}: ${steps.join("; ")}.${why}`,
    to: { view: "why" }, link: "Why: every step of this weight",
  };
}

function maskStop({ data, products }, { query }) {
  const { explain, shown, query: at } = data;
  const count = products.isMasked.filter(Boolean).length;
  const row = shown.indexOf(at) * products.numKeys;
  const own = products.isMasked.slice(row, row + products.numKeys).filter((one) => !one).length;
  const why = explain.causal
    ? "The scores of tokens that come later are set to −∞." : "Each token may look at those before and after it.";
  const window = explain.window ? ` Those ${grouped(explain.window)} or more tokens away are hidden too.` : "";
  const hidden = count > 0 ? ` ${grouped(count)} scores of the rows drawn are −∞.` : "";
  return {
    title: explain.causal || count > 0 ? "The mask" : "No mask",
    says: `${why}${window}${hidden} ${query} may look at ${grouped(own)} of ${plural(products.numKeys, "token")}.`,
    to: { view: "attention", attention_kind: "scores" }, link: "Attention: masked scores",
  };
}

/** A sentence about the token with the largest weight, if it is not the selected one. */
function mostOf({ data, rowWeights }, verb) {
  const strongest = rowWeights.reduce((best, value, i) => (value > rowWeights[best] ? i : best), 0);
  return strongest === data.key ? "" : ` Most ${verb} ${quoted(data.tokens[strongest])}, ${percent(rowWeights[strongest])}.`;
}

function softmaxStop(film, { query, key, weight }) {
  const { data, products, temperature } = film;
  const at = temperature === 1 ? "" : ` at temperature ${format(temperature)}`;
  const own = data.explain.arrays.weights.data[data.key];
  const before = temperature === 1 ? "" : `, where the model itself, at 1, gives ${percent(own)}`;
  const sink = data.explain.softmax.sink === null ? "sum to 1" : "and the head's sink sum to 1";
  return {
    title: "Softmax: scores become shares",
    says: `${query} gives ${key} ${percent(weight)}${at}${before}.${mostOf(film, "goes to")} The ${grouped(products.numKeys)} weights of ` +
      `a row ${sink}. A low temperature gives all to the highest score, a high one makes all alike.`,
    to: { view: "attention", attention_kind: "pattern" }, link: "Attention: the pattern",
  };
}

function valuesStop(film, { query, key, weight }) {
  const { data, z, temperature } = film;
  const after = temperature === 1 ? "" : " All later numbers are the model's own, at temperature 1.";
  return {
    title: "The values, weighted and summed",
    says: `W_V makes a value of each token. That of ${key} counts ${percent(weight)}.${mostOf(film, "comes from")} The sum over all ` +
      `tokens is z, what ${query} has read: ${data.stack.head_dim} numbers of length ${format(lengthOf(z))}.${after}`,
    to: { view: "why" }, link: "Why: the weighted values",
  };
}

function headsStop({ data, lengths }) {
  const out = data.strips.get("hook_attn_out")?.values;
  const largest = lengths ? lengths.indexOf(Math.max(...lengths)) : null;
  const { isAfter, norm } = placing(data.stack);
  const others = largest === data.head ? ", the longest of all"
    : lengths && `; head ${largest} writes the longest, ${format(lengths[largest])}`;
  return {
    title: "W_O and the sum over heads",
    says: `W_O turns z into ${grouped(data.stack.hidden_size)} numbers${lengths ? `: head ${data.head} writes a vector of length ${
      format(lengths[data.head])}${others}` : ""}. All ${data.stack.num_heads} heads ` +
      `together${isAfter ? `, after ${norm},` : ""} write one of length ${out ? format(lengthOf(out)) : "…"}.`,
    to: { view: "contributions" }, link: "How a word moves: all words and heads",
  };
}

const cosine = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0) / (lengthOf(a) * lengthOf(b) || 1);

function addStop({ data, formula }, { query }) {
  const [before, after] = ["hook_resid_pre", "hook_resid_mid"].map((id) => data.strips.get(id)?.values);
  const numbers = before && after
    ? ` The vector of ${query} was ${format(lengthOf(before))} long and is now ${format(lengthOf(after))}; the cosine of both is ${
      format(cosine(before, after))}.` : "";
  return {
    title: "Added to the residual stream",
    says: `The output of the heads is added to the stream: ${formula("hook_resid_mid")}.${numbers}`,
    to: flowAt("hook_resid_mid"), link: "Flow: the stream after the attention",
  };
}

function crossStop({ data }, { query }) {
  const weights = data.cross?.arrays.weights.data;
  const key = quoted(data.encoderTokens[data.encoderKey]);
  return {
    title: "Cross-attention to the encoder",
    says: `The encoder has read ${plural(data.encoderTokens.length, "token")} both ways, through ${plural(
      data.capabilities.stacks.encoder.num_layers, "block")} of its own. Keys and values now come from there, and nothing is masked: ${
      query} gives ${key} ${weights ? percent(weights[data.encoderKey]) : "…"}.`,
    to: { view: "attention", attention_show: "stacks", part: "cross" }, link: "Attention: encoder and decoder",
  };
}

function mlpStop({ data, neurons: [id, values], formula }, { query }) {
  const out = data.strips.get("hook_mlp_out")?.values;
  const largest = values ? values.reduce((best, value, i) => (Math.abs(value) > Math.abs(values[best]) ? i : best), 0) : null;
  const isExperts = id.includes("expert");
  const { isAfter, norm } = placing(data.stack);
  const inside = isExperts ? "a mixture of experts" : `only an MLP: ${formula(id)}`;
  const gated = data.stack.gated_mlp && !isExperts ? " A gate decides how far each neuron opens." : "";
  const aside = data.stack.parallel_blocks ? " It reads the same vector as the attention, in parallel." : "";
  const most = !values ? "" : isExperts
    ? ` Of ${values.length} experts, number ${largest} suits it best, ${percent(values[largest])}; ${
      data.stack.experts.num_chosen} are used.`
    : ` Of ${grouped(values.length)} neurons, number ${largest} answers most strongly, ${format(values[largest])}.`;
  return {
    title: "The MLP: each token by itself",
    says: `${query} goes through ${inside}.${gated}${aside}${most} What it writes${isAfter ? `, after ${norm}` : ""}, of length ${
      out ? format(lengthOf(out)) : "…"}, is added too: ${formula("hook_resid_post")}.`,
    to: flowAt(id), link: isExperts ? "Flow: the experts" : "Flow: the neurons",
  };
}

function blocksStop({ data }) {
  const rest = data.numLayers - 1 - data.layer;
  const { lens, states } = data;
  const lengthAt = (layer) => (states?.[layer] ? format(lengthOf(states[layer])) : "…");
  const guess = (state) => `${quoted(lens.top_tokens[state][0][0])} (${percent(lens.arrays.probabilities.data[state])})`;
  const last = rest > 0 && lens ? `, the last one says ${guess(data.numLayers)}` : "";
  const lensSays = lens ? ` Read by the lens, block ${data.layer} would say ${guess(data.layer + 1)}${last}.` : "";
  return {
    title: rest > 0 ? `The same ${plural(rest, "time")} more` : "This is the last block",
    says: `${rest > 0 ? `${plural(rest, "block follows", "blocks follow")}, with weights of their own` : "No block follows"}. The ` +
      `vector's length is ${lengthAt(data.layer)} after block ${data.layer}${rest > 0 ? ` and ${lengthAt(data.numLayers - 1)} after block ${
        data.numLayers - 1}` : ""}.${lensSays}`,
    to: { view: "lens" }, link: "Lens: the prediction of each block",
  };
}

function nextStop({ data }, { query }) {
  const isMask = data.capabilities.kind === "encoder";
  const norm = isMask ? "The head for masked words transforms the vector, then "
    : data.nodes.has("ln_final.hook_out") ? `A last ${NORMS[data.whole.norm]}, then ` : "";
  const cap = data.whole.final_logit_softcap ? ` Logits are capped at ±${format(data.whole.final_logit_softcap, 4)}.` : "";
  if (!data.hasNext) return endWithoutHead(data, query);
  const [first, second] = data.next?.temperatures[0].tokens ?? [];
  const said = ({ token, probability, logit }) => `${quoted(token)} ${percent(probability)} (logit ${format(logit)})`;
  return {
    title: isMask ? "The word in its place" : "The next word",
    says: `${norm}W_U gives each of the ${grouped(data.capabilities.vocab_size)} tokens a logit, and softmax makes ` +
      `probabilities of them.${cap} ${isMask ? "In the place of" : "After"} ${query}: ${
        first ? `${said(first)}, then ${said(second)}` : "…"}.`,
    to: { view: "next" }, link: "Next token: the whole vocabulary",
  };
}

function endWithoutHead(data, query) {
  const values = data.states?.at(-1);
  const isEncoderOfPair = data.capabilities.kind === "encoder-decoder" && data.stackName === "encoder";
  return {
    title: isEncoderOfPair ? "Handed to the decoder" : "The vector is the answer",
    says: `${isEncoderOfPair ? "The decoder's cross-attention reads these vectors" : "This model ends with vectors, not with words"}: ` +
      `that of ${query} has ${grouped(data.whole.hidden_size)} numbers and length ${values ? format(lengthOf(values)) : "…"}.`,
    to: isEncoderOfPair ? { view: "journey", part: "decoder", journey_stop: "cross" } : { view: "embeddings" },
    link: isEncoderOfPair ? "Go on in the decoder" : "Embeddings: texts as points",
  };
}

const ROUTES = { why: "/v1/explain", contributions: "/v1/contributions", lens: "/v1/lens", next: "/v1/next", embeddings: "/v1/embeddings" };

/**
 * [{id, title, says, to, link}] in their order: to: the selection of the link, null if the model does not support the
 * view.
 */
export function stopsOf(film) {
  const { data } = film;
  const words = wordsOf(film);
  const isCrossed = data.stackName === "decoder" && data.whole.cross_attention;
  const made = [
    ["model", modelStop],
    ["tokens", tokensStop],
    ["embedding", embeddingStop],
    data.rows["ln1.hook_out"] && ["norm", normStop],
    ["qk", queryKeyStop],
    ["dots", dotsStop],
    ["scale", scaleStop],
    ["mask", maskStop],
    ["softmax", softmaxStop],
    ["values", valuesStop],
    ["heads", headsStop],
    data.nodes.has("hook_resid_mid") && ["add", addStop],
    isCrossed && ["cross", crossStop],
    ["mlp", mlpStop],
    ["blocks", blocksStop],
    ["next", nextStop],
  ];
  return made.filter(Boolean).map(([id, make]) => {
    const stop = make(film, words);
    const route = ROUTES[stop.to.view];
    return { id, ...stop, to: route && lackOf(data.capabilities, route) ? null : stop.to };
  });
}

