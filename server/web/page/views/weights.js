// The sizes of the parameters, the geometry of a matrix's vectors, and the circuits of a head.
import { useJson, useLook } from "../core/fetching.js";
import { html, useMemo, useRef } from "../core/html.js";
import { clamp, lackOf, stackAt, useCapabilities, useHead } from "../core/model.js";
import { format, grouped, percent } from "../core/numbers.js";
import { select, useSelection } from "../core/state.js";
import { Choices } from "../parts/choices.js";
import { Headings } from "../parts/headings.js";
import { Lines } from "../parts/lines.js";
import { Answer } from "../parts/problem.js";
import { HeadPicker } from "../parts/shared_bar.js";
import { Term } from "../parts/term.js";
import { ToolRow } from "../parts/tool_row.js";
import { CopyMenu, SaveMenu } from "../parts/tools.js";
import { Angles } from "./weights/angles.js";
import { CosineHistogram, savedCosines } from "./weights/histogram.js";
import { LowRank } from "./weights/low_rank.js";
import { WeightNumbers } from "./weights/numbers.js";
import { Positions } from "./weights/positions.js";
import { Product } from "./weights/product.js";
import { Sizes } from "./weights/sizes.js";
import { Treemap } from "./weights/treemap.js";
import { Units } from "./weights/units.js";

const SHOWN = {
  overview: ["overview", () => html`<${Census} /><${Geometry} /><${Circuits} />`],
  numbers: ["the numbers", WeightNumbers],
  product: ["x W = q, k, v", Product],
  rank: ["value down, value up", LowRank],
  angles: ["right angles", Angles],
  positions: ["positions", Positions],
  units: ["two neurons", Units],
  sizes: ["sizes of any model", Sizes],
};

export function View() {
  const { weights_show: shown } = useSelection();
  const [, Part] = SHOWN[shown];
  return html`<div class="weights-view"><${ToolRow}><${Choices} label="Show" value=${shown}
      choices=${Object.entries(SHOWN).map(([name, [title]]) => [name, title])}
      onPick=${(name) => select({ weights_show: name }, { remember: true })} /><//>
    <${Part} key=${shown} /></div>`;
}

function Census() {
  const { model } = useCapabilities();
  const route = `v1/models/${encodeURIComponent(model)}/parameters`;
  const answer = useJson(route);
  const picture = useRef(null);
  return html`<section class="card"><header><h2>Where the parameters are</h2>
      <${CopyMenu} route=${route} />
      ${answer.data && html`<${SaveMenu} picture=${picture} name="parameters" arrays=${savedCensus(answer.data)} />`}</header>
    <${Answer} answer=${answer} minHeight="28rem">${(census) => html`
      <p><b>${grouped(census.total)}</b> <${Term} of="parameter">parameters<//>, each storage counted
        once${census.tied ? "; the unembedding is the token table again, so it adds nothing" : ""}. Areas are shares.</p>
      <${Treemap} rows=${census.rows} total=${census.total} handle=${picture} />
      <details aria-label="Parameters in a table"><summary>As a table</summary>
      <table class="plain-table" aria-label="Parameters by component">
        <${Headings} names=${["component", "weight", "shape", "count", "parameters", "share", "of matrices"]} />
        <tbody>${census.rows.map((row) => html`<tr>
          <th scope="row">${row.component}</th><td><code>${row.weight}</code></td>
          <td class="number">${row.shape.map(grouped).join(" × ")}</td>
          <td class="number">${row.count}</td><td class="number">${grouped(row.parameters)}</td>
          <td class="number">${row.tied_to ? `tied to ${row.tied_to}` : percent(row.share, 3)}</td>
          <td class="number">${row.share_of_matrices === null ? "" : percent(row.share_of_matrices, 3)}</td>
        </tr>`)}</tbody>
      </table></details>`}<//>
  </section>`;
}

function savedCensus({ rows }) {
  const columns = ["count", "parameters", "share"];
  const data = Float64Array.from(rows.flatMap((row) => columns.map((name) => row[name])));
  return [{ label: "table", array: { data, shape: [rows.length, columns.length] }, columns,
    rows: rows.map(({ component, weight, shape }) => `${component} ${weight} ${shape.join(" × ")}`) }];
}

const TABLE = { value: "", label: "W_E, the token table" };

/**
 * [{value, label, stack}] of the matrices that the model may have: their names for /geometry, and the stack for the
 * layers {layer}. The server reports missing ones.
 */
function matricesOf(capabilities) {
  const names = [];
  for (const [stackName, stack] of Object.entries(capabilities.stacks)) {
    const prefix = stackName === "encoder" && capabilities.kind === "encoder-decoder" ? "encoder." : "";
    const perLayer = ["attn.W_Q", "attn.W_K", "attn.W_V", "attn.W_O", ...(stack.gated_mlp ? ["mlp.W_gate"] : []),
      "mlp.W_in", "mlp.W_out"];
    if (stack.cross_attention) perLayer.push("cross_attn.W_Q", "cross_attn.W_K", "cross_attn.W_V", "cross_attn.W_O");
    names.push(...perLayer.map((name) => ({ stack, value: `${prefix}blocks.{layer}.${name}`,
      label: `${prefix}${name}, of the layer` })));
  }
  return [TABLE, ...names];
}

function Geometry() {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const choices = matricesOf(capabilities);
  const { value: name, stack } = choices.find(({ value }) => value === selection.weights_matrix) ?? TABLE;
  const isTable = name === "";
  const layer = isTable ? null : clamp(selection.layer, stack.num_layers);
  const matrix = isTable ? "W_E" : name.replace("{layer}", layer);
  const query = new URLSearchParams({ matrix, axis: selection.weights_axis });
  const route = `v1/models/${encodeURIComponent(capabilities.model)}/geometry?${query}`;
  const answer = useJson(route);
  const picture = useRef(null);
  return html`<section class="card"><header><h2>How the vectors of a matrix relate to each other</h2>
      <${CopyMenu} route=${route} />
      ${answer.data && html`<${SaveMenu} picture=${picture} name="cosines" arrays=${savedCosines(answer.data.data[0])} />`}
    </header>
    <${ToolRow}>
      <label>Matrix <select value=${name} onChange=${(event) => select({ weights_matrix: event.target.value })}>
        ${choices.map(({ value, label }) => html`<option value=${value}>${label}</option>`)}</select></label>
      ${!isTable && html`<label>Layer <select value=${layer}
        onChange=${(event) => select({ layer: Number(event.target.value) })}>
        ${Array.from({ length: stack.num_layers }, (_, i) => html`<option value=${i}>${i}</option>`)}</select></label>`}
      <${Choices} label="Vectors" value=${selection.weights_axis} choices=${[["rows", "rows"], ["columns", "columns"]]}
        onPick=${(weights_axis) => select({ weights_axis })} />
    <//>
    <${Answer} answer=${answer} minHeight="35rem">${({ data: [entry] }) => html`<${GeometryResult} entry=${entry} handle=${picture} />`}<//>
  </section>`;
}

function GeometryResult({ entry, handle }) {
  const { cosines, baseline, spectrum } = entry;
  const facts = [
    ["cosines' spread (std)", format(cosines.std), `random directions: 1/√${entry.dimension} = ${format(baseline.std)}`],
    ["mean cosine", format(cosines.mean), "random directions: 0"],
    ["largest |cosine|", format(Math.max(Math.abs(cosines.largest), Math.abs(cosines.smallest))),
      html`random directions: about ${format(baseline.largest)}; least possible (<${Term} of="Welch bound" />):${" "}
        ${format(baseline.welch_bound)}`],
    ["furthest from orthonormal, max |WᵀW − 1|", format(entry.max_deviation_from_identity),
      "of the vectors scaled to length 1"],
    [html`<${Term} of="effective rank" />`, format(spectrum.effective_rank),
      `of at most ${Math.min(...entry.shape)}: the exponential of the entropy of the singular values`],
  ];
  return html`<p><b>${grouped(entry.num_vectors)}</b> vectors of ${grouped(entry.dimension)} numbers
    (${entry.axis} of <code>${entry.matrix}</code>, ${entry.shape.map(grouped).join(" × ")}),${" "}
      ${grouped(entry.num_compared)} pairs compared${entry.sampled ? ", drawn at random" : ", all there are"}. The
      nearer to orthogonal, the more directions a space can keep apart.</p>
    <${CosineHistogram} counts=${entry.arrays.histogram.data} dimension=${entry.dimension} handle=${handle} />
    <table class="plain-table" aria-label="Figures of the cosines"><tbody>${facts.map(([name, value, note]) =>
      html`<tr><th scope="row">${name}</th><td class="number">${value}</td><td class="hint">${note}</td></tr>`,
    )}</tbody></table>`;
}

function Circuits() {
  const lack = lackOf(useCapabilities(), "/v1/circuits");
  const { part, stack, layer, head } = useHead();
  const width = stackAt(stack, layer).head_dim;
  const body = { part, layers: layer, heads: head };
  const answer = useLook(lack ? null : "v1/circuits", body);
  const picture = useRef(null);
  if (lack) return html`<section class="card"><h2>A head's circuits</h2><p class="lack">${lack}</p></section>`;
  return html`<section class="card"><header><h2>A head's circuits: layer ${layer}, head ${head}</h2>
      <${CopyMenu} route="v1/circuits" body=${body} />
      ${answer.entry && html`<${SaveMenu} picture=${picture} name="circuits" arrays=${savedSpectra(answer.entry)} />`}</header>
    <${HeadPicker} />
    <p>A head has two <${Term} of="circuit">circuits<//>: W<sub>Q</sub>W<sub>K</sub>ᵀ for the words that it looks at,
      and W<sub>V</sub>W<sub>O</sub> for the content that it moves. Each is a
      matrix of ${stack.hidden_size} × ${stack.hidden_size}, but passes through ${width} numbers, so its rank is at most
      ${" "}${width}: its${" "}
      <${Term} of="singular value">singular values<//> show how it uses them.</p>
    <${Answer} answer=${answer} minHeight="19rem">${([entry]) => html`<${Spectra} entry=${entry} handle=${picture} />`}<//>
  </section>`;
}

const CIRCUITS = { ov: "W_V W_O", qk: "W_Q W_Kᵀ" };

const singularValues = (entry, name) => Array.from(entry.arrays[`${name}.singular_values`].data);

function savedSpectra(entry) {
  const names = Object.keys(CIRCUITS);
  const data = Float32Array.from(names.flatMap((name) => singularValues(entry, name)));
  return [{ label: "singular values", array: { data, shape: [names.length, data.length / names.length] },
    rows: Object.values(CIRCUITS) }];
}

function Spectra({ entry, handle }) {
  const series = useMemo(() => Object.entries(CIRCUITS).map(([name, title]) => {
    const rank = format(entry.arrays[`${name}.effective_rank`].data[0], 3);
    return { name: `${title}, effective rank ${rank}`, values: singularValues(entry, name) };
  }), [entry]);
  return html`<${Lines} series=${series} points=${series[0].values.map((_, i) => String(i + 1))}
    title="singular value, by size" low=${0} handle=${handle} label="Singular values of the head's two circuits" />`;
}
