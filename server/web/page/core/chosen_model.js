// The model that the page shows, and its name in requests.
import { Store } from "./store.js";

/** The name that requests give to the server; "" means the only model of a server. */
export const chosenModel = new Store("");

const CAPABILITIES = "v1/capabilities"; // the only route without a body that describes a model by a parameter

export function withModel(route, body, model = chosenModel.value) {
  if (!model) return { route, body };
  if (body) return { route, body: { model, ...body } };
  return { route: route === CAPABILITIES ? `${route}?model=${encodeURIComponent(model)}` : route, body };
}
