// One cell of the lens: the likeliest tokens of one layer at one position.
import { html } from "../../core/html.js";
import { shownToken, useCapabilities } from "../../core/model.js";
import { format, percent } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { Bars } from "../../parts/bars.js";
import { spaced } from "../../parts/target_field.js";
import { Term } from "../../parts/term.js";
import { cellOf } from "./grid.js";
import { stateTitle } from "./names.js";

export function Cell({ entry, query, state, side = "" }) {
  const { lens_target: target } = useSelection();
  const isEncoder = useCapabilities().kind === "encoder";
  const { words, ids, chances, entropy } = cellOf(entry, state, entry.positions.indexOf(query));
  const rows = words.map((word, k) => ({ name: spaced(word), value: chances[k], isOn: target === `#${ids[k]}` }));
  return html`<section class="card">
    <header><h2>${side && `${side}: `}${isEncoder ? "In place of" : "After"}${" "}
      <code class="word query">${shownToken(entry.tokens[query])}<sub>${query}</sub></code>:
      ${" "}${stateTitle(state, entry.layers.length)}</h2></header>
    <${Bars} rows=${rows} columns=${[isEncoder ? "word" : "next word", "probability"]} largest=${1} write=${percent} isRanked
      onPick=${(row) => select({ lens_target: `#${ids[row]}` })}
      caption="Click a word to follow it through the layers. The dot · is a space." />
    <p class="hint"><${Term} of="entropy">Entropy<//> ${format(entropy)} <${Term} of="nats" />: the uncertainty of a
      choice between ${format(Math.exp(entropy), 3)} equally likely words.</p>
  </section>`;
}
