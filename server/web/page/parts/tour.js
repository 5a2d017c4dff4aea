// A short walk through the first views, on whatever model is served.
import { html } from "../core/html.js";
import { Store, useStore } from "../core/store.js";

const step = new Store(null);

export const startTour = () => step.set(0);

export function Tour() {
  const at = useStore(step);
  return at === null ? null : html`<aside class="tour"></aside>`;
}
