// The three kinds of transformers, and the components of a stack of this model.
import { html, useCallback, useRef } from "../../core/html.js";
import { counted, format, grouped } from "../../core/numbers.js";
import { fill, frame, line, tip, write } from "../../parts/ink.js";
import { Picture } from "../../parts/picture.js";
import { Term } from "../../parts/term.js";
import { SaveMenu } from "../../parts/tools.js";

const KINDS = {
  encoder: {
    title: "Encoder",
    about:
      "Every word attends to all words, before and after it. It reads text, but generates none. Its vectors are used to search and " +
      "to classify texts.",
    like: "BERT, RoBERTa, MiniLM, ModernBERT",
  },
  decoder: {
    title: "Decoder",
    about:
      "A word attends only to itself and to earlier words, so the model can predict the next word at every position and write " +
      "word by word.",
    like: "GPT-2, Llama, Gemma, Qwen, Pythia",
  },
  "encoder-decoder": {
    title: "Encoder and decoder",
    about:
      "The encoder reads the whole input in both directions. The decoder writes; each of its blocks also attends to the input.",
    like: "the first transformer (2017), T5, BART, Marian",
  },
};
const HEIGHT = 206;
const SIZE = 74;

function drawStack(context, x, y, { name, colour, isCausal, colours }) {
  const cells = 6;
  const step = SIZE / cells;
  for (let row = 0; row < cells; row += 1) {
    for (let column = 0; column < cells; column += 1) {
      const isSeen = !isCausal || column <= row;
      context.globalAlpha = isSeen ? 0.85 : 1;
      fill(context, x + column * step + 0.5, y + row * step + 0.5, step - 1, step - 1, isSeen ? colour : colours.sunk);
    }
  }
  context.globalAlpha = 1;
  frame(context, x - 3, y - 3, SIZE + 6, SIZE + 6, colours.ink, 1.5);
  write(context, name, x + SIZE / 2, y - 14, colours.ink, { weight: "600", align: "center" });
}

function drawArrow(context, x, y, toX, toY, colour) {
  const far = Math.hypot(toX - x, toY - y);
  line(context, [[x, y], [toX, toY]], colour, 2);
  tip(context, [toX, toY], [(toX - x) / far, (toY - y) / far], 7, 3.5, colour);
}

function drawKind(context, kind, { width, colours }) {
  const y = 68;
  const isPair = kind === "encoder-decoder";
  const gap = 64;
  const left = isPair ? width / 2 - SIZE - gap / 2 : (width - SIZE) / 2;
  const right = isPair ? width / 2 + gap / 2 : left;
  const caption = (text, x, at) => write(context, text, x, at, colours.muted, { align: "center" });
  const column = (x, isEncoder) => {
    const middle = x + SIZE / 2;
    const [name, colour] = isEncoder ? ["encoder", colours.key] : ["decoder", colours.query];
    drawStack(context, x, y, { name, colour, isCausal: !isEncoder, colours });
    drawArrow(context, middle, y + SIZE + 34, middle, y + SIZE + 8, colours.muted);
    caption(isEncoder ? "the text" : "the answer so far", middle, y + SIZE + 44);
    if (isEncoder && isPair) return;
    drawArrow(context, middle, y - 24, middle, 20, colours.muted);
    caption(isEncoder ? "a vector for each word" : "the next word", middle, 11);
  };
  if (kind !== "decoder") column(left, true);
  if (kind !== "encoder") column(right, false);
  if (isPair) {
    drawArrow(context, left + SIZE + 6, y + SIZE / 2, right - 6, y + SIZE / 2, colours.value);
    caption("cross", (left + SIZE + right) / 2, y + SIZE / 2 - 11);
  }
}

function Kind({ kind, isThis }) {
  const picture = useRef(null);
  const draw = useCallback((context, size) => drawKind(context, kind, size), [kind]);
  const { title, about, like } = KINDS[kind];
  return html`<section class=${isThis ? "kind this" : "kind"}>
    <header><h3>${title}${isThis ? " — this model" : ""}</h3><${SaveMenu} picture=${picture} name=${kind} /></header>
    <${Picture} draw=${draw} height=${HEIGHT} handle=${picture} label=${`${title}: ${about}`} />
    <p>${about}</p>
    <p class="hint">For example ${like}.</p>
  </section>`;
}

export const Kinds = ({ kind }) => html`<section class="card">
  <h2>The three kinds of transformers</h2>
  <p class="hint">A square shows the permitted attention: rows are queries, columns are keys. Between two stacks there is <${Term}
    of="cross-attention" />.</p>
  <div class="kinds">${Object.keys(KINDS).map((each) => html`<${Kind} key=${each} kind=${each} isThis=${each === kind} />`)}</div>
</section>`;

export const POSITIONS = {
  learned: "a learned vector, added to the embedding",
  sinusoidal: "sines, added to the embedding",
  rotary: "rotary (RoPE): queries and keys are rotated",
  relative: "relative: a bias for the distance, added to the scores",
  alibi: "ALiBi: scores fall with the distance, by a slope of each head",
};
const PLACES = {
  pre: "before each sublayer",
  post: "after each sum",
  sandwich: "before and after each sublayer",
  output: "after each sublayer",
};

export function maskWords(stack) {
  const seen = stack.causal ? "each word attends to itself and to earlier words" : "each word sees all words";
  const windows = (stack.sliding_windows ?? []).map((window, layer) => [window, layer]).filter(([window]) => window);
  if (windows.length === 0) return seen;
  const sizes = [...new Set(windows.map(([window]) => window))].map(grouped).join(", ");
  return `${seen}; in layers ${windows.map(([, layer]) => layer).join(", ")} only within ${sizes} tokens`;
}

function positionWords(stack) {
  const said = stack.positions.map((name) => POSITIONS[name]).join("; ") || "none";
  return stack.unrotated_layers ? `${said}, not in layers ${stack.unrotated_layers.join(", ")}` : said;
}

const expertWords = ({ num_experts: all, num_chosen: chosen, intermediate_size: size }) =>
  `${chosen} of ${all} experts of ${grouped(size)} neurons for each word; `;

const ofLayers = (stack, name) =>
  [...new Set(stack.layer_sizes?.map((own) => own[name]) ?? [stack[name]])].map(grouped).join(" or ");

/** If there are fewer than query heads; and the layers without attention. */
function keyHeadWords(stack) {
  const count = ofLayers(stack, "num_kv_heads");
  const first = stack.layer_sizes?.findIndex((own, layer) => own.kv_layer !== layer) ?? -1;
  const said = count === String(stack.num_heads) ? [] : [`${count} of keys and values`];
  if (first >= 0) said.push(`from layer ${first} on the keys and values of earlier layers`);
  return said.length ? ` (${said.join("; ")})` : "";
}

export function Facts({ stack }) {
  const facts = [
    ["Size", `${counted(stack.num_layers, "layer")} of ${counted(stack.num_heads, "head")}${keyHeadWords(stack)}`],
    ["Width", `${grouped(stack.hidden_size)} numbers a word, ${
      ofLayers(stack, "head_dim")} a head, ${ofLayers(stack, "intermediate_size")} neurons a layer`],
    ["Sees", maskWords(stack)],
    ["Positions", positionWords(stack)],
    ["Norms", html`<${Term} of=${stack.norm === "rmsnorm" ? "RMSNorm" : "LayerNorm"} /> ${PLACES[stack.norm_placement]}${
      stack.qk_norm && `, and of queries${stack.v_norm ? ", keys and values" : " and keys"}`}`],
    [html`<${Term} of="MLP">Feed-forward<//>`, [
      stack.experts && expertWords(stack.experts), stack.clamped_gate && "clamped and ", stack.gated_mlp && "gated, ",
      stack.activation.replace("_tanh", ""), stack.parallel_blocks && ", in parallel with the attention"].filter(Boolean).join("")],
    ["Scores", [`q·k × ${format(stack.attention_scale, 4)}`,
      stack.attn_logit_softcap && `, capped at ${format(stack.attn_logit_softcap, 4)}`,
      stack.attention_sinks && ", and a sink for each head"].filter(Boolean).join("")],
    ["Context", `${grouped(stack.max_model_len)} tokens`],
  ];
  return html`<dl class="facts">${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`;
}
