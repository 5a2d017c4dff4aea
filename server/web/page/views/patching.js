// Patching: a vector of one text replaces a vector of another text; the prediction may follow it.
import { html, useMemo } from "../core/html.js";
import { clamp, textsOf, useCapabilities, useTokens } from "../core/model.js";
import { select, useSelection } from "../core/state.js";
import { Choices } from "../parts/choices.js";
import { Problem, Progress } from "../parts/problem.js";
import { DelayedText } from "../parts/shared_bar.js";
import { Term } from "../parts/term.js";
import { aligned } from "./patching/align.js";
import { Effect } from "./patching/effect.js";
import { Grid } from "./patching/grid.js";
import { useEnds } from "./patching/measure.js";
import { Words } from "./patching/words.js";

/** Vectors that can be patched: title, point, name in a sentence. */
const PLACES = {
  stream: ["residual stream", "hook_resid_post", "vector after"],
  attention: ["attention output", "hook_attn_out", "attention output of"],
  mlp: ["MLP output", "hook_mlp_out", "MLP output of"],
  head: ["one head", "attn.hook_z", "output of head"],
};
const EXAMPLES = [
  ["The Eiffel Tower is in the city of", "The Colosseum is in the city of"],
  ["When Mary and John went to the store, John gave a drink to", "When Mary and John went to the store, Mary gave a drink to"],
  ["The capital of France is", "The capital of Japan is"],
];

/** Examples for a model that continues texts, or that fills in its mask. */
function examplesOf({ kind, family }) {
  const end = kind === "encoder" ? ` ${/roberta|mpnet/.test(family) ? "<mask>" : "[MASK]"}.` : "";
  return EXAMPLES.map((pair) => pair.map((text) => text + end));
}

export function View() {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const examples = examplesOf(capabilities);
  const { patching_a: a, patching_b: b } = selection;
  const texts = a || b ? [a, b] : examples[0];
  const tokens = texts.map((text) => useTokens(text));
  const isRead = tokens.every(({ ids, loading }) => ids.length > 0 && !loading);
  const isMasked = capabilities.kind !== "encoder" || !isRead ||
    tokens.every((one) => one.tokens.some((token) => /^(\[MASK\]|<mask>)$/.test(token.trim())));
  const inputs = texts.map((text) => (isRead && isMasked ? textsOf({ ...selection, text }, capabilities) : null));
  const { ends, answers } = useEnds(inputs);
  const { error, retry } = [...tokens, ...answers].find((one) => one.error) ?? {};
  const isEqual = ends && !(ends.apart[0] - ends.apart[1] > 1e-6);
  return html`<div class="patching">
    <p class="hint"><${Term} of="activation patching">Activation patching<//> finds the place of a fact. Put a vector of one text in
      the other text, at the same layer: does the prediction follow?</p>
    <${Texts} texts=${texts} examples=${examples} />
    ${texts.includes("") ? html`<p class="lack">Write both texts.</p>` : !isMasked && html`<p class="lack">This model fills in masked
      words: write [MASK], or for some models &lt;mask&gt;, in both texts.</p>`}
    <${Problem} error=${error} retry=${retry} />
    <${Progress} active=${[...tokens, ...answers].some(({ loading }) => loading)} label="Reading both texts…" />
    ${isEqual ? html`<p class="lack">The model predicts the same after both texts. Write texts with different continuations.</p>`
      : ends && html`<${Patch} key=${JSON.stringify(texts)} inputs=${inputs} tokens=${tokens} ends=${ends} />`}
  </div>`;
}

function Texts({ texts: [a, b], examples }) {
  const { text } = useSelection();
  const set = ([one, other]) =>
    select({ patching_a: one, patching_b: other, patching_source: null, patching_target: null }, { remember: true });
  return html`<div class="text-fields">
    <${DelayedText} label="Text A" value=${a} onText=${(value) => set([value, b])} />
    <button type="button" aria-label="Exchange the texts" title="Exchange the texts" onClick=${() => set([b, a])}>⇄</button>
    <${DelayedText} label="Text B" value=${b} onText=${(value) => set([a, value])} />
    <label class="examples"><span class="unseen">Examples</span>
      <select value="" onChange=${({ target: { value } }) => value && set(examples[value] ?? [text, b])}>
        <option value="">Examples…</option>${examples.map((pair, i) => html`<option value=${i}>${pair.join(" / ")}</option>`)}
        <option value="shared">Text A: the text of the other views</option></select></label>
  </div>`;
}

/** The point of the chosen vector in this model, in the encoder if there are two stacks: {point, layers, numHeads, isCausal}. */
function usePlace(what) {
  const { kind, points, stacks } = useCapabilities();
  const stack = kind === "encoder-decoder" ? "encoder" : kind;
  const point = `${kind === stack ? "" : "encoder."}${PLACES[what][1]}`;
  const { num_heads: numHeads, causal: isCausal } = stacks[stack];
  return { point, layers: points.find((one) => one.stack === stack && one.short === point).layers, numHeads, isCausal };
}

/** The chosen patch: its source and target, its effect, and the grid of all patches. */
function Patch({ inputs, tokens, ends }) {
  const { patching_what: what, patching_side: side, patching_source, patching_target, layer: wanted, head } = useSelection();
  const { point, layers, numHeads, isCausal } = usePlace(what);
  const { columns, first } = useMemo(() => aligned(tokens[0].ids, tokens[1].ids), [tokens[0].ids, tokens[1].ids]);
  const pairs = columns.slice(isCausal ? first : 0).filter(([a, b]) => a !== null && b !== null); // before, vectors are equal
  const differing = pairs.filter(([, , isSame]) => !isSame);
  const usual = differing[Math.floor(differing.length / 2)] ?? pairs.at(-1) ?? columns.at(-1);
  const [from, into] = side === "a" ? [0, 1] : [1, 0];
  const at = (chosen, text) => clamp(chosen ?? usual[text] ?? 0, tokens[text].ids.length);
  const asked = clamp(wanted, layers.at(-1) + 1);
  const isWhole = what === "head" && patching_source === null; // a head is patched at all tokens until one is chosen
  const [source, target] = isWhole ? [from, into].map((text) => pairs.map((one) => one[text]))
    : [at(patching_source, from), at(patching_target, into)];
  const patch = { layer: layers.findLast((one) => one <= asked) ?? layers[0], head: clamp(head, numHeads), source, target };
  /** The request of the patch, with other fields of it. */
  const bodyOf = (other) => {
    const one = { ...patch, ...other };
    const heads = what === "head" ? { head: one.head } : {};
    const taken = { input: inputs[from].input, positions: one.source };
    const change = { point, layer: one.layer, ...heads, positions: one.target, op: "patch", from: taken };
    return { ...inputs[into], num_tokens: ends.count, interventions: [change] };
  };
  const list = (label, field, values) => html`<label>${label} <select value=${patch[field]}
    onChange=${(event) => select({ [field]: Number(event.target.value) })}>${values.map((value) =>
      html`<option value=${value} selected=${value === patch[field]}>${value}</option>`)}</select></label>`;
  const shared = { tokens, ends, patch, from, into };
  return html`<${Words} columns=${columns} ...${shared} />
    <div class="toolbar">
      <${Choices} label="Move" value=${what} onPick=${(patching_what) => select({ patching_what })}
        choices=${Object.entries(PLACES).map(([name, [title]]) => [name, title])} />
      ${list("Layer", "layer", layers)}
      ${what === "head" && list("Head", "head", Array.from({ length: numHeads }, (_, i) => i))}
    </div>
    <div class="columns">
      <${Effect} ...${shared} body=${bodyOf()}
        says=${`the ${PLACES[what][2]} ${what === "head" ? `${patch.head} of ` : ""}layer ${patch.layer}`} />
      <${Grid} ...${shared} pairs=${pairs} numHeads=${what === "head" ? numHeads : 0} layers=${layers} bodyOf=${bodyOf} />
    </div>`;
}
