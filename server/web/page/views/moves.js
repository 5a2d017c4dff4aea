// How a word moves: what words, heads and MLPs add to its vector, as arrows, or as amounts towards the next word.
import { html } from "../core/html.js";
import { useSelection } from "../core/state.js";
import { Amounts } from "./moves/amounts.js";
import { Arrows } from "./moves/arrows.js";

export function View() {
  const { moves_as: as } = useSelection();
  return as === "arrows" ? html`<${Arrows} />` : html`<${Amounts} />`;
}
