// Two neurons over a text: the relation of their activations, and their mutual information.
import { useJson, useLook } from "../../core/fetching.js";
import { html, useState } from "../../core/html.js";
import { clamp, shownToken, useCapabilities, useHead, useInput } from "../../core/model.js";
import { format, grouped, indices, sum } from "../../core/numbers.js";
import { dot } from "../../core/projection.js";
import { select, useSelection } from "../../core/state.js";
import { Field } from "../../parts/field.js";
import { Answer } from "../../parts/problem.js";
import { ToolRow } from "../../parts/tool_row.js";
import { Table } from "../../parts/table.js";
import { Card } from "../../parts/tools.js";
import { LayerPicker } from "./asks.js";
import { Dots } from "./dots.js";

const STRONGEST = 8;
const FIRST = 128; // neurons searched for an initial pair: few enough to be fast

export function Units() {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const { prefix, stack, layer } = useHead({ ofAnyBlock: true });
  const name = `${prefix}blocks.${layer}.mlp.hook_post`;
  const there = capabilities.points.find((point) => point.name === name.replace(`.${layer}.`, ".{layer}."));
  const count = stack.layer_sizes?.[layer]?.intermediate_size ?? stack.intermediate_size;
  const isChosen = selection.weights_unit !== null && selection.weights_other !== null;
  const canAsk = selection.text !== "" && there?.layers.includes(layer);
  const input = useInput();
  const trace = useLook(canAsk ? "v1/trace" : null, { ...input, points: [name] });
  const first = indices(Math.min(FIRST, count)).map(Number);
  const chosen = isChosen && pairOf(selection, count);
  const body = { ...input, point: name, units: chosen || first, num_strongest: 1 };
  const found = useJson(canAsk ? "v1/geometry" : null, body);
  const pair = chosen || (found.data?.data[0].arrays.strongest_pairs.data[0] ?? [0, 1]);
  const values = trace.entry && canAsk && (chosen || found.data) ? valuesOf(trace.entry, name, pair) : null;
  const tokens = (selection.part === "encoder" ? trace.entry?.encoder_tokens : null) ?? trace.entry?.tokens ?? [];
  return html`<${Card} title=${`Two neurons of layer ${layer}`} copy=${{ route: "v1/geometry", body }}
      save=${values && { name: "two-neurons", arrays: savedPair(values, pair) }}>
    <p>A neuron is one number of a block's MLP, h = w · x after its activation. Each dot is a word of the text: the one
      neuron's number to the right, the other's upwards. If the dots are near a line, each neuron predicts the
      other: their correlation ρ is far from 0. Mutual information is how much one number says about the other, in nats; it depends
      on the order of the numbers only, so that one far word cannot make it: here −½ ln(1 − r²), r the correlation of the ranks.</p>
    <${Pick} pair=${pair} count=${count} isChosen=${isChosen} />
    ${!there?.layers.includes(layer) && html`<p class="lack">This layer has experts, and their neurons are not available.</p>`}
    <${Answer} answer=${{ ...found, data: canAsk ? found.data : null }}>${({ data: [entry] }) =>
      html`<${Figures} entry=${entry} values=${values} tokens=${tokens} />`}<//>
    ${values && html`<${Dots} values=${values} tokens=${tokens} pair=${pair} />`}
    ${canAsk && html`<${Strongest} input=${input} name=${name} />`}
  <//>`;
}

function pairOf({ weights_unit: unit, weights_other: other }, count) {
  const [one, two] = [clamp(unit, count), clamp(other, count)];
  return [one, one === two ? (one + 1) % count : two];
}

function Pick({ pair, count, isChosen }) {
  const [weights_unit, weights_other] = pair;
  const number = (field, value) => html`<${Field} class="field-small" value=${value} inputmode="numeric"
    onTake=${(raw) => select({ weights_unit, weights_other, [field]: clamp(Math.trunc(Number(raw)) || 0, count) })} />`;
  return html`<${ToolRow}><${LayerPicker} />
    <label>Neuron ${number("weights_unit", weights_unit)}</label>
    <label>and ${number("weights_other", weights_other)}</label>
    <span class="hint">of ${grouped(count)}${isChosen ? "" : `: of the first ${Math.min(FIRST, count)}, the pair that goes together most`
    }</span><//>`;
}

function valuesOf(entry, name, pair) {
  const { data, shape } = entry.arrays[name];
  const width = shape.at(-1);
  return pair.map((unit) => Array.from({ length: data.length / width }, (_, position) => data[position * width + unit]));
}

function correlation([across, up]) {
  const mean = (list) => sum(list) / list.length;
  const [x, y] = [across, up].map((list) => list.map((value) => value - mean(list)));
  return dot(x, y) / (Math.sqrt(dot(x, x) * dot(y, y)) || 1);
}

/** Equal values share their mean place, from 0. */
function placesOf(list) {
  const sorted = Float64Array.from(list).sort();
  return list.map((value) => (sorted.indexOf(value) + sorted.lastIndexOf(value)) / 2);
}

/** Of normal numbers with the same ranks (Kruskal 1958: 2 sin(π/6 · Spearman's)). One outlier hardly changes it. */
const rankCorrelation = (values) => 2 * Math.sin((Math.PI / 6) * correlation(values.map(placesOf)));

function Figures({ entry, values, tokens }) {
  const { strongest_correlations: rho } = entry.arrays;
  if (rho.data.length === 0) {
    return html`<p class="lack">One of them has the same number at every word, so there is no mutual information.</p>`;
  }
  if (!values) return null;
  const rank = rankCorrelation(values);
  const nats = -0.5 * Math.log(Math.max(1 - rank ** 2, 1e-15));
  const isExact = 1 - rank ** 2 < 1e-12;
  const outlier = outlierOf(values, rho.data[0]);
  return html`<dl class="facts"><dt>correlation ρ</dt><dd><b class="number">${format(rho.data[0])}</b>${outlier !== null && html`,
      mostly of one word, “${shownToken(tokens[outlier] ?? "")}” (${outlier})`}; of the ranks
      ${" "}<b class="number">${format(rank)}</b></dd>
    <dt>mutual information</dt><dd>${isExact ? `too large for ${entry.num_samples} words: their order is the same`
      : html`about <b class="number">${format(nats, 2)}</b> nats, by the ranks`}; for independent neurons
      about ${format(entry.baseline.information, 2)} with this number of words (${entry.num_samples})</dd></dl>`;
}

const MUCH = 0.5; // share of the correlation from one word

function outlierOf(values, rho) {
  const without = values[0].map((_, word) =>
    Math.abs(correlation(values.map((list) => list.filter((_, i) => i !== word)))));
  const least = without.indexOf(Math.min(...without));
  return without[least] < (1 - MUCH) * Math.abs(rho) ? least : null;
}

/** Fetched on a click, because there are many pairs. */
function Strongest({ input, name }) {
  const [isAsked, setAsked] = useState(false);
  const answer = useJson(isAsked ? "v1/geometry" : null, { ...input, point: name, num_strongest: STRONGEST });
  if (!isAsked) return html`<button onClick=${() => setAsked(true)}>Find the most correlated pairs</button>`;
  const pick = ([weights_unit, weights_other]) => select({ weights_unit, weights_other }, { remember: true });
  return html`<${Answer} answer=${answer}>${({ data: [{ arrays }] }) => html`<${Table} aria-label="The most correlated pairs"
    names=${["neurons", "correlation"]} rows=${arrays.strongest_pairs.data.map((pair, i) => [
      html`<button class="plain" onClick=${() => pick(pair)}>${pair[0]} and ${pair[1]}</button>`,
      format(arrays.strongest_correlations.data[i])])} />`}<//>`;
}

const savedPair = (lists, pair) => [{ label: "numbers", lists, rows: pair.map((unit) => `neuron ${unit}`) }];
