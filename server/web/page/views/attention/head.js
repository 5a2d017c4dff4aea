// One head: its matrix, its words with lines, and the largest weights of the chosen word.
import { html, useMemo } from "../../core/html.js";
import { clamp, shownToken, stackAt, useHead } from "../../core/model.js";
import { format, largest, percent, sum } from "../../core/numbers.js";
import { transposed } from "../../core/projection.js";
import { select, useSelection } from "../../core/state.js";
import { Store, useStore } from "../../core/store.js";
import { Bars } from "../../parts/bars.js";
import { FieldChoices } from "../../parts/choices.js";
import { ColourScale, Matrix } from "../../parts/matrix.js";
import { Card } from "../../parts/tools.js";
import { NOUNS, rowOf, rowSum, sized, weightsOf } from "./numbers.js";
import { Words, isInColumns, sideOf } from "./words.js";

const NUM_BARS = 10;
const LARGEST_CELL = 44; // CSS pixels

/** The pair of the shared selection, or with the query `newest`; pointed: the store of the pair at the pointer. */
export function useMarked(grid, newest = null) {
  const { query, key } = useSelection();
  const pointed = useMemo(() => new Store(null), [grid]);
  const selected = useMemo(
    () => grid && { query: newest ?? clamp(query, grid.queries.length), key: clamp(key, grid.keys.length) },
    [grid, query, key, newest],
  );
  return { selected, pointed };
}

/** pointed: the store of {query, key} or null; either field may be null too. */
export function HeadMatrix({ grid, selected, pointed, name, request, onPick = select, children }) {
  const { attention_orientation: orientation, attention_shade: shade, attention_cells: cells } = useSelection();
  const hovered = useStore(pointed);
  const isTurned = orientation === "columns";
  const { queries, keys } = grid;
  const shown = grid.beneath ?? grid.shown;
  const isRooted = shade === "root" && grid.scale === "sequential" && cells !== "dots";
  const { stack, layer } = useHead();
  const { values, numbers, areas, marks } = useMemo(() => {
    const turned = (array) => (isTurned ? transposed(array, queries.length, keys.length) : array);
    // 0 and the largest keep their places
    const shaded = isRooted ? shown.map((value) => Math.sqrt(value * grid.high)) : shown;
    const areas = cells === "dots" && isOfScores(grid) ? turned(weightsOf(grid, stackAt(stack, layer))) : undefined;
    return { values: turned(shaded), numbers: turned(shown), areas, marks: marksOf(grid, isTurned) };
  }, [grid, isTurned, isRooted, cells]);
  const [rowSide, columnSide] = isTurned ? ["key", "query"] : ["query", "key"];
  const placeOf = (pair) => pair && { row: pair[rowSide], column: pair[columnSide] };
  const pairOf = (cell) => cell && { [rowSide]: cell.row, [columnSide]: cell.column };
  const [rowNames, columnNames] = isTurned ? [keys, queries] : [queries, keys];
  const chosen = useMemo(() => placeOf(selected), [selected, isTurned]);
  const over = useMemo(() => placeOf(hovered), [hovered, isTurned]);
  const array = { data: grid.beneath ?? grid.values, shape: [queries.length, keys.length] };
  const saved = { label: NOUNS[grid.kind], array, rows: queries, columns: keys };
  return html`<${Card} title=${name} copy=${request} save=${{ name: fileOf(name), arrays: [saved] }}>
    ${children}
    <${Shades} grid=${grid} isRooted=${isRooted} cells=${cells} />
    <${Matrix} values=${values} numbers=${numbers} areas=${areas} ...${marks} cells=${cells}
      kind=${grid.scale} low=${grid.low} high=${grid.high} maxCell=${LARGEST_CELL}
      rowNames=${rowNames} rowTitle=${rowSide} rowColour=${rowSide}
      columnNames=${columnNames} columnTitle=${columnSide} columnColour=${columnSide}
      label=${`${name}: ${NOUNS[grid.kind]} of every query and key, ${queries.length} by ${keys.length}`}
      selected=${chosen} hovered=${over}
      onHover=${(cell) => pointed.set(pairOf(cell))} onPick=${(cell) => onPick(pairOf(cell))}
      describe=${(row, column) => described(grid, pairOf({ row, column }))} />
  <//>`;
}

const isOfScores = (grid) => grid.scale === "diverging" && !grid.isDifference;

function marksOf(grid, isTurned) {
  const isMasked = (row, column) => (isTurned ? grid.isMasked(column, row) : grid.isMasked(row, column));
  const comesTo = { scores: "−∞", dots: "" }[grid.kind] ?? "0";
  const isFirst = (row, column) => grid.hidesFirst && (isTurned ? row : column) === 0;
  const gap = (row, column) => (isFirst(row, column) || !isMasked(row, column) ? "" : comesTo);
  return { gap, isStruck: grid.beneath && isMasked };
}

const fileOf = (name) => name.replace(/\W+/g, "-").toLowerCase();

function Shades({ grid, isRooted, cells }) {
  const masked = grid.beneath ? "struck out by the mask" : "masked: cannot be seen";
  const gaps = [grid.hasMasked && masked, grid.hidesFirst && "first token: hidden"].filter(Boolean);
  const deepen = (event) => select({ attention_shade: event.target.checked ? "root" : "linear" });
  return html`<div class="shades">
    <${ColourScale} low=${grid.low} high=${grid.high} kind=${grid.scale} isRooted=${isRooted} masked=${gaps.join("; ")} />
    ${cells === "dots" && html`<span>${isOfScores(grid)
      ? html`A dot's area is the attention that the softmax gives the pair, its colour the sign of the number:
        ${" "}<b class="positive">above 0</b>, <b class="negative">below</b>.`
      : `A dot's area is its number${grid.isDifference ? ", its colour the sign" : ""}.`}</span>`}
    ${grid.scale === "sequential" && cells !== "dots" &&
    html`<label title="Colours show the square root of the weight, so small weights are visible next to large ones.">
      <input type="checkbox" checked=${isRooted} onChange=${deepen} /> show small weights more strongly</label>`}
  </div>`;
}

const named = (side, tokens, position) => `${side} ${position} “${shownToken(tokens[position] ?? "")}”`;

function described(grid, { query, key }) {
  const place = query * grid.keys.length + key;
  const names = `${named("query", grid.queries, query)} → ${named("key", grid.keys, key)}`;
  const isHidden = grid.hidesFirst && key === 0;
  if (!Number.isFinite(grid.shown[place]) && !isHidden) {
    const { [place]: product } = grid.beneath ?? {};
    return `${names}: ${product === undefined ? "masked" : `${format(product)}, masked`}, so its score is −∞ and its weight 0`;
  }
  const sum = grid.scale === "sequential" ? ` · all of this query: ${format(rowSum(grid, query))}` : "";
  return `${names}: ${format(grid.values[place])}${sum}`;
}

export function HeadWords({ grid, selected, pointed, name }) {
  const { attention_side: side } = useSelection();
  const hovered = useStore(pointed);
  const inColumns = isInColumns(grid);
  const keep = ({ query, key }) => select(query === null ? { key } : { query });
  return html`<${Card} title=${`In the text${grid.isDifference ? ": where it changed" : ""}`}
      save=${{ name: `${fileOf(name)}-text` }}>
    ${!inColumns && html`<div class="toolbar"><${FieldChoices} field="attention_side" label="A word I point at"
      choices=${[["query", "looks at others"], ["key", "is looked at"]]} /></div>`}
    <div class=${inColumns ? "" : "running-text"}>
      <${Words} grid=${grid} side=${side} selected=${selected} hovered=${hovered}
        onHover=${(place) => pointed.set(place)} onPick=${keep} readout=${saidOf(grid, hovered ?? selected, side)} />
    </div>
  <//>`;
}

function saidOf(grid, { query, key }, wanted) {
  if (sideOf(grid, { query, key }, wanted) === "key") return `${named("key", grid.keys, key)} and those that look at it`;
  if (query >= grid.queries.length) return "";
  const row = rowOf(grid.shown, grid, query);
  const [best] = largest(sized(row, grid), 1);
  const start = named("query", grid.queries, query);
  const most = grid.isDifference ? "changed most" : "most";
  return best === undefined ? `${start}: nothing yet` : `${start} → ${most}: ${named("key", grid.keys, best)} ${format(row[best])}`;
}

export function TopKeys({ grid, selected, pointed }) {
  const hovered = useStore(pointed);
  const query = Math.min((hovered ?? selected).query ?? selected.query, grid.queries.length - 1);
  const chosenKey = hovered?.key ?? selected.key;
  const row = rowOf(grid.shown, grid, query);
  const places = largest(sized(row, grid), NUM_BARS);
  const rows = places.map((key) => {
    return { key, name: shownToken(grid.keys[key]), note: String(key), value: row[key], isOn: key === chosenKey };
  });
  const held = sum(places.map((key) => row[key]));
  const title = html`“${shownToken(grid.queries[query])}” <span class="query">(${query})</span> looks at${
    grid.isDifference && ": what changed most"}`;
  return html`<${Card} class="top-keys" title=${title}>
    <${Bars} rows=${rows} columns=${["key", NOUNS[grid.kind], "position"]}
      largest=${grid.scale === "diverging" ? undefined : grid.high}
      onPick=${(index) => select({ query, key: places[index] })} />
    ${grid.kind === "pattern" && !grid.isDifference &&
    html`<p class="hint">${places.length === 1 ? "This one receives" : `These ${places.length} receive`} ${
      percent(held)} of the attention${grid.hidesFirst ? "; the hidden first token receives a share too" : ""}.</p>`}
  <//>`;
}
