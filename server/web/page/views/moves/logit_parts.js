// A logit as the sum of the outputs of all components: embedding, heads, mlps, bias.
import { html, useMemo } from "../../core/html.js";
import { format, sum } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { FieldChoices } from "../../parts/choices.js";
import { Card } from "../../parts/tools.js";
import { Waterfall } from "../../parts/waterfall.js";
import { largestFirst } from "./who.js";

const SHOWN = 14;
const MODULES = [["cross_attn", "cross"], ["attn", "attn"], ["hook_attn_out", "attn"], ["hook_mlp_out", "mlp"],
  ["hook_per_layer_out", "of tokens"]];

/** A component's {layer, title, group}; those of one group are one in the sums by layer. */
function readName(name) {
  const found = /^(?:decoder\.)?blocks\.(\d+)\.(.*)$/.exec(name);
  if (!found) {
    const plain = name.replace(/^decoder\./, "").replace(/^hook_/, "");
    return { layer: null, title: plain, group: plain };
  }
  const [layer, rest] = [Number(found[1]), found[2]];
  const head = /^(cross_)?attn\.head\.(\d+)$/.exec(rest);
  const module = MODULES.find(([begin]) => rest.startsWith(begin))?.[1] ?? (/^hook_resid.*change$/.test(rest) ? "change" : "norm");
  const group = `${module} ${layer}`;
  if (head) return { layer, title: `${group}.${head[2]}`, group, head: Number(head[2]) };
  // b_O and the biases of norms keep their names
  return { layer, title: rest.startsWith("hook_") ? group : `${rest.split(".").join(" ")} ${layer}`, group };
}

export const partsOf = ({ arrays: { components: { data } }, component_names: columns }) =>
  ({ label: "parts of the logit", array: { data, shape: [data.length] }, rows: ["part"], columns });

export function LogitParts({ entry }) {
  const { contributions_parts: parts } = useSelection();
  const values = entry.arrays.components.data;
  const steps = useMemo(() => (parts === "layers" ? byGroup(entry) : byComponent(entry)), [entry, parts]);
  const whole = sum(values);
  const pick = ({ layer, head }) => Number.isInteger(layer) && select(Number.isInteger(head) ? { layer, head } : { layer });
  return html`<${Card} title="The logit, part by part" save=${{ name: "logit-parts", arrays: [partsOf(entry)] }}
      aside=${html`<${FieldChoices} field="contributions_parts" label="Parts"
        choices=${[["layers", "by layer"], ["largest", "largest first"]]} />`}>
    <p class="hint">The last vector is the sum of all that was added to it, so the logit is a sum too, with the scale of the
      final norm taken as it is.</p>
    <${Waterfall} steps=${steps} total=${{ name: entry.versus || entry.isDifference ? "difference" : "logit", value: whole }}
      label="Parts of the logit and their sum" onPick=${pick} />
    <p class="hint">Sum of all ${values.length} parts: <b id="logit-sum">${format(whole)}</b>${entry.versus &&
      ", the target's logit less the other's"}.${" "}
      ${entry.isDifference && "Of each part: how much more it adds than it did. "}
      ${!entry.isDifference && html`<${Rest} entry=${entry} />`}</p>
  <//>`;
}

const Rest = ({ entry }) => html`${entry.final_softcap && `The model then caps logits at ±${format(entry.final_softcap, 4)}. `}
      The rest, to ${entry.versus ? "the two logits" : "the logit"} that the model itself has: at
      most ${format(entry.difference, 2)}${entry.versus && " each"}, from the precision it computes in.`;

function byGroup(entry) {
  const groups = new Map();
  entry.component_names.forEach((name, i) => {
    const { group, layer } = readName(name);
    const step = groups.get(group) ?? { name: group, layer, value: 0 };
    step.value += entry.arrays.components.data[i];
    groups.set(group, step);
  });
  return [...groups.values()];
}

const byComponent = ({ arrays, component_names: names }) => largestFirst(names.map((name, i) => {
  const { title, layer, head } = readName(name);
  return { name: title, layer, head, value: arrays.components.data[i] };
}), SHOWN);
