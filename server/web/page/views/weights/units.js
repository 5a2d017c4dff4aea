// Two neurons over a text: how their numbers go together, and how much one tells about the other.
import { useJson, useLook } from "../../core/fetching.js";
import { html, useCallback, useRef, useState } from "../../core/html.js";
import { clamp, inputOf, shownToken, useCapabilities, useHead } from "../../core/model.js";
import { extent, format, grouped } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { Field } from "../../parts/field.js";
import { Picture } from "../../parts/picture.js";
import { Answer } from "../../parts/problem.js";
import { CopyMenu, SaveMenu } from "../../parts/tools.js";
import { usePrefix } from "./asks.js";

const MARGIN = { left: 52, right: 16, top: 10, bottom: 34 };
const STRONGEST = 8;

export function Units() {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const prefix = usePrefix();
  const { stack, numLayers } = useHead({ ofAnyBlock: true });
  const layer = clamp(selection.layer, numLayers);
  const name = `${prefix}blocks.${layer}.mlp.hook_post`;
  const there = capabilities.points.find((point) => point.name === name.replace(`.${layer}.`, ".{layer}."));
  const count = stack.layer_sizes?.[layer]?.intermediate_size ?? stack.intermediate_size;
  const pair = [clamp(selection.weights_unit, count), clamp(selection.weights_other, count)];
  if (pair[0] === pair[1]) pair[1] = (pair[0] + 1) % count;
  const canAsk = selection.text !== "" && there?.layers.includes(layer);
  const input = inputOf(selection, capabilities);
  const trace = useLook(canAsk ? "v1/trace" : null, { ...input, points: [name] });
  const body = { ...input, point: name, units: pair, num_strongest: 1 };
  const found = useJson(canAsk ? "v1/geometry" : null, body);
  const picture = useRef(null);
  const values = trace.entry && canAsk ? valuesOf(trace.entry, name, pair) : null;
  const tokens = (selection.part === "encoder" ? trace.entry?.encoder_tokens : null) ?? trace.entry?.tokens ?? [];
  return html`<section class="card"><header><h2>Two neurons of layer ${layer}</h2><${CopyMenu} route="v1/geometry" body=${body} />
      ${values && html`<${SaveMenu} picture=${picture} name="two-neurons" arrays=${savedPair(values, pair)} />`}</header>
    <p>A neuron is one number of a block's MLP, h = w · x after its activation. Each dot is a word of the text: the one
      neuron's number to the right, the other's upwards. Where the dots lie along a line, each tells much about the other:
      their correlation ρ is far from 0, and jointly normal numbers of that ρ share −½ ln(1 − ρ²) nats, their mutual
      information.</p>
    <${Pick} layer=${layer} numLayers=${numLayers} pair=${pair} count=${count} />
    ${!there?.layers.includes(layer) && html`<p class="lack">This layer has experts, whose neurons are not handed out.</p>`}
    <${Answer} answer=${{ ...found, data: canAsk ? found.data : null }}>${({ data: [entry] }) => html`<${Figures} entry=${entry} />`}<//>
    ${values && html`<${Dots} values=${values} tokens=${tokens} pair=${pair} handle=${picture} />`}
    ${canAsk && html`<${Strongest} input=${input} name=${name} />`}
  </section>`;
}

function Pick({ layer, numLayers, pair, count }) {
  const options = Array.from({ length: numLayers }, (_, i) => html`<option value=${i}>${i}</option>`);
  const take = (field) => (raw) => select({ [field]: clamp(Math.trunc(Number(raw)) || 0, count) });
  return html`<div class="toolbar"><label>Layer <select value=${layer}
      onChange=${(event) => select({ layer: Number(event.target.value) })}>${options}</select></label>
    <label>Neuron <${Field} class="field-small" value=${pair[0]} inputmode="numeric" onTake=${take("weights_unit")} /></label>
    <label>and <${Field} class="field-small" value=${pair[1]} inputmode="numeric" onTake=${take("weights_other")} /></label>
    <span class="hint">of ${grouped(count)}</span></div>`;
}

/** [[of the one], [of the other]] by position. */
function valuesOf(entry, name, pair) {
  const { data, shape } = entry.arrays[name];
  const width = shape.at(-1);
  return pair.map((unit) => Array.from({ length: data.length / width }, (_, position) => data[position * width + unit]));
}

function Figures({ entry }) {
  const { strongest_correlations: rho, strongest_information: shared } = entry.arrays;
  if (rho.data.length === 0) return html`<p class="lack">One of them has the same number at every word: there is nothing to share.</p>`;
  return html`<dl class="facts"><dt>correlation ρ</dt><dd><b class="number">${format(rho.data[0])}</b></dd>
    <dt>mutual information</dt><dd><b class="number">${format(shared.data[0])}</b> nats; two neurons that have nothing to do with
      each other would show about ${format(entry.baseline.information)} in so few words (${entry.num_samples})</dd></dl>`;
}

function Dots({ values: [across, up], tokens, pair, handle }) {
  const [at, setAt] = useState(null);
  const spread = ([low, high]) => (high > low ? [low, high] : [low - 1, high + 1]);
  const [left, right] = spread(extent(across));
  const [low, high] = spread(extent(up));
  const xOf = (value, width) => MARGIN.left + ((value - left) / (right - left)) * (width - MARGIN.left - MARGIN.right);
  const yOf = (value, tall) => MARGIN.top + ((high - value) / (high - low)) * (tall - MARGIN.top - MARGIN.bottom);
  const identity = JSON.stringify([across, up]);
  const draw = useCallback((context, { width, height, colours }) => {
    context.strokeStyle = colours.line;
    context.strokeRect(MARGIN.left, MARGIN.top, width - MARGIN.left - MARGIN.right, height - MARGIN.top - MARGIN.bottom);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = colours.muted;
    context.textAlign = "left";
    context.fillText(format(left, 3), MARGIN.left, height - 22);
    context.textAlign = "right";
    context.fillText(format(right, 3), width - MARGIN.right, height - 22);
    context.fillText(format(high, 3), MARGIN.left - 5, MARGIN.top + 6);
    context.fillText(format(low, 3), MARGIN.left - 5, height - MARGIN.bottom - 6);
    context.textAlign = "center";
    context.fillText(`neuron ${pair[0]} →, neuron ${pair[1]} ↑`, (MARGIN.left + width) / 2, height - 8);
    context.fillStyle = colours.query;
    across.forEach((value, i) => {
      context.beginPath();
      context.arc(xOf(value, width), yOf(up[i], height), 4, 0, 2 * Math.PI);
      context.fill();
    });
  }, [identity, pair[0], pair[1]]);
  const overlay = useCallback((context, { width, height, colours }) => {
    if (at === null || at >= across.length) return;
    context.strokeStyle = colours.key;
    context.lineWidth = 2;
    context.beginPath();
    context.arc(xOf(across[at], width), yOf(up[at], height), 8, 0, 2 * Math.PI);
    context.stroke();
  }, [at, identity]);
  const nearest = (x, y, width) => across.reduce((best, value, i) => {
    const distance = Math.hypot(xOf(value, width) - x, yOf(up[i], 300) - y);
    return distance < best.distance ? { distance, i } : best;
  }, { distance: 30, i: null }).i;
  const said = (i) => `“${shownToken(tokens[i] ?? "")}” (${i}): ${format(across[i])}, ${format(up[i])}`;
  return html`<${Picture} draw=${draw} overlay=${overlay} height=${300} handle=${handle}
    label=${`Neuron ${pair[0]} against neuron ${pair[1]}, a dot for each word`} summary=${across.map((_, i) => said(i)).slice(0, 12).join("; ")}
    readout=${at === null || at >= across.length ? "" : said(at)} onPoint=${(x, y, width) => setAt(x === null ? null : nearest(x, y, width))}
    onKey=${(key) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[key];
      if (!step) return false;
      setAt(((at ?? (step > 0 ? -1 : 0)) + step + across.length) % across.length);
      return true;
    }} />`;
}

/** The pairs of the layer's neurons that go together most, asked for by a click: there are many pairs. */
function Strongest({ input, name }) {
  const [isAsked, setAsked] = useState(false);
  const answer = useJson(isAsked ? "v1/geometry" : null, { ...input, point: name, num_strongest: STRONGEST });
  if (!isAsked) return html`<button type="button" onClick=${() => setAsked(true)}>Find the pairs that share most</button>`;
  const pick = ([weights_unit, weights_other]) => select({ weights_unit, weights_other }, { remember: true });
  return html`<${Answer} answer=${answer}>${({ data: [{ arrays }] }) => html`<table class="plain-table" aria-label="Pairs that share most">
    <thead><tr><th scope="col">neurons</th><th scope="col">correlation</th><th scope="col">nats</th></tr></thead>
    <tbody>${arrays.strongest_pairs.data.map((pair, i) => html`<tr><th scope="row"><button type="button" class="plain"
        onClick=${() => pick(pair)}>${pair[0]} and ${pair[1]}</button></th>
      <td class="number">${format(arrays.strongest_correlations.data[i])}</td>
      <td class="number">${format(arrays.strongest_information.data[i])}</td></tr>`)}</tbody></table>`}<//>`;
}

function savedPair([across, up], pair) {
  const data = Float64Array.from([...across, ...up]);
  return [{ label: "numbers", array: { data, shape: [2, across.length] }, rows: pair.map((unit) => `neuron ${unit}`) }];
}
