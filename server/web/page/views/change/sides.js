// A view of a comparison: one side, or both next to each other, below the components of the network that differ most.
import { sideNames, sidesOfRequest } from "../../core/compare.js";
import { useLook } from "../../core/fetching.js";
import { html } from "../../core/html.js";
import { Capabilities, inputOf, useCapabilities } from "../../core/model.js";
import { useOther } from "../../core/models.js";
import { descending, format } from "../../core/numbers.js";
import { canShowBoth, comparesModels } from "../../core/seen.js";
import { Side, select, useSelection } from "../../core/state.js";
import { Answer } from "../../parts/problem.js";

const NUM_LISTED = 8; // components
const UNLIKE = "The models have different layers, heads or tokens. They cannot be subtracted; show them side by side.";
const ABOUT = "Of the outputs at the chosen token: the length of their difference, divided by the sum of their lengths.";

export function Sides({ view, View }) {
  const selection = useSelection();
  const own = useCapabilities();
  const isOfModels = comparesModels(selection);
  const other = useOther(isOfModels ? selection.change_model : "");
  const { change_show: show } = selection;
  const second = !isOfModels ? own : other.isStale ? null : other.data; // stale: of the model before
  const side = (name) => {
    const capabilities = name === "before" ? own : second;
    if (!capabilities) return html`<${Answer} answer=${{ ...other, data: null }} />`;
    const lack = view.lacks?.(capabilities);
    return html`<${Side.Provider} value=${name}><${Capabilities.Provider} value=${capabilities}>
      ${lack ? html`<p class="lack">${lack}</p>` : html`<${View} />`}<//><//>`;
  };
  if (!second || !canShowBoth(view.id) || !["both", "difference"].includes(show)) return side(show);
  const isAlike = ["vocab_size", "num_layers", "num_heads", "head_dim", "hidden_size"].every((size) => own[size] === second[size]);
  const most = isAlike ? html`<${MostDifferent} />` : html`<p class="lack">${UNLIKE}</p>`;
  if (show === "difference") return [most, isAlike && side(show)];
  return html`${most}<div class="both">${sideNames(selection).map((name, i) => html`<section key=${i} aria-label=${name}>
    <h2>${name}</h2>${side(["before", "after"][i])}</section>`)}</div>`;
}

/** Of two stacks: the decoder's. */
function MostDifferent() {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const sides = sidesOfRequest(inputOf({ ...selection, change_show: "difference" }, capabilities));
  const asked = { points: ["attn.hook_z", "hook_mlp_out"], layers: "all", positions: selection.query, dtype: "float32" };
  const route = sides.other && selection.text !== "" ? "v1/trace" : null;
  const [a, b] = [sides.other, sides.own].map((input) => useLook(route, { ...input, ...asked }));
  if (!route || a.error || b.error) return null; // the view shows the same problem
  const found = a.entry && b.entry ? componentsOf(a.entry, b.entry) : [];
  return html`<div class="toolbar most-different" role="group" aria-label="Largest differences" aria-busy=${a.loading || b.loading}>
    <span>Largest differences</span>${found.map(([apart, name, at]) => html`<button
      onClick=${() => select(at)}>${name} <b class="number">${format(apart, 2)}</b></button>`)}
    <span class="hint">${ABOUT}</span></div>`;
}

function componentsOf(a, b) {
  const all = Object.entries(a.arrays).flatMap(([point, { data, shape, layer }]) => {
    const count = shape.length > 2 ? shape.at(-2) : 1; // heads, or the MLP
    return Array.from({ length: count }, (_, head) => {
      const size = data.length / count;
      const [one, other] = [data, b.arrays[point].data].map((array) => array.subarray(head * size, (head + 1) * size));
      const apart = Math.hypot(...one.map((value, i) => value - other[i])) / (Math.hypot(...one) + Math.hypot(...other) || 1);
      return shape.length > 2 ? [apart, `layer ${layer} head ${head}`, { layer, head }] : [apart, `layer ${layer} MLP`, { layer }];
    });
  });
  return Array.from(descending(all.map(([apart]) => apart)).subarray(0, NUM_LISTED), (i) => all[i]);
}
