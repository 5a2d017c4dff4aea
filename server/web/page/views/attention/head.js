// One head: its matrix, its words with lines, and what the chosen word looks at. All follow what is pointed at.
import { html, useMemo, useRef } from "../../core/html.js";
import { shownToken } from "../../core/model.js";
import { format } from "../../core/numbers.js";
import { select, useSelection } from "../../core/state.js";
import { useStore } from "../../core/store.js";
import { Bars } from "../../parts/bars.js";
import { Choices } from "../../parts/choices.js";
import { ColourScale, Matrix } from "../../parts/matrix.js";
import { CopyMenu, SaveMenu } from "../../parts/tools.js";
import { largest, rowOf, rowSum, transposed } from "./numbers.js";
import { Words, isInColumns, sideOf } from "./words.js";

const NUM_BARS = 10;
const LARGEST_CELL = 44; // CSS pixels
const NOUNS = { pattern: "weight", norm: "length added", scores: "score", dots: "q·k" };

/** `pointed`: the store of what is pointed at, {query, key} or null, either of them null too. */
export function HeadMatrix({ grid, selected, pointed, name, request, children }) {
  const { attention_orientation: orientation, attention_shade: shade } = useSelection();
  const hovered = useStore(pointed);
  const picture = useRef(null);
  const isTurned = orientation === "columns";
  const { queries, keys, shown } = grid;
  const isRooted = shade === "root" && grid.scale === "sequential";
  const values = useMemo(() => {
    const shaded = isRooted ? shown.map((value) => Math.sqrt(value * grid.high)) : shown; // 0 and the largest stay in place
    return isTurned ? transposed(shaded, queries.length, keys.length) : shaded;
  }, [grid, isTurned, isRooted]);
  const placeOf = (pair) => pair && (isTurned ? { row: pair.key, column: pair.query } : { row: pair.query, column: pair.key });
  const pairOf = (cell) => cell && (isTurned ? { query: cell.column, key: cell.row } : { query: cell.row, key: cell.column });
  const axes = isTurned
    ? { rowNames: keys, columnNames: queries, rowTitle: "key", columnTitle: "query", rowColour: "key", columnColour: "query" }
    : { rowNames: queries, columnNames: keys, rowTitle: "query", columnTitle: "key" };
  const [chosen, over] = [useMemo(() => placeOf(selected), [selected, isTurned]), useMemo(() => placeOf(hovered), [hovered, isTurned])];
  const saved = { label: NOUNS[grid.kind], array: { data: grid.values, shape: [queries.length, keys.length] }, rows: queries, columns: keys };
  return html`<section class="card">
    <header><h2>${name}</h2>
      <${CopyMenu} ...${request} />
      <${SaveMenu} picture=${picture} name=${name.replace(/\W+/g, "-").toLowerCase()} arrays=${[saved]} />
    </header>
    ${children}
    <div class="shades"><${ColourScale} low=${grid.low} high=${grid.high} kind=${grid.scale} isRooted=${isRooted} masked=${gapsOf(grid)} />
      ${grid.scale === "sequential" && html`<label title="Shades by the square root: small weights are seen next to large ones.">
        <input type="checkbox" checked=${isRooted} onChange=${(event) => select({ attention_shade: event.target.checked ? "root" : "linear" })} /> deepen small ones</label>`}</div>
    <${Matrix} values=${values} ...${axes} kind=${grid.scale} low=${grid.low} high=${grid.high} handle=${picture} maxCell=${LARGEST_CELL}
      label=${`${name}: ${NOUNS[grid.kind]} of every query and key, ${queries.length} by ${keys.length}`}
      selected=${chosen} hovered=${over} onHover=${(cell) => pointed.set(pairOf(cell))} onPick=${(cell) => select(pairOf(cell))}
      describe=${(row, column) => described(grid, pairOf({ row, column }))} />
  </section>`;
}

function gapsOf({ hasMasked, hidesFirst }) {
  return [hasMasked && "masked: cannot be seen", hidesFirst && "first token: hidden"].filter(Boolean).join("; ") || null;
}

/** One cell in words: who looks at whom, the number, and what the query's row sums to. */
function described(grid, { query, key }) {
  const names = `query ${query} “${shownToken(grid.queries[query])}” → key ${key} “${shownToken(grid.keys[key])}”`;
  const value = grid.values[query * grid.keys.length + key];
  if (!Number.isFinite(grid.shown[query * grid.keys.length + key]) && !(grid.hidesFirst && key === 0)) return `${names}: masked`;
  const sum = grid.kind === "pattern" || grid.kind === "norm" ? ` · all of this query: ${format(rowSum(grid, query))}` : "";
  return `${names}: ${format(value)}${sum}`;
}

export function HeadWords({ grid, selected, pointed, name }) {
  const { attention_side: side } = useSelection();
  const hovered = useStore(pointed);
  const picture = useRef(null);
  const inColumns = isInColumns(grid);
  const keep = ({ query, key }) => select(query === null ? { key } : { query });
  return html`<section class="card">
    <header><h2>In the text</h2><${SaveMenu} picture=${picture} name=${`${name.replace(/\W+/g, "-").toLowerCase()}-text`} /></header>
    ${!inColumns &&
    html`<div class="toolbar"><${Choices} label="A word I point at" value=${side} onPick=${(value) => select({ attention_side: value })}
      choices=${[["query", "looks at others"], ["key", "is looked at"]]} /></div>`}
    <div class=${inColumns ? "" : "running-text"}>
      <${Words} grid=${grid} side=${side} selected=${selected} hovered=${hovered} handle=${picture}
        onHover=${(place) => pointed.set(place)} onPick=${keep} readout=${saidOf(grid, hovered ?? selected, side)} />
    </div>
  </section>`;
}

/** The strongest partner of what is marked, in words. */
function saidOf(grid, { query, key }, wanted) {
  if (sideOf(grid, { query, key }, wanted) === "key") return `key ${key} “${shownToken(grid.keys[key] ?? "")}” and those that look at it`;
  if (query >= grid.queries.length) return "";
  const row = rowOf(grid.shown, grid, query);
  const [best] = largest(row, 1);
  const start = `query ${query} “${shownToken(grid.queries[query])}”`;
  return best === undefined ? `${start}: nothing yet` : `${start} → most: key ${best} “${shownToken(grid.keys[best])}” ${format(row[best])}`;
}

/** The largest numbers of one query as bars; follows what is pointed at. */
export function TopKeys({ grid, selected, pointed }) {
  const hovered = useStore(pointed);
  const query = Math.min((hovered ?? selected).query ?? selected.query, grid.queries.length - 1);
  const chosenKey = hovered?.key ?? selected.key;
  const row = rowOf(grid.shown, grid, query);
  const places = largest(row, NUM_BARS);
  const rows = places.map((key) => ({ key, name: shownToken(grid.keys[key]), note: String(key), value: row[key], isOn: key === chosenKey }));
  return html`<section class="card top-keys">
    <h2>“${shownToken(grid.queries[query])}” <span class="query">(${query})</span> looks at</h2>
    <${Bars} rows=${rows} columns=${["key", NOUNS[grid.kind], "position"]} largest=${grid.scale === "diverging" ? undefined : grid.high}
      onPick=${(index) => select({ query, key: places[index] })} />
    ${grid.kind === "pattern" && html`<p class="hint">These ${places.length} hold ${format(places.reduce((sum, key) => sum + row[key], 0))} of ${format(rowSum(grid, query))}${grid.hidesFirst ? "; the first token, hidden, is in the sum" : ""}.</p>`}
  </section>`;
}
