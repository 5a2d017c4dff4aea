// The grid: the result of every patch, layer by position, or layer by head.
import { html, useMemo } from "../../core/html.js";
import { shownToken } from "../../core/model.js";
import { format, indices, percent } from "../../core/numbers.js";
import { select } from "../../core/state.js";
import { ColourScale, Matrix } from "../../parts/matrix.js";
import { Problem } from "../../parts/problem.js";
import { Card } from "../../parts/tools.js";
import { useGrid } from "./measure.js";

const MOST_AT_END = 12; // positions at the beginning and at the end of a long text

/** pairs: [position in A, in B]; numHeads: 0 for a grid of positions. */
export function Grid({ pairs, numHeads, layers, tokens, ends, patch, from, into, bodyOf }) {
  const place = (some) => ({ source: some.map((one) => one[from]), target: some.map((one) => one[into]) });
  const shown = pairs.filter((_, i) => i < MOST_AT_END || i >= pairs.length - MOST_AT_END);
  const columns = numHeads ? indices(numHeads).map((name, head) => ({ name, head, ...place(pairs) }))
    : shown.map((one) => {
      const [taken, own] = [tokens[from].tokens[one[from]], tokens[into].tokens[one[into]]].map(shownToken);
      return { name: taken === own ? own : `${taken}→${own}`, source: one[from], target: one[into] };
    });
  const rows = layers.map((layer) => columns.map((column) => bodyOf({ layer, ...column })));
  const { cells, error, retry } = useGrid(rows, ends, JSON.stringify(rows[0]));
  const [rowNames, columnNames] = [layers.map(String), columns.map(({ name }) => name)];
  const [word, other] = ends.words.map(({ name }) => `“${shownToken(name)}”`);
  const values = useMemo(() => Float32Array.from(rows.flatMap((all, i) => all.map((_, j) => cells[i]?.[j].share ?? NaN))),
    [cells, rows.length]);
  const describe = (row, column) => {
    const cell = cells[row]?.[column];
    return `layer ${layers[row]}, ${numHeads ? "head " : ""}${columnNames[column]}: ${cell
      ? `${format(cell.share, 3)}; ${word} ${percent(cell.chances[0])}, ${other} ${percent(cell.chances[1])}` : "not computed yet"}`;
  };
  const row = layers.indexOf(patch.layer);
  const column = columns.findIndex((one) => (numHeads ? one.head === patch.head
    : one.source === patch.source && one.target === patch.target));
  const pick = (cell) => {
    const { head, source, target } = columns[cell.column];
    const at = numHeads ? { head, patching_source: null } : { patching_source: source, patching_target: target };
    select({ layer: layers[cell.row], ...at });
  };
  const scale = { low: -1, high: 1, kind: "diverging" };
  const numDone = Object.keys(cells).length;
  const array = { data: values, shape: [rows.length, columns.length] };
  return html`<${Card} title="Every patch" aria-busy=${numDone < rows.length} save=${{ name: "patching",
      arrays: [{ label: "results", array, rows: rowNames, columns: columnNames }] }}>
    <${Problem} error=${error} retry=${retry} />
    <${Matrix} values=${values} ...${scale} square=${false} maxCell=${64} rowNames=${rowNames} columnNames=${columnNames}
      rowTitle="layer" columnTitle=${numHeads ? "head" : "token"} rowColour="accent" columnColour="accent"
      label=${`The result of every patch, ${layers.length} layers by ${columns.length} ${numHeads ? "heads" : "tokens"}`}
      selected=${column < 0 ? null : { row, column }} onPick=${pick} describe=${describe} />
    <${ColourScale} ...${scale} masked=${numDone < rows.length && `${numDone} of ${rows.length} layers are here`} />
    <p class="hint">The logit of ${word} minus the logit of ${other}, scaled: 0 as in text B, 1 as in text A.
      ${numHeads ? " Each head is patched at all tokens from the first difference on."
        : shown.length < pairs.length && " Tokens in the middle are left out."}</p>
  <//>`;
}
