// How a word moves: the additions of words, heads and MLPs to its vector, as arrows, or as amounts towards the next word.
import { html } from "../core/html.js";
import { useSelection } from "../core/state.js";
import { Amounts } from "./moves/amounts.js";
import { Arrows } from "./moves/arrows.js";

export function View() {
  const { moves_as: as } = useSelection();
  return as === "arrows" ? html`<${Arrows} />` : html`<${Amounts} />`;
}
