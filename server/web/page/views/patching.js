// Patching: a vector of one text replaces a vector of another text; the prediction may follow it.
import { html, useMemo } from "../core/html.js";
import { clamp, shownToken, textsOf, useCapabilities, useTokens } from "../core/model.js";
import { format, indices, percent, within } from "../core/numbers.js";
import { select, useSelection } from "../core/state.js";
import { Bars } from "../parts/bars.js";
import { Choices, Select } from "../parts/choices.js";
import { Answer, Problem, Progress } from "../parts/problem.js";
import { DelayedText } from "../parts/shared_bar.js";
import { Term } from "../parts/term.js";
import { Card } from "../parts/tools.js";
import { Grid } from "./patching/grid.js";
import { useEnds, useMeasured } from "./patching/measure.js";
import { Words, aligned } from "./patching/words.js";

const PLACES = {
  stream: ["residual stream", "hook_resid_post", "vector after"],
  attention: ["attention output", "hook_attn_out", "attention output of"],
  mlp: ["MLP output", "hook_mlp_out", "MLP output of"],
  head: ["one head", "attn.hook_z", "output of head"],
};
const EXAMPLES = [
  ["The Eiffel Tower is in the city of", "The Colosseum is in the city of"],
  ["When Mary and John went to the store, John gave a drink to", "When Mary and John went to the store, Mary gave a drink to"],
];

const SHOWN = 5; // words

export function View() {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const end = capabilities.kind === "encoder" ? ` ${/roberta|mpnet/.test(capabilities.family) ? "<mask>" : "[MASK]"}.` : "";
  const examples = EXAMPLES.map((pair) => pair.map((text) => text + end));
  const { patching_a: a, patching_b: b } = selection;
  const texts = a || b ? [a, b] : examples[0];
  const tokens = texts.map((text) => useTokens(text));
  const isRead = tokens.every(({ ids, loading }) => ids.length > 0 && !loading);
  const inputs = texts.map((text) => (isRead ? textsOf({ ...selection, text }, capabilities) : null));
  const { ends, answers } = useEnds(inputs);
  const all = [...tokens, ...answers];
  const { error, retry } = all.find((one) => one.error) ?? {};
  return html`<div class="patching">
    <p class="hint"><${Term} of="activation patching">Activation patching<//> finds the place of a fact. Put a vector of one text in
      the other text, at the same layer: does the prediction follow?</p>
    <${Texts} texts=${texts} examples=${examples} />
    ${texts.includes("") && html`<p class="lack">Write both texts.</p>`}
    <${Problem} error=${error} retry=${retry} />
    <${Progress} active=${all.some(({ loading }) => loading)} label="Reading both texts…" />
    ${ends && (ends.apart[0] > ends.apart[1]
      ? html`<${Patch} key=${JSON.stringify(texts)} inputs=${inputs} tokens=${tokens} ends=${ends} />`
      : html`<p class="lack">The model predicts the same after both texts. Write texts with different continuations.</p>`)}
  </div>`;
}

function Texts({ texts: [a, b], examples }) {
  const set = ([one, other]) =>
    select({ patching_a: one, patching_b: other, patching_source: null, patching_target: null }, { remember: true });
  return html`<div class="text-fields">
    <${DelayedText} label="Text A" value=${a} onText=${(text) => set([text, b])} />
    <${DelayedText} label="Text B" value=${b} onText=${(text) => set([a, text])} />
    <${Select} label="Examples" value="" onPick=${(i) => set(examples[i])}
      options=${[["", "…"], ...examples.map((pair, i) => [i, pair.join(" / ")])]} /></div>`;
}

/** In the encoder if there are two stacks. */
function Patch({ inputs, tokens, ends }) {
  const { patching_what: what, patching_side: side, patching_source, patching_target, layer: wanted, head } = useSelection();
  const { kind, points, stacks } = useCapabilities();
  const [stack, prefix] = kind === "encoder-decoder" ? ["encoder", "encoder."] : [kind, ""];
  const point = `${prefix}${PLACES[what][1]}`;
  const { layers } = points.find((one) => one.stack === stack && one.short === point);
  const { num_heads: numHeads, causal } = stacks[stack];
  const { columns, first } = useMemo(() => aligned(tokens[0].ids, tokens[1].ids), [tokens[0].ids, tokens[1].ids]);
  const pairs = columns.slice(causal ? first : 0).filter((one) => !one.includes(null)); // before, both vectors are equal
  const differing = pairs.filter(([, , isSame]) => !isSame);
  const usual = differing[Math.floor(differing.length / 2)] ?? pairs.at(-1) ?? columns.at(-1);
  const [from, into] = side === "a" ? [0, 1] : [1, 0];
  const at = (chosen, text) => clamp(chosen ?? usual[text] ?? 0, tokens[text].ids.length);
  const isWhole = what === "head" && patching_source === null; // at all tokens until one is chosen
  const [source, target] = isWhole ? [from, into].map((text) => pairs.map((one) => one[text]))
    : [at(patching_source, from), at(patching_target, into)];
  const layer = layers.findLast((one) => one <= clamp(wanted, layers.at(-1) + 1)) ?? layers[0];
  const patch = { layer, head: clamp(head, numHeads), source, target };
  const bodyOf = (other) => {
    const one = { ...patch, ...other };
    const heads = what === "head" ? { head: one.head } : {};
    const taken = { input: inputs[from].input, positions: one.source };
    const change = { point, layer: one.layer, ...heads, positions: one.target, op: "patch", from: taken };
    return { ...inputs[into], num_tokens: ends.count, interventions: [change] };
  };
  const list = (label, field, values) => html`<${Select} label=${label} value=${patch[field]}
    options=${values.map((one) => [one, one])} onPick=${(value) => select({ [field]: Number(value) })} />`;
  const take = (patching_what) => select({ patching_what, ...(patching_what === "head" ? { patching_source: null } : {}) });
  const shared = { tokens, ends, patch, from, into };
  return html`<${Words} columns=${columns} ...${shared} />
    <div class="toolbar">
      <${Choices} label="Move" value=${what} onPick=${take} choices=${Object.entries(PLACES).map(([name, [title]]) => [name, title])} />
      ${list("Layer", "layer", layers)}
      ${what === "head" && list("Head", "head", indices(numHeads))}
    </div>
    <div class="columns">
      <${Effect} ...${shared} body=${bodyOf()} says=${`${PLACES[what][2]} ${what === "head" ? `${patch.head} of ` : ""}layer ${layer}`} />
      ${pairs.length > 0 ? html`<${Grid} ...${shared} pairs=${pairs} layers=${layers} bodyOf=${bodyOf}
        numHeads=${what === "head" ? numHeads : 0} />` : html`<p class="lack">No tokens correspond after the first difference.</p>`}
    </div>`;
}

function Effect({ tokens, ends, patch, from, into, says, body }) {
  const answer = useMeasured([body], ends);
  const word = (text, position) => html`<code class="token">${shownToken(tokens[text].tokens[position])}</code>`;
  const [a, b] = ends.words.map(({ name }) => html`<b>${shownToken(name)}</b>`);
  const bars = (caption, likeliest) => html`<${Bars} caption=${caption} columns=${["word", "chance"]} largest=${1}
    write=${percent} rows=${likeliest.slice(0, SHOWN).map(({ token, probability: value }) => ({ name: shownToken(token), value }))} />`;
  return html`<${Card} title="One patch" copy=${{ route: "v1/next", body }}>
    <p>Text ${"AB"[into]} is read again, and the ${says}${" "}
      ${Array.isArray(patch.target) ? "at all tokens from the first difference on is replaced by the one"
        : html`at ${word(into, patch.target)} is replaced by the one at ${word(from, patch.source)}`} in text ${"AB"[from]}.</p>
    <${Answer} answer=${answer} minHeight="13rem">${([{ share, tokens: patched }]) => {
      const at = `${100 * within(share, 0, 1)}%`;
      return html`<div class="gauge"><span>as B: ${b}</span><span>as A: ${a}</span>
          <i style=${{ width: at }}></i><output style=${{ left: at }}>${format(share, 2)}</output></div>
        <div class="patching-bars">${bars("Text B", ends.likeliest[1])}${bars(`Text ${"AB"[into]}, patched`, patched)}${
          bars("Text A", ends.likeliest[0])}</div>`;
    }}<//>
  <//>`;
}
