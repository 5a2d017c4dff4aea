// One head: its matrix, its words with lines, and the largest weights of the chosen word. All follow the pointer.
import { html, useMemo, useRef } from "../../core/html.js";
import { shownToken, stackAt, useHead } from "../../core/model.js";
import { format, largest, percent } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { useStore } from "../../core/store.js";
import { Bars } from "../../parts/bars.js";
import { Choices } from "../../parts/choices.js";
import { ColourScale, Matrix } from "../../parts/matrix.js";
import { CopyMenu, SaveMenu } from "../../parts/tools.js";
import { NOUNS, rowOf, rowSum, sized, transposed, weightsOf } from "./numbers.js";
import { Words, isInColumns, sideOf } from "./words.js";

const NUM_BARS = 10;
const LARGEST_CELL = 44; // CSS pixels

/** `pointed`: the store of the pair at the pointer, {query, key} or null; either field may be null too. */
export function HeadMatrix({ grid, selected, pointed, name, request, children }) {
  const { attention_orientation: orientation, attention_shade: shade, attention_cells: cells } = useSelection();
  const hovered = useStore(pointed);
  const picture = useRef(null);
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
  return html`<section class="card">
    <header><h2>${name}</h2>
      <${CopyMenu} ...${request} />
      <${SaveMenu} picture=${picture} name=${fileOf(name)} arrays=${[saved]} />
    </header>
    ${children}
    <${Shades} grid=${grid} isRooted=${isRooted} cells=${cells} />
    <${Matrix} values=${values} numbers=${numbers} areas=${areas} ...${marks} cells=${cells}
      kind=${grid.scale} low=${grid.low} high=${grid.high} maxCell=${LARGEST_CELL}
      rowNames=${rowNames} rowTitle=${rowSide} rowColour=${rowSide} handle=${picture}
      columnNames=${columnNames} columnTitle=${columnSide} columnColour=${columnSide}
      label=${`${name}: ${NOUNS[grid.kind]} of every query and key, ${queries.length} by ${keys.length}`}
      selected=${chosen} hovered=${over}
      onHover=${(cell) => pointed.set(pairOf(cell))} onPick=${(cell) => select(pairOf(cell))}
      describe=${(row, column) => described(grid, pairOf({ row, column }))} />
  </section>`;
}

const isOfScores = (grid) => grid.scale === "diverging" && !grid.isDifference;

/** Marks of masked keys in the matrix: {gap(row, column), isStruck(row, column)}, see Matrix. */
function marksOf(grid, isTurned) {
  const isMasked = (row, column) => (isTurned ? grid.isMasked(column, row) : grid.isMasked(row, column));
  const comesTo = { scores: "−∞", dots: "" }[grid.kind] ?? "0";
  const isFirst = (row, column) => grid.hidesFirst && (isTurned ? row : column) === 0;
  const gap = (row, column) => (isFirst(row, column) || !isMasked(row, column) ? "" : comesTo);
  return { gap, isStruck: grid.beneath && isMasked };
}

const fileOf = (name) => name.replace(/\W+/g, "-").toLowerCase();

/** The colour scale, and whether small numbers are shown more strongly. */
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
    html`<label title="Colours by the square root, so that small weights can be seen beside large ones.">
      <input type="checkbox" checked=${isRooted} onChange=${deepen} /> show small weights more strongly</label>`}
  </div>`;
}

const named = (side, tokens, position) => `${side} ${position} “${shownToken(tokens[position] ?? "")}”`;

/** One cell in words: its query and key, the number, and the sum of the query's row. */
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
  const picture = useRef(null);
  const inColumns = isInColumns(grid);
  const keep = ({ query, key }) => select(query === null ? { key } : { query });
  return html`<section class="card">
    <header><h2>In the text${grid.isDifference && ": where it changed"}</h2>
      <${SaveMenu} picture=${picture} name=${`${fileOf(name)}-text`} /></header>
    ${!inColumns &&
    html`<div class="toolbar"><${Choices} label="A word I point at" value=${side}
      onPick=${(value) => select({ attention_side: value })}
      choices=${[["query", "looks at others"], ["key", "is looked at"]]} /></div>`}
    <div class=${inColumns ? "" : "running-text"}>
      <${Words} grid=${grid} side=${side} selected=${selected} hovered=${hovered} handle=${picture}
        onHover=${(place) => pointed.set(place)} onPick=${keep} readout=${saidOf(grid, hovered ?? selected, side)} />
    </div>
  </section>`;
}

/** The strongest partner of the marked word, in words. */
function saidOf(grid, { query, key }, wanted) {
  if (sideOf(grid, { query, key }, wanted) === "key") return `${named("key", grid.keys, key)} and those that look at it`;
  if (query >= grid.queries.length) return "";
  const row = rowOf(grid.shown, grid, query);
  const [best] = largest(sized(row, grid), 1);
  const start = named("query", grid.queries, query);
  const most = grid.isDifference ? "changed most" : "most";
  return best === undefined ? `${start}: nothing yet` : `${start} → ${most}: ${named("key", grid.keys, best)} ${format(row[best])}`;
}

/** The largest numbers of one query as bars; follows the pointer. */
export function TopKeys({ grid, selected, pointed }) {
  const hovered = useStore(pointed);
  const query = Math.min((hovered ?? selected).query ?? selected.query, grid.queries.length - 1);
  const chosenKey = hovered?.key ?? selected.key;
  const row = rowOf(grid.shown, grid, query);
  const places = largest(sized(row, grid), NUM_BARS);
  const rows = places.map((key) => {
    return { key, name: shownToken(grid.keys[key]), note: String(key), value: row[key], isOn: key === chosenKey };
  });
  const held = places.reduce((sum, key) => sum + row[key], 0);
  return html`<section class="card top-keys">
    <h2>“${shownToken(grid.queries[query])}” <span class="query">(${query})</span> looks at${
      grid.isDifference && ": what changed most"}</h2>
    <${Bars} rows=${rows} columns=${["key", NOUNS[grid.kind], "position"]}
      largest=${grid.scale === "diverging" ? undefined : grid.high}
      onPick=${(index) => select({ query, key: places[index] })} />
    ${grid.kind === "pattern" && !grid.isDifference &&
    html`<p class="hint">${places.length === 1 ? "This one receives" : `These ${places.length} receive`} ${
      percent(held)} of the attention${grid.hidesFirst ? "; the hidden first token receives a share too" : ""}.</p>`}
  </section>`;
}
