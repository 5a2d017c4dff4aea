// The stops of the journey for the served model: a title, a sentence or two with its numbers, and a view for each.
import { lackOf, shownToken } from "../../core/model.js";
import { counted, format, grouped, percent } from "../../core/numbers.js";
import { dot, lengthOf } from "../../core/projection.js";
import { POSITIONS } from "../attention/kinds.js";
import { NORMS, placing } from "../flow/bands.js";

const quoted = (token) => `“${shownToken(token)}”`;
const long = (values) => (values ? format(lengthOf(values)) : "…");
const cosine = (a, b) => dot(a, b) / (lengthOf(a) * lengthOf(b) || 1);
/** The index of the largest number. */
const top = (values) => values.reduce((best, value, i) => (value > values[best] ? i : best), 0);
const flow = (id) => ({ view: "flow", flow_open: id });
const dotsOf = (kind) => ({ view: "attention", attention_kind: kind });

const NORM_DIVISORS = { rmsnorm: "its root mean square", layernorm: "its standard deviation, after its mean was taken off" };

/** Unless it is selected. */
function mostOf({ data, rowWeights }, verb) {
  const strongest = top(rowWeights);
  return strongest === data.key ? "" : ` Most ${verb} ${quoted(data.tokens[strongest])}, ${percent(rowWeights[strongest])}.`;
}

/** [title, sentences, selection of the link, link]. */
const STOPS = {
  model({ data: { whole, stack, tokens, capabilities, layer, head } }) {
    const shared = stack.num_kv_heads < stack.num_heads ? ` ${stack.num_heads / stack.num_kv_heads} heads share each key and value.` : "";
    return ["The whole way",
      `${capabilities.model} (${capabilities.architecture}) reads ${counted(tokens.length, "token")} and sends each through ${
        counted(whole.num_layers, "block")} of ${counted(whole.num_heads, "head")}, as ${grouped(whole.hidden_size)} numbers.${
        shared} The journey follows one token through block ${layer}, head ${head}.`,
      { view: "weights" }, "Weights: where the parameters are"];
  },
  tokens({ data }, { query, key }) {
    const part = data.shown.length < data.tokens.length ? ` ${data.shown.length} of them are drawn.` : "";
    return ["The text becomes tokens",
      `The text is cut into ${counted(data.tokens.length, "token")}.${part} The journey follows ${query}, number ${data.query} ` +
        `(blue), which looks at ${key}, number ${data.key} (orange).`,
      { view: "attention" }, "Attention: who looks at whom"];
  },
  embedding({ data: { rows: { hook_embed: embed }, shown, query: at, whole } }, { query }) {
    const width = embed.shape.at(-1);
    const row = shown.indexOf(at) * width;
    const scale = whole.embedding_scale === 1 ? "" : `, times ${format(whole.embedding_scale, 4)}`;
    return ["Each token becomes a vector",
      `${query} is one row of the token table${scale}: ${grouped(width)} numbers, of length ${
        long(embed.data.subarray(row, row + width))}. ${
        whole.positions.map((name) => `Its place: ${POSITIONS[name]}`).join("; ") || "No position is added"}.`,
      flow("hook_embed"), "Flow: the embedding"];
  },
  norm({ data: { stack, scales } }, { query }) {
    const name = NORMS[stack.norm];
    return [`${name} before the attention`,
      `${name} divides the vector of ${query} by ${format(scales.get("ln1.hook_out"))}, ${NORM_DIVISORS[stack.norm]}, ` +
        "and multiplies each number by a learned one. The heads read directions, not lengths.",
      flow("ln1.hook_out"), "Flow: the norm"];
  },
  qk({ data: { stack, explain, query: at, key: seen } }, { query, key }) {
    const { q, k } = explain.arrays;
    const width = k.shape[1];
    const shared = stack.num_kv_heads < stack.num_heads ? ` This key is number ${explain.kv_head}, shared by ${
      stack.num_heads / stack.num_kv_heads} heads.` : "";
    const rotated = stack.positions.includes("rotary") ? ` Both are rotated by angles that grow with their places, ${at} and ${seen}.` : "";
    return ["A query and a key for each token",
      `W_Q makes the query of ${query}, W_K the key of ${key}: ${stack.head_dim} numbers each, of length ${long(q.data)} and ${
        long(k.data.subarray(seen * width, (seen + 1) * width))}.${stack.qk_norm ? " Both are normed." : ""}${rotated}${shared}`,
      flow("attn.hook_q"), "Flow: the query"];
  },
  dots({ data, products }, { query, key, dot }) {
    return ["Every query meets every key",
      `A dot is as large as the product q · k of its row and column; pink ones are below 0. ${query} · ${key} = ${
        format(dot)}, the sum of ${data.stack.head_dim} products. All ${grouped(data.shown.length ** 2)} pairs are drawn${
        products.isMasked.some(Boolean) ? ", including masked ones" : ""}.`,
      dotsOf("dots"), "Attention: q · k"];
  },
  scale({ data: { explain, stack } }, { query, key, dot, scaled, capped, bias, score }) {
    const { scale } = explain;
    const root = Math.abs(scale * Math.sqrt(stack.head_dim) - 1) < 1e-6 ? ` (which is 1 / √${stack.head_dim})` : "";
    const steps = [scale === 1 ? `${format(dot)} is not scaled in this model`
      : `${format(dot)} × ${format(scale, 4)}${root} = ${format(scaled)}`];
    if (capped !== undefined) steps.push(`softcapped at ±${format(explain.softcap, 4)} it is ${format(capped)}`);
    if (bias !== undefined && Number.isFinite(score)) steps.push(`the bias for the distance, ${format(bias)}, makes it ${format(score)}`);
    return ["From products to scores",
      `The score of ${query} for ${key}: ${steps.join("; ")}.${scale === 1 ? ""
        : " Without the scale, long vectors would give nearly all weight to one token."}`,
      { view: "why" }, "Why: every step of this weight"];
  },
  mask({ data: { explain, shown, query: at }, products: { isMasked, numKeys } }, { query }) {
    const count = isMasked.filter(Boolean).length;
    const row = shown.indexOf(at) * numKeys;
    const own = isMasked.slice(row, row + numKeys).filter((one) => !one).length;
    const why = explain.causal
      ? "The scores of tokens that come later are set to −∞." : "Each token may attend to all tokens before and after it.";
    const window = explain.window ? ` Those ${grouped(explain.window)} or more tokens away are hidden too.` : "";
    const hidden = count > 0 ? ` ${grouped(count)} scores of the rows drawn are −∞.` : "";
    return [explain.causal || count > 0 ? "The mask" : "No mask",
      `${why}${window}${hidden} ${query} may look at ${grouped(own)} of ${counted(numKeys, "token")}.`,
      dotsOf("scores"), "Attention: masked scores"];
  },
  softmax(film, { query, key, weight }) {
    const { data: { explain, key: seen }, products, temperature } = film;
    const at = temperature === 1 ? "" : ` at temperature ${format(temperature)}, where the model itself, at 1, gives ${
      percent(explain.arrays.weights.data[seen])}`;
    return ["Softmax: scores become shares",
      `${query} gives ${key} ${percent(weight)}${at}.${mostOf(film, "goes to")} The ${grouped(products.numKeys)} weights of a row ${
        explain.softmax.sink === null ? "sum to 1" : "and the head's sink sum to 1"
      }. A low temperature gives all weight to the highest score, a high one makes all weights equal.`,
      dotsOf("pattern"), "Attention: the pattern"];
  },
  values(film, { query, key, weight }) {
    const after = film.temperature === 1 ? "" : " All later numbers are the model's own, at temperature 1.";
    return ["The values, weighted and summed",
      `W_V makes a value of each token. That of ${key} counts ${percent(weight)}.${mostOf(film, "comes from")} The sum over all ` +
        `tokens is z, what ${query} has read: ${film.data.stack.head_dim} numbers of length ${long(film.z)}.${after}`,
      { view: "why" }, "Why: the weighted values"];
  },
  heads({ data: { stack, head }, lengths, vector }) {
    const { isAfter, norm } = placing(stack);
    const largest = lengths && top(lengths);
    const own = lengths ? `: head ${head} writes a vector of length ${format(lengths[head])}${largest === head ? ", the longest of all"
      : `; head ${largest} writes the longest, ${format(lengths[largest])}`}` : "";
    return ["W_O and the sum over heads",
      `W_O turns z into ${grouped(stack.hidden_size)} numbers${own}. All ${stack.num_heads} heads together${
        isAfter ? `, after ${norm},` : ""} write one of length ${long(vector("hook_attn_out"))}.`,
      { view: "moves", moves_as: "amounts" }, "How a word moves: all words and heads"];
  },
  add({ vector, formula }, { query }) {
    const [before, after] = ["hook_resid_pre", "hook_resid_mid"].map(vector);
    const numbers = before && after
      ? ` The vector of ${query} was ${long(before)} long and is now ${long(after)}; the cosine of both is ${
        format(cosine(before, after))}.` : "";
    return ["Added to the residual stream",
      `The output of the heads is added to the stream: ${formula("hook_resid_mid")}.${numbers}`,
      flow("hook_resid_mid"), "Flow: the stream after the attention"];
  },
  cross({ data }, { query }) {
    const weights = data.cross?.arrays.weights.data;
    return ["Cross-attention to the encoder",
      `The encoder has read ${counted(data.encoderTokens.length, "token")} both ways, through ${
        counted(data.capabilities.stacks.encoder.num_layers, "block")} of its own. Keys and values now come from there, and nothing ` +
        `is masked: ${query} gives ${quoted(data.encoderTokens[data.encoderKey])} ${weights ? percent(weights[data.encoderKey]) : "…"}.`,
      { view: "attention", attention_show: "stacks", part: "cross" }, "Attention: encoder and decoder"];
  },
  mlp({ data: { stack }, neurons: [id, values], vector, formula }, { query }) {
    const isExperts = id.includes("expert");
    const { isAfter, norm } = placing(stack);
    const gated = stack.gated_mlp && !isExperts ? " A gate decides how far each neuron opens." : "";
    const aside = stack.parallel_blocks ? " It reads the same vector as the attention, in parallel." : "";
    const largest = values && top(values.map(Math.abs));
    const most = !values ? "" : isExperts
      ? ` Of ${values.length} experts, number ${largest} suits it best, ${percent(values[largest])}; ${stack.experts.num_chosen} are used.`
      : ` Of ${grouped(values.length)} neurons, number ${largest} answers most strongly, ${format(values[largest])}.`;
    return ["The MLP: each token by itself",
      `${query} goes through ${isExperts ? "a mixture of experts" : `only an MLP: ${formula(id)}`}.${gated}${aside}${most} What it writes${
        isAfter ? `, after ${norm}` : ""}, of length ${long(vector("hook_mlp_out"))}, is added too: ${formula("hook_resid_post")}.`,
      flow(id), isExperts ? "Flow: the experts" : "Flow: the neurons"];
  },
  blocks({ data: { numLayers, layer, lens, states } }) {
    const rest = numLayers - 1 - layer;
    const guess = (state) => `${quoted(lens.top_tokens[state][0][0])} (${percent(lens.arrays.probabilities.data[state])})`;
    const last = rest > 0 && lens ? `, the last one says ${guess(numLayers)}` : "";
    return [rest > 0 ? `The same ${counted(rest, "time")} more` : "This is the last block",
      `${rest > 0 ? `${counted(rest, "block follows", "blocks follow")}, with weights of their own` : "No block follows"}. The ` +
        `vector's length is ${long(states?.[layer])} after block ${layer}${
          rest > 0 ? ` and ${long(states?.[numLayers - 1])} after block ${numLayers - 1}` : ""}.${
          lens ? ` Read by the lens, block ${layer} would say ${guess(layer + 1)}${last}.` : ""}`,
      { view: "lens" }, "Lens: the prediction of each block"];
  },
  next({ data: { capabilities, nodes, whole, next, hasNext, states, stackName } }, { query }) {
    const { kind } = capabilities;
    if (!hasNext) {
      const isHandedOn = kind === "encoder-decoder" && stackName === "encoder";
      return [isHandedOn ? "Handed to the decoder" : "The vector is the answer",
        `${isHandedOn ? "The decoder's cross-attention reads these vectors" : "This model ends with vectors, not with words"}: ` +
          `that of ${query} has ${grouped(whole.hidden_size)} numbers and length ${long(states?.at(-1))}.`,
        isHandedOn ? { view: "journey", part: "decoder", journey_stop: "cross" } : { view: "embeddings" },
        isHandedOn ? "Go on in the decoder" : "Embeddings: texts as points"];
    }
    const isMask = kind === "encoder";
    const norm = isMask ? "The head for masked words transforms the vector, then "
      : nodes.has("ln_final.hook_out") ? `A last ${NORMS[whole.norm]}, then ` : "";
    const cap = whole.final_logit_softcap ? ` Logits are capped at ±${format(whole.final_logit_softcap, 4)}.` : "";
    const said = ({ token, probability, logit }) => `${quoted(token)} ${percent(probability)} (logit ${format(logit)})`;
    return [isMask ? "The word in its place" : "The next word",
      `${norm}W_U gives each of the ${grouped(capabilities.vocab_size)} tokens a logit, and softmax makes probabilities ` +
        `of them.${cap} ${isMask ? "In the place of" : "After"} ${query}: ${
          next ? next.temperatures[0].tokens.slice(0, 2).map(said).join(", then ") : "…"}.`,
      { view: "next" }, "Next token: the whole vocabulary"];
  },
};

const ROUTES = { why: "/v1/explain", moves: "/v1/contributions", lens: "/v1/lens", next: "/v1/next", embeddings: "/v1/embeddings" };

/** to: the selection of the link, null if the model lacks the view. */
export function stopsOf(film) {
  const { data: { tokens, query, key, explain, rows, nodes, stackName, whole, capabilities }, products, rowWeights } = film;
  const number = (name) => explain.arrays[name]?.data[key];
  const words = {
    query: quoted(tokens[query]), key: quoted(tokens[key]), weight: key < products.numKeys ? rowWeights[key] : 0,
    dot: number("dots"), scaled: number("scaled"), capped: number("capped"), bias: number("position_bias"), score: number("scores"),
  };
  const isThere = {
    norm: rows["ln1.hook_out"], add: nodes.has("hook_resid_mid"), cross: stackName === "decoder" && whole.cross_attention,
  };
  return Object.entries(STOPS).filter(([id]) => isThere[id] ?? !(id in isThere)).map(([id, make]) => {
    const [title, says, to, link] = make(film, words);
    const route = ROUTES[to.view];
    return { id, title, says, link, to: route && lackOf(capabilities, route) ? null : to };
  });
}
