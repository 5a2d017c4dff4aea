// The grid: the result of every patch, layer by position, or layer by head.
import { html, useMemo, useRef, useState } from "../../core/html.js";
import { shownToken } from "../../core/model.js";
import { format, percent } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { Choices } from "../../parts/choices.js";
import { ColourScale, Matrix } from "../../parts/matrix.js";
import { Problem } from "../../parts/problem.js";
import { SaveMenu } from "../../parts/tools.js";
import { useGrid } from "./measure.js";

const MOST_COLUMNS = 24; // positions; of more, the first ones and the last ones

/** pairs: [position in A, in B] of the tokens that can be patched; numHeads: 0 for a grid of positions. */
export function Grid({ pairs, numHeads, layers, tokens, ends, patch, from, into, bodyOf }) {
  const { patching_measure: measure } = useSelection();
  const [hovered, setHovered] = useState(null);
  const picture = useRef(null);
  const places = pairs.length > MOST_COLUMNS ? [...pairs.slice(0, MOST_COLUMNS / 2), ...pairs.slice(-MOST_COLUMNS / 2)] : pairs;
  const all = { source: pairs.map((one) => one[from]), target: pairs.map((one) => one[into]) };
  const columns = numHeads && pairs.length
    ? Array.from({ length: numHeads }, (_, head) => ({ head, ...all }))
    : places.map((one) => ({ source: one[from], target: one[into] }));
  const rows = columns.length ? layers.map((layer) => columns.map((column) => bodyOf({ layer, ...column }))) : [];
  const { cells, error, retry } = useGrid(rows, ends, JSON.stringify(rows[0]));
  const nameOf = ({ head, source, target }) => {
    if (numHeads) return String(head);
    const [taken, own] = [tokens[from].tokens[source], tokens[into].tokens[target]].map(shownToken);
    return taken === own ? own : `${taken}→${own}`;
  };
  const [columnNames, rowNames] = [columns.map(nameOf), layers.map(String)];
  const [word, other] = ends.words.map(({ name }) => `“${shownToken(name)}”`);
  const isShare = measure === "share";
  const values = useMemo(() => Float32Array.from(rows.flatMap((row, i) => row.map((_, column) => {
    const cell = cells[i]?.[column];
    return cell ? (isShare ? cell.share : cell.chances[0]) : NaN;
  }))), [cells, isShare, columns.length]);
  const describe = (row, column) => {
    const cell = cells[row]?.[column];
    return `layer ${layers[row]}, ${numHeads ? "head " : ""}${columnNames[column]}: ${cell
      ? `${format(cell.share, 3)}; ${word} ${percent(cell.chances[0])}, ${other} ${percent(cell.chances[1])}` : "not computed yet"}`;
  };
  const chosen = {
    row: layers.indexOf(patch.layer),
    column: columns.findIndex((one) => (numHeads ? one.head === patch.head : one.source === patch.source && one.target === patch.target)),
  };
  const pick = ({ row, column }) => {
    const { head, source, target } = columns[column];
    const at = numHeads ? { head, patching_source: null } : { patching_source: source, patching_target: target };
    select({ layer: layers[row], ...at });
  };
  const scale = { low: isShare ? -1 : 0, high: 1, kind: isShare ? "diverging" : "sequential" };
  const numDone = Object.keys(cells).length;
  const array = { data: values, shape: [rows.length, columns.length] };
  return html`<section class="card patching-grid">
    <header><h2>Every patch</h2>
      <${Choices} label="" value=${measure} onPick=${(patching_measure) => select({ patching_measure })}
        choices=${[["share", "logit difference"], ["chance", `probability of ${word}`]]} />
      <${SaveMenu} picture=${picture} name="patching" arrays=${[{ label: "results", array, rows: rowNames, columns: columnNames }]} /></header>
    <${Problem} error=${error} retry=${retry} />
    ${rows.length === 0 ? html`<p class="lack">No tokens correspond after the first difference.</p>` : html`
    <${Matrix} values=${values} ...${scale} square=${false} maxCell=${64} handle=${picture} rowNames=${rowNames} columnNames=${columnNames}
      rowTitle="layer" columnTitle=${numHeads ? "head" : "token"} rowColour="accent" columnColour="accent"
      label=${`The result of every patch, ${layers.length} layers by ${columns.length} ${numHeads ? "heads" : "tokens"}`}
      selected=${chosen.row < 0 || chosen.column < 0 ? null : chosen} hovered=${hovered} onHover=${setHovered} onPick=${pick}
      describe=${describe} />
    <${ColourScale} ...${scale} masked=${numDone < rows.length && `${numDone} of ${rows.length} layers are here`} />
    <p class="hint">${isShare ? `The logit of ${word} minus that of ${other}, scaled: 0 as in text B, 1 as in text A.`
      : `The probability of ${word} after each patch.`}
      ${numHeads ? " Each head is patched at all tokens from the first difference on."
      : places === pairs ? "" : ` The first and the last ${MOST_COLUMNS / 2} tokens.`}</p>`}
  </section>`;
}
