// From the dot product to the head's output: score, softmax, values, output.
import { classes, html, useMemo } from "../../core/html.js";
import { shownToken } from "../../core/model.js";
import { counted, descending, format, percent, sum } from "../../core/numbers.js";
import { lengthOf, rowOf } from "../../core/projection.js";
import { select } from "../../core/state.js";
import { Scrolled } from "../../parts/scrolled.js";
import { SavedStrips } from "../../parts/strips.js";
import { Term } from "../../parts/term.js";
import { Shape, Step, Word, isMasked } from "./pair.js";

const SHOWN_KEYS = 16;

export function Scale({ pair, stack }) {
  const { entry, dot, scaled, capped, positionBias, score } = pair;
  const { scale, softcap } = entry;
  const links = [
    ["q · k", format(dot), "the sum above"],
    [`× ${format(scale, 4)}`, format(scaled), scaleSays(scale, stack.head_dim)],
    capped !== undefined && [`${format(softcap, 4)} · tanh(x / ${format(softcap, 4)})`, format(capped),
      `soft cap: never beyond ±${format(softcap, 4)}`],
    positionBias !== undefined && [`+ ${format(positionBias)}`, format((capped ?? scaled) + positionBias),
      `bias for the distance ${format(pair.query - pair.key)}`],
    ["mask", pair.isMasked ? "−∞" : format(score), maskSays(pair)],
  ];
  return html`<${Step} title="From the dot to the score"
    formula=${html`score = <b id="why-score">${pair.isMasked ? "−∞ (masked)" : format(score)}</b>`}
    says=${html`Order matters: scale, then <${Term} of="soft cap" />, then position bias, then <${Term} of="mask" />. A model without one of
      them skips it.`}>
    <ol class="chain">${links.filter(Boolean).map(([what, number, note]) =>
      html`<li><code>${what}</code><b class="number">${number}</b><small>${note}</small></li>`)}</ol>
  <//>`;
}

function scaleSays(scale, size) {
  if (scale === 1) return "this model does not scale";
  if (Math.abs(scale * Math.sqrt(size) - 1) > 1e-6) return "the model's own scale";
  return `1 / √${size}: a sum of more products varies more; this undoes it`;
}

function maskSays({ entry, isMasked: masked, key, query }) {
  if (!entry.causal && entry.window === null) return "nothing is hidden: this attention sees every key";
  if (masked && entry.causal && key > query) return `key ${key} comes after query ${query}: hidden, its weight is 0`;
  if (masked) return `key ${key} is ${Math.abs(query - key)} away, outside the window of ${entry.window}: hidden`;
  return entry.causal ? `key ${key} is not after query ${query}: seen` : "inside the window: seen";
}

export function Softmax({ pair }) {
  const { entry, weight, exponential } = pair;
  const { largest_score: largest, sum_of_exponentials: whole, sum_of_weights: ones, sink, sink_exponential: sunk } = entry.softmax;
  const shown = useMemo(() => shownKeys(pair), [pair]);
  const { tail, numHidden } = shown;
  return html`<${Step} title="Softmax: from scores to weights"
    formula=${pair.isMasked ? html`weight = 0: exp(−∞) / sum`
      : html`weight = exp(<span>${format(pair.score)} − ${format(largest)}</span>) / sum
        = ${format(exponential)} / ${format(whole)} = <b id="why-weight">${format(weight)}</b>`}
    says=${html`<${Term} of="softmax">Softmax<//>: each score, less the largest one so that nothing overflows, becomes a positive number;
      divided by their sum these are weights, which sum to 1. A score that is 2 higher gives ${format(Math.E ** 2, 2)} times
        the weight. Click a key to see where its weight comes from.`}>
    <${Scrolled} label="The softmax"><table class="softmax" aria-label="From scores to weights">
      <thead><tr>
        <th scope="col">key</th><th scope="col">q · k</th><th scope="col">score</th><th scope="col">exp(score − max)</th>
        <th scope="col" colspan="2">weight</th>
      </tr></thead>
      <tbody>${shown.indices.map((key) => html`<${KeyRow} pair=${pair} index=${key} />`)}
        ${tail && html`<${SumRow} name=${counted(tail.count, "other")} exponential=${tail.exponentials}
          weight=${percent(tail.weights)} />`}
        ${sink !== null && html`<${SumRow} name="sink" score=${format(sink)} exponential=${sunk}
          weight=${percent(sunk / whole)} />`}
        ${numHidden > 0 && html`<${SumRow} name=${`${numHidden} hidden`} score="masked" exponential=${0} weight="0 %" />`}
      </tbody>
      <tfoot><${SumRow} name="sum" exponential=${whole} weight=${format(ones)} /></tfoot>
    </table><//>
  <//>`;
}

const SumRow = ({ name, score = "", exponential, weight }) =>
  html`<tr>
    <th scope="row">${name}</th><td /><td>${score}</td><td>${format(exponential)}</td><td class="share" /><td>${weight}</td>
  </tr>`;

function KeyRow({ pair, index }) {
  const { arrays } = pair.entry;
  const isHidden = isMasked(pair.entry, index);
  const isChosen = index === pair.key;
  const weight = arrays.weights.data[index];
  const token = shownToken(pair.keys[index]);
  const pick = () => select({ key: index });
  return html`<tr class=${classes(isChosen && "on", isHidden && "hidden-key")}>
    <th scope="row"><button class="plain" aria-pressed=${isChosen} aria-label=${`key ${index}, ${token}`}
      onClick=${pick}>
      <code>${token}</code> <small>${index}</small></button></th>
    <td>${format(arrays.dots.data[index])}</td><td>${isHidden ? "masked" : format(arrays.scores.data[index])}</td>
    <td>${format(arrays.exponentials.data[index])}</td>
    <td class="share"><div style=${{ width: `${weight * 100}%` }}></div></td><td>${percent(weight)}</td>
  </tr>`;
}

/** Of many keys, those with the largest weights and the chosen one; the rest in two rows. */
function shownKeys({ entry, keys, key }) {
  const seen = keys.map((_, i) => i).filter((i) => !isMasked(entry, i));
  const heaviest = [...descending(entry.arrays.weights.data)].filter((i) => !isMasked(entry, i)).slice(0, SHOWN_KEYS);
  const shown = seen.length <= SHOWN_KEYS + 8 ? seen : heaviest;
  const indices = shown.includes(key) ? shown : [...shown, key];
  const others = seen.filter((i) => !indices.includes(i));
  const tailOf = (data) => sum(others.map((i) => data[i]));
  const tail = others.length > 0 && {
    count: others.length,
    exponentials: tailOf(entry.arrays.exponentials.data),
    weights: tailOf(entry.arrays.weights.data),
  };
  return { indices, tail, numHidden: keys.length - seen.length - (isMasked(entry, key) ? 1 : 0) };
}

export function Values({ pair, stack }) {
  const rows = useMemo(
    () => [
      { name: "v", values: pair.v, tone: "value", note: `|v| ${format(lengthOf(pair.v), 3)}` },
      { name: "weight × v", values: pair.weightedV, tone: "value", note: `${format(lengthOf(pair.weightedV), 3)}` },
    ],
    [pair],
  );
  return html`<${Step} title="The value"
    formula=${html`<b class="value">v</b> = x W<sub>V</sub> <${Shape} of=${[stack.head_dim]} /><br />weight × v
      = ${format(pair.weight)} × v`}
    says=${html`The third matrix makes a <${Term} of="value" /> of <${Word} pair=${pair} side="key" />: the content that it
      passes to other words. The weight determines how much of it they receive (both strips have the same scale).`}>
    <${SavedStrips} name="value" rows=${rows} hasOneScale label="The key's value, and the value times its weight" />
  <//>`;
}

export function ValueSum({ pair }) {
  const { entry, keys, z } = pair;
  const drawn = useMemo(() => {
    const order = [...descending(entry.arrays.weights.data)].filter((key) => entry.arrays.weights.data[key] > 0);
    const indices = order.slice(0, 6);
    const rows = indices.map((key) => ({
      name: `${shownToken(keys[key])} ${percent(entry.arrays.weights.data[key])}`,
      values: rowOf(entry.arrays.weighted_v, key),
      tone: "value",
      height: 24,
    }));
    const rest = order.slice(6);
    if (rest.length) rows.push({ name: counted(rest.length, "other"), values: summed(entry, rest), tone: "muted", height: 24 });
    rows.push({ name: "z = sum", values: z, tone: "ink", height: 42, strong: true });
    return { indices, rows };
  }, [entry]);
  const place = drawn.indices.indexOf(pair.key);
  return html`<${Step} title="Sum over all keys"
    formula=${html`z = Σ weight × <b class="value">v</b> <${Shape} of=${[z.length]} />, length ${format(lengthOf(z))}`}
    says=${html`Each column is summed from top to bottom; the last strip is z, the head's weighted sum for this word.
      Click a strip to choose its key.`}>
    <${SavedStrips} name="weighted-values" rows=${drawn.rows} hasOneScale
      label="Weighted values of the keys and their sum z" selectedRow=${place < 0 ? null : place}
      onPickRow=${(row) => row < drawn.indices.length && select({ key: drawn.indices[row] })} />
  <//>`;
}

function summed(entry, keys) {
  const all = new Float64Array(entry.arrays.z.data.length);
  for (const key of keys) rowOf(entry.arrays.weighted_v, key).forEach((value, i) => (all[i] += value));
  return all;
}

export function Output({ pair, stack }) {
  const { entry, output } = pair;
  const rows = useMemo(() => [{ name: "z W_O", values: output, tone: "accent", height: 60 }], [pair]);
  const order = useMemo(() => descending(output.map(Math.abs)), [pair]);
  const largest = [...order].slice(0, 6).map((i) => `${i}: ${format(output[i], 3)}`).join(", ");
  const bias = entry.arrays.output_bias;
  return html`<${Step} title="Added to the residual stream"
    formula=${html`z W<sub>O</sub>: <${Shape} of=${[stack.head_dim]} /> · <${Shape} of=${[stack.head_dim,
      stack.hidden_size]} />
      ${" "}→ <${Shape} of=${[stack.hidden_size]} />, length <b id="why-output">${format(lengthOf(output))}</b>`}
    says=${html`The head's part of the output matrix, <${Term} of="W_O" />, turns z into ${stack.hidden_size} numbers, which are added
      to the
      vector of <${Word} pair=${pair} side="query" />, with those of the
        other ${counted(stack.num_heads - 1, "head")}${bias ? ` and a bias of length ${format(lengthOf(bias.data))}` : ""}.
          Largest: ${largest}.`}
    tools=${html`<p><button onClick=${() => select({ view: "moves", moves_as: "amounts" })}>Effect on the next word →</button></p>`}>
    <${SavedStrips} name="output" rows=${rows} label="Addition of the head to the residual stream" />
  <//>`;
}
