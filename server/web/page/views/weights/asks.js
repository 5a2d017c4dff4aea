// Requests of the matrix pictures: a weight by its name, or a part of it.
import { useJson, useLook } from "../../core/fetching.js";
import { html } from "../../core/html.js";
import { lackOf, useCapabilities, useHead } from "../../core/model.js";
import { select } from "../../core/state.js";
import { Select } from "../../parts/choices.js";
import { Card } from "../../parts/tools.js";

const base = (model) => `v1/models/${encodeURIComponent(model)}/weights`;

export const useLackOfWeights = () => lackOf(useCapabilities(), "/v1/models/{model_id}/weights");

export const useWeightList = () => useJson(base(useCapabilities().model));

/** array: of a weight, or of its head, rows and columns. A null name sends no request. options: the route's query parameters. */
export function useWeight(name, options = {}) {
  const { model } = useCapabilities();
  const given = Object.entries(options).filter(([, value]) => value !== undefined);
  const query = given.length ? `?${new URLSearchParams(given)}` : "";
  const route = name === null ? null : `${base(model)}/${name}${query}`;
  const answer = useLook(route, null);
  return { ...answer, route, array: answer.entry?.arrays.weights ?? null };
}

export function WeightCard({ title, children, ...menus }) {
  const lack = useLackOfWeights();
  return lack ? html`<${Card} title=${title}><p class="lack">${lack}</p><//>` : html`<${Card} title=${title} ...${menus}>${children}<//>`;
}

export function LayerPicker() {
  const { layer, numLayers } = useHead({ ofAnyBlock: true });
  return html`<${Select} label="Layer" value=${layer} options=${numLayers} onPick=${(value) => select({ layer: value })} />`;
}
