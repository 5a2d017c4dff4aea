// The grid of words on a canvas: one row per state, one column per position; the background shows the word's probability.
import { colourOf, inkOn } from "../../core/colour.js";
import { html, useCallback, useLayoutEffect, useMemo, useRef, useState } from "../../core/html.js";
import { shownToken } from "../../core/model.js";
import { format, percent, sizeOf, within } from "../../core/numbers.js";
import { select } from "../../core/state.js";
import { ColourScale } from "../../parts/matrix.js";
import { fill, frame } from "../../parts/ink.js";
import { fillFitted, Picture, STEPS } from "../../parts/picture.js";
import { useMore } from "../../parts/scrolled.js";
import { spaced } from "../../parts/target_field.js";
import { SaveMenu } from "../../parts/tools.js";
import { stateName } from "./names.js";

const LEFT = 78;
const TOP = 26;
const CELL = { width: 46, height: 25 }; // the least width: cells grow to the box
// Names are on the canvas for saved pictures, and above it as elements that stay in place while it scrolls.
const NAMES_PLACE = { width: `${LEFT - 2}px`, marginRight: `${2 - LEFT}px`, paddingTop: `${TOP}px` };
const FONT = "12px ui-monospace, monospace";

export const SHOWN = 5;

/** One cell of the answer. With entry.skips, words without a letter or digit are left out, unless all are. */
export function cellOf(entry, state, column) {
  const [, columns, k] = entry.arrays.probabilities.shape;
  const start = (state * columns + column) * k;
  const words = entry.top_tokens[state][column];
  const all = [...words.keys()];
  const kept = entry.skips ? all.filter((place) => /[\p{L}\p{N}]/u.test(words[place])) : all;
  const places = (kept.length ? kept : all).slice(0, SHOWN);
  const of = (name) => places.map((place) => entry.arrays[name].data[start + place]);
  return { words: places.map((place) => words[place]), ids: of("ids"), chances: of("probabilities"),
    entropy: entry.arrays.entropy.data[state * columns + column] };
}

export function Grid({ entry, query, state }) {
  const [pointed, setHovered] = useState(null);
  const picture = useRef(null);
  const [states, columns] = [entry.layers.length, entry.positions.length];
  const scale = useMemo(() => scaleOf(entry), [entry]);
  const hovered = pointed && pointed.column < columns ? pointed : null; // the text may be shorter now
  const selected = useMemo(() => ({ state, column: entry.positions.indexOf(query) }), [entry, query, state]);
  const cellWidth = (width) => (width - LEFT - 4) / columns;
  const draw = useCallback(
    (context, { width, colours, mode }) => {
      const cell = cellWidth(width);
      drawHeader(context, entry, cell, colours);
      for (let row = 0; row < states; row += 1) drawRow(context, entry, row, cell, { scale, colours, mode, width });
    },
    [entry],
  );
  const overlay = useCallback(
    (context, { width, colours }) => {
      for (const [place, colour, line] of [[selected, colours.query, 3], [hovered, colours.ink, 1.5]]) {
        if (!place) continue;
        frame(context, LEFT + place.column * cellWidth(width) + 1, TOP + place.state * CELL.height + 1, cellWidth(width) - 2,
          CELL.height - 2, colour, line);
      }
    },
    [selected, hovered, columns],
  );
  const at = (x, y, width) => {
    const place = { state: Math.floor((y - TOP) / CELL.height), column: Math.floor((x - LEFT) / cellWidth(width)) };
    return x !== null && place.state >= 0 && place.state < states && place.column >= 0 && place.column < columns ? place
      : null;
  };
  const pick = (place) => select({ query: entry.positions[place.column], lens_state: place.state });
  const onKey = (key) => {
    const from = hovered ?? selected;
    const step = STEPS[key];
    if (key === "Enter" || key === " ") pick(from);
    else if (step) setHovered({ state: within(from.state + step[0], 0, states - 1),
      column: within(from.column + step[1], 0, columns - 1) });
    else return false;
    return true;
  };
  const box = useRef(null);
  useMore(box);
  useLayoutEffect(() => showColumn(box.current, selected.column, columns), [selected.column, columns]);
  return html`<div class="lens-scroll" ref=${box}>
    <ol class="lens-names" aria-hidden="true" style=${NAMES_PLACE}>${entry.layers.map((layer) =>
      html`<li style=${{ height: `${CELL.height}px` }}>${stateName(layer, states)}</li>`)}</ol>
    <div class="lens-canvas" style=${{ minWidth: `${LEFT + 4 + columns * CELL.width}px` }}>
      <${Picture} draw=${draw} overlay=${overlay} height=${TOP + states * CELL.height + 4} handle=${picture}
        label="The word that each layer would say next, at each position" summary=${inWords(entry, selected.column)}
        tip=${hovered ? said(entry, hovered) : ""} keyTip=${said(entry, hovered ?? selected)}
        tipAt=${(width) => placeIn(hovered ?? selected, cellWidth(width))}
        onPoint=${(x, y, width) => setHovered(at(x, y, width))}
          onPick=${(x, y, width) => at(x, y, width) && pick(at(x, y, width))} onKey=${onKey} />
    </div></div>
    <p class="hint lens-more"><button class="plain" onClick=${() => (box.current.scrollLeft = 0)}>← The first tokens
      are to the left</button></p>
    <div class="lens-foot"><div class="lens-said"><p class="readout" role="status">${said(entry, hovered ?? selected)}</p>
        <${ColourScale} ...${scale} /></div>
      <${SaveMenu} picture=${picture} name="lens" arrays=${savedArrays(entry)} /></div>`;
}

function showColumn(box, column, columns) {
  const width = Math.max(CELL.width, (box.clientWidth - LEFT - 4) / columns);
  const [left, right] = [(column - 1) * width, LEFT + (column + 2) * width];
  if (left < box.scrollLeft) box.scrollLeft = left;
  else if (right > box.scrollLeft + box.clientWidth) box.scrollLeft = right - box.clientWidth;
}

const placeIn = ({ state, column }, cell) => ({ x: LEFT + (column + 0.5) * cell, y: TOP + (state + 0.5) * CELL.height });

/** Of probabilities, or of the differences of one. */
function scaleOf(entry) {
  if (!entry.isDifference) return { low: 0, high: 1, kind: "sequential" };
  const size = sizeOf(entry.arrays.target_probabilities.data);
  return { low: -size, high: size, kind: "diverging" };
}

function said(entry, { state, column }) {
  if (entry.isDifference) return saidOfBoth(entry, { state, column });
  const { words, chances, entropy } = cellOf(entry, state, column);
  const list = words.map((word, k) => `${spaced(word)} ${percent(chances[k])}`).join("  ");
  const position = entry.positions[column];
  return `${stateName(state,
    entry.layers.length)} at “${shownToken(entry.tokens[position])}” (${position}): ${list}; entropy ${format(entropy)} nats`;
}

function saidOfBoth(entry, { state, column }) {
  const [before, after] = [entry.before, entry.after].map((one) => cellOf(one, state, column));
  const position = entry.positions[column];
  const changed = format(entry.arrays.target_probabilities.data[state * entry.positions.length + column]);
  return `${stateName(state, entry.layers.length)} at “${shownToken(entry.tokens[position])}” (${position}): ${
    spaced(before.words[0])} ${percent(before.chances[0])} → ${spaced(after.words[0])} ${percent(after.chances[0])}; ${
    spaced(entry.target.token)} ${changed}`;
}

function inWords(entry, column) {
  const { length } = entry.layers;
  const says = entry.layers.map((_, state) => {
    if (entry.isDifference) return saidOfBoth(entry, { state, column });
    const { words, chances } = cellOf(entry, state, column);
    return `${stateName(state, length)}: ${spaced(words[0])} ${percent(chances[0])}`;
  });
  return `After “${shownToken(entry.tokens[entry.positions[column]])}”: ${says.join("; ")}`;
}

function savedArrays(entry) {
  const [states, columns, k] = entry.arrays.probabilities.shape;
  const rows = entry.layers.map((state) => stateName(state, states));
  const tops = Float32Array.from({ length: states * columns }, (_, i) => entry.arrays.probabilities.data[i * k]);
  const names = entry.positions.map((position) => entry.tokens[position]);
  const followed = entry.arrays.target_probabilities;
  return [
    entry.isDifference ? { label: "change of the probability", array: { data: followed.data, shape: [states, columns] }, rows,
      columns: names } :
    { label: "probability of the top word", array: { data: tops, shape: [states, columns] }, rows, columns: names },
    { label: "entropy", array: { data: entry.arrays.entropy.data, shape: [states, columns] }, rows, columns: names },
  ];
}

function drawHeader(context, entry, cell, colours) {
  context.font = `600 ${FONT}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillStyle = colours.ink;
  entry.positions.forEach((position, column) => {
    fillFitted(context, spaced(entry.tokens[position]), cell - 6, LEFT + (column + 0.5) * cell, TOP / 2);
  });
}

function drawRow(context, entry, row, cell, { scale, colours, mode, width }) {
  const y = TOP + row * CELL.height;
  const isLast = row === entry.layers.length - 1;
  context.font = isLast ? `600 ${FONT}` : FONT;
  context.textBaseline = "middle";
  context.textAlign = "right";
  context.fillStyle = isLast ? colours.ink : colours.muted;
  context.fillText(stateName(row, entry.layers.length), LEFT - 6, y + CELL.height / 2);
  context.textAlign = "center";
  for (let column = 0; column < entry.positions.length; column += 1) {
    const { words, chances, ids } = cellOf(entry.after ?? entry, row, column);
    if (!words.length) continue; // not here yet
    const x = LEFT + column * cell;
    const value = entry.isDifference ? entry.arrays.target_probabilities.data[row * entry.positions.length + column] : chances[0];
    fill(context, x + 0.5, y + 0.5, cell - 1, CELL.height - 1, colourOf(value, scale.low, scale.high, scale.kind, mode));
    context.fillStyle = inkOn(value, scale.low, scale.high, scale.kind, mode);
    fillFitted(context, spaced(words[0]), cell - 6, x + cell / 2, y + CELL.height / 2);
    if (entry.isDifference && cellOf(entry.before, row, column).ids[0] !== ids[0]) {
      frame(context, x + 2.5, y + 2.5, cell - 5, CELL.height - 5, colours.ink);
    }
  }
  if (!isLast) return;
  frame(context, LEFT, y, width - LEFT - 4, CELL.height, colours.accent, 1.5);
}
