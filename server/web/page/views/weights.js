// The sizes of the parameters, the geometry of a matrix's vectors, and the circuits of a head.
import { useJson, useLook } from "../core/fetching.js";
import { html, useMemo } from "../core/html.js";
import { clamp, lackOf, stackAt, useCapabilities, useHead } from "../core/model.js";
import { format, grouped, indices, percent } from "../core/numbers.js";
import { select, useSelection } from "../core/state.js";
import { FieldChoices, Select } from "../parts/choices.js";
import { Lines } from "../parts/lines.js";
import { Answer } from "../parts/problem.js";
import { HeadPicker } from "../parts/shared_bar.js";
import { Table } from "../parts/table.js";
import { Term } from "../parts/term.js";
import { ToolRow } from "../parts/tool_row.js";
import { Card } from "../parts/tools.js";
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
  return html`<div class="weights-view"><${ToolRow}><${FieldChoices} field="weights_show" label="Show" remember
      choices=${Object.entries(SHOWN).map(([name, [title]]) => [name, title])} /><//>
    <${Part} key=${shown} /></div>`;
}

function Census() {
  const { model } = useCapabilities();
  const route = `v1/models/${encodeURIComponent(model)}/parameters`;
  const answer = useJson(route);
  return html`<${Card} title="Where the parameters are" copy=${{ route }}
      save=${answer.data && { name: "parameters", arrays: savedCensus(answer.data) }}>
    <${Answer} answer=${answer} minHeight="28rem">${(census) => html`
      <p><b>${grouped(census.total)}</b> <${Term} of="parameter">parameters<//>, each storage counted
        once${census.tied ? "; the unembedding is the token table again, so it adds nothing" : ""}. Areas are shares.</p>
      <${Treemap} rows=${census.rows} total=${census.total} />
      <details aria-label="Parameters in a table"><summary>As a table</summary>
      <${Table} aria-label="Parameters by component"
        names=${["component", "weight", "shape", "count", "parameters", "share", "of matrices"]}
        rows=${census.rows.map((row) => [row.component, html`<code>${row.weight}</code>`, row.shape.map(grouped).join(" × "),
          row.count, grouped(row.parameters), row.tied_to ? `tied to ${row.tied_to}` : percent(row.share, 3),
          row.share_of_matrices === null ? "" : percent(row.share_of_matrices, 3)])} /></details>`}<//>
  <//>`;
}

function savedCensus({ rows }) {
  const columns = ["count", "parameters", "share"];
  return [{ label: "table", lists: rows.map((row) => columns.map((name) => row[name])), columns,
    rows: rows.map(({ component, weight, shape }) => `${component} ${weight} ${shape.join(" × ")}`) }];
}

const TABLE = { value: "", label: "W_E, the token table" };

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
  return html`<${Card} title="How the vectors of a matrix relate to each other" copy=${{ route }}
      save=${answer.data && { name: "cosines", arrays: savedCosines(answer.data.data[0]) }}>
    <${ToolRow}>
      <${Select} label="Matrix" value=${name} options=${choices.map(({ value, label }) => [value, label])}
        onPick=${(weights_matrix) => select({ weights_matrix })} />
      ${!isTable && html`<${Select} label="Layer" value=${layer} options=${stack.num_layers}
        onPick=${(value) => select({ layer: value })} />`}
      <${FieldChoices} field="weights_axis" label="Vectors" choices=${[["rows", "rows"], ["columns", "columns"]]} />
    <//>
    <${Answer} answer=${answer} minHeight="35rem">${({ data: [entry] }) => html`<${GeometryResult} entry=${entry} />`}<//>
  <//>`;
}

function GeometryResult({ entry }) {
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
    <${CosineHistogram} counts=${entry.arrays.histogram.data} dimension=${entry.dimension} />
    <${Table} aria-label="Figures of the cosines"
      rows=${facts.map(([name, value, note]) => [name, value, html`<td class="hint">${note}</td>`])} />`;
}

function Circuits() {
  const lack = lackOf(useCapabilities(), "/v1/circuits");
  const { part, stack, layer, head } = useHead();
  const width = stackAt(stack, layer).head_dim;
  const body = { part, layers: layer, heads: head };
  const answer = useLook(lack ? null : "v1/circuits", body);
  if (lack) return html`<${Card} title="A head's circuits"><p class="lack">${lack}</p><//>`;
  return html`<${Card} title=${`A head's circuits: layer ${layer}, head ${head}`} copy=${{ route: "v1/circuits", body }}
      save=${answer.entry && { name: "circuits", arrays: savedSpectra(answer.entry) }}>
    <${HeadPicker} />
    <p>A head has two <${Term} of="circuit">circuits<//>: W<sub>Q</sub>W<sub>K</sub>ᵀ for the words that it looks at,
      and W<sub>V</sub>W<sub>O</sub> for the content that it moves. Each is a
      matrix of ${stack.hidden_size} × ${stack.hidden_size}, but passes through ${width} numbers, so its rank is at most
      ${" "}${width}: its${" "}
      <${Term} of="singular value">singular values<//> show how it uses them.</p>
    <${Answer} answer=${answer} minHeight="19rem">${([entry]) => html`<${Spectra} entry=${entry} />`}<//>
  <//>`;
}

const CIRCUITS = { ov: "W_V W_O", qk: "W_Q W_Kᵀ" };

const singularValues = (entry, name) => Array.from(entry.arrays[`${name}.singular_values`].data);

const savedSpectra = (entry) => [{ label: "singular values", rows: Object.values(CIRCUITS),
  lists: Object.keys(CIRCUITS).map((name) => singularValues(entry, name)) }];

function Spectra({ entry }) {
  const series = useMemo(() => Object.entries(CIRCUITS).map(([name, title]) => {
    const rank = format(entry.arrays[`${name}.effective_rank`].data[0], 3);
    return { name: `${title}, effective rank ${rank}`, values: singularValues(entry, name) };
  }), [entry]);
  return html`<${Lines} series=${series} points=${indices(series[0].values.length, 1)}
    title="singular value, by size" low=${0} label="Singular values of the head's two circuits" />`;
}
