// The number of parameters of a model of any shape, by component: GPT-3, the served model, or typed sizes.
import { html, useMemo, useState } from "../../core/html.js";
import { useHead, useCapabilities } from "../../core/model.js";
import { bytes, grouped, percent } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { Choices } from "../../parts/choices.js";
import { Field } from "../../parts/field.js";
import { Scrolled } from "../../parts/scrolled.js";
import { Table } from "../../parts/table.js";
import { Card } from "../../parts/tools.js";
import { Treemap } from "./treemap.js";

// The order of the fields in the address.
const FIELDS = {
  d_vocab: "tokens of the vocabulary",
  d_model: "numbers of a word's vector",
  n_layers: "blocks",
  n_heads: "heads of a block",
  d_head: "numbers of a query or key",
  d_mlp: "neurons of a block's MLP",
  n_ctx: "tokens of the context",
  n_key_heads: "heads that have keys and values of their own",
  gated: "1 if the MLP has a gate, else 0",
};
// Brown et al. 2020, arXiv:2005.14165, table 2.1.
const GPT3 = [50257, 12288, 96, 96, 128, 49152, 2048, 96, 0];
const MOST = 10_000_000;

const readSizes = (text) => {
  const numbers = text.split(",").map(Number);
  return numbers.length === GPT3.length && numbers.every((n) => Number.isInteger(n) && n >= 0 && n <= MOST) ? numbers : GPT3;
};

/** Rows as a census has them; parameters: a BigInt. */
function partsOf([vocab, model, layers, heads, head, mlp, , keyHeads, gated]) {
  const every = (component, weight, shape, ...times) => {
    const factors = [...shape, ...times];
    const parameters = factors.reduce((product, factor) => product * BigInt(factor), 1n);
    return { component, weight, shape, factors, count: times.reduce((a, b) => a * b, 1), parameters };
  };
  const rows = [
    every("embedding", "W_E", [model, vocab]),
    every("key", "W_K", [head, model], keyHeads, layers),
    every("query", "W_Q", [head, model], heads, layers),
    every("value", "W_V", [head, model], keyHeads, layers),
    every("output", "W_O", [model, head], heads, layers),
    ...(gated ? [every("gate", "W_gate", [mlp, model], layers)] : []),
    every("up", "W_in", [mlp, model], layers),
    every("down", "W_out", [model, mlp], layers),
    every("unembedding", "W_U", [vocab, model]),
  ];
  const total = rows.reduce((sum, row) => sum + row.parameters, 0n);
  return { total, rows: rows.map((row) => ({ ...row, share: total ? Number(row.parameters) / Number(total) : 0 })) };
}

export function Sizes() {
  const { weights_sizes: text } = useSelection();
  const { model, vocab_size } = useCapabilities();
  const { stack } = useHead();
  const sizes = useMemo(() => readSizes(text), [text]);
  const { rows, total } = useMemo(() => partsOf(sizes), [sizes]);
  const served = [vocab_size, stack.hidden_size, stack.num_layers, stack.num_heads, stack.head_dim,
    stack.intermediate_size, stack.max_model_len ?? 0, stack.num_kv_heads, stack.gated_mlp ? 1 : 0];
  const set = (numbers, options) => select({ weights_sizes: numbers.join(",") }, options);
  const isIt = (numbers) => numbers.join() === sizes.join();
  return html`<${Card} title="The size of any model" save=${{ name: "sizes", arrays: savedParts(rows) }}>
    <p>A model is a list of matrices. Type the sizes of one and see where its parameters are: each line multiplies the
      sizes that it names.</p>
    <div class="toolbar">
      <${Choices} label="Sizes of" value=${[GPT3, served].findIndex(isIt)} choices=${[[0, "GPT-3"], [1, model]]}
        onPick=${(place) => set([GPT3, served][place], { remember: true })} />
      ${stack.experts && html`<span class="hint">${model} has experts, which are not counted here; the overview has them.</span>`}
    </div>
    <${SizeFields} sizes=${sizes} onTake=${set} />
    <p class="total"><b>${grouped(total)}</b> parameters in all</p>
    <${Parts} rows=${rows} total=${total} />
    <${Treemap} rows=${rows.map((row) => ({ ...row, stack: "model", parameters: Number(row.parameters) }))}
      total=${Number(total)} height=${240} />
    <${Beside} sizes=${sizes} total=${total} />
  <//>`;
}

function SizeFields({ sizes, onTake }) {
  const [problem, setProblem] = useState("");
  const take = (place, raw) => {
    const number = Number(raw.replace(/[\s,\u202f]/g, ""));
    const isGood = raw.trim() !== "" && Number.isInteger(number) && number >= 0 && number <= MOST;
    setProblem(isGood ? "" : `“${raw}” is not a size; whole numbers from 0 to ${grouped(MOST)} are.`);
    if (isGood) onTake(sizes.map((old, i) => (i === place ? number : old)));
  };
  return html`<div class="size-fields">${Object.entries(FIELDS).map(([name, meaning], place) => html`<label>
      <span><code>${name}</code> <span class="hint">${meaning}</span></span>
      <${Field} value=${sizes[place]} inputmode="numeric" onTake=${(raw) => take(place, raw)} /></label>`)}</div>
    ${problem && html`<p class="lack" role="alert">${problem}</p>`}`;
}

function Parts({ rows, total }) {
  const lines = rows.map(({ component, weight, factors, parameters, share }) => [component, html`<code>${weight}</code>`,
    factors.map(grouped).join(" × "), grouped(parameters), percent(share, 3)]);
  return html`<${Scrolled} label="The parts in a table"><${Table} aria-label="Parameters of each part"
    names=${["part", "weight", "sizes multiplied", "parameters", "share"]}
    rows=${[...lines, ["in all", "", "", grouped(total), "100 %"]]} /><//>`;
}

function Beside({ sizes, total }) {
  const [, model, layers, heads, head, , context, keyHeads] = sizes;
  const cache = 2 * layers * keyHeads * head * context;
  return html`<dl class="facts">
    <dt>in memory, 16 bits a number</dt><dd>${bytes(2 * Number(total))}</dd>
    <dt>kept keys and values of one full context</dt><dd>2 × ${grouped(layers)} layers × ${grouped(keyHeads)} heads
      × ${grouped(head)} × ${grouped(context)} tokens = ${grouped(cache)} numbers, ${bytes(2 * cache)}</dd>
    <dt>weights of attention over one full context</dt><dd>${grouped(context)}² × ${grouped(heads * layers)} heads
      = ${grouped(BigInt(context) ** 2n * BigInt(heads * layers))}, half of them masked where each word looks back</dd>
    <dt>not counted</dt><dd>norms, biases, and positions: ${grouped(context)} × ${grouped(model)} = ${grouped(context * model)} if
      they are learned</dd>
  </dl>`;
}

const savedParts = (rows) => [{ label: "table", columns: ["parameters", "share"], rows: rows.map(({ weight }) => weight),
  lists: rows.map(({ parameters, share }) => [Number(parameters), share]) }];
