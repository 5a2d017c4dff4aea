// Two lines of text with lines between them: queries (below, blue) and keys (above, orange), for any number of words.
import { html, useCallback, useLayoutEffect, useMemo, useRef, useState } from "../../core/html.js";
import { shownToken } from "../../core/model.js";
import { descending, extent, percent } from "../../core/numbers.js";
import { Picture } from "../../parts/picture.js";
import { useMore } from "../../parts/scrolled.js";

const FONT = "14px ui-monospace, monospace";
const CHIP = 24;
const SPACE = 6;
const WIDEST_SPACE = 60;
const TOP = 30;
const HEIGHT = 250;
const BELOW = HEIGHT - 34 - CHIP;
const FAINTEST = 0.02; // smaller weights are drawn only for the selected word, if they are among its largest
const SHARE_DRAWN = 0.3; // of the largest weight, for a selected word with many similar weights
const NUM_NAMED = 4;

/** The width of each word's chip. */
function widthsOf(tokens) {
  const context = document.createElement("canvas").getContext("2d");
  context.font = FONT;
  return tokens.map((token) => context.measureText(shownToken(token)).width + 12);
}

const lengthOf = (widths, space) => widths.reduce((sum, each) => sum + each + space, -space);

/** [{x, width}]: the words of one line, centred in `room`, spread to about the length of `longest`. */
function placesOf(widths, room, longest) {
  const slack = (longest - lengthOf(widths, SPACE)) / Math.max(widths.length - 1, 1);
  const space = SPACE + Math.max(0, Math.min(slack, WIDEST_SPACE));
  let x = Math.max(1, (room - lengthOf(widths, space)) / 2);
  return widths.map((width) => {
    const place = { x, width };
    x += width + space;
    return place;
  });
}

/** One line of attention, from the query up to the key. */
function drawLink(context, from, to, lineWidth, alpha) {
  const [x, y] = [from.x + from.width / 2, BELOW];
  const [toX, toY] = [to.x + to.width / 2, TOP + CHIP];
  context.globalAlpha = alpha;
  context.lineWidth = lineWidth;
  context.beginPath();
  context.moveTo(x, y);
  context.bezierCurveTo(x, (y + toY) / 2, toX, (y + toY) / 2, toX, toY);
  context.stroke();
  context.globalAlpha = 1;
}

function drawChips(context, places, tokens, y, colour, colours) {
  context.font = FONT;
  context.textAlign = "center";
  context.textBaseline = "middle";
  places.forEach(({ x, width }, i) => {
    context.fillStyle = colours.sunk;
    context.fillRect(x, y, width, CHIP);
    context.fillStyle = colour;
    context.fillRect(x, y === TOP ? y + CHIP - 2 : y, width, 2);
    context.fillStyle = colours.ink;
    context.fillText(shownToken(tokens[i]), x + width / 2, y + CHIP / 2);
  });
}

/** All words, and the lines of all weights above a threshold. */
function drawAll(context, { above, below }, { queries, keys, weight, colours }) {
  context.strokeStyle = colours.muted;
  below.forEach((from, row) =>
    above.forEach((to, column) => {
      const share = weight(row, column);
      if (share >= FAINTEST) drawLink(context, from, to, 0.5 + 2.5 * share, 0.08 + 0.3 * share);
    }),
  );
  drawChips(context, above, keys, TOP, colours.key, colours);
  drawChips(context, below, queries, BELOW, colours.query, colours);
}

function drawNames(context, { above, below }, { keyName, queryName, colours }) {
  context.textAlign = "left";
  context.font = "600 12px system-ui, sans-serif";
  context.fillStyle = colours.key;
  context.fillText(keyName, above[0]?.x ?? 0, TOP - 14);
  context.fillStyle = colours.query;
  context.fillText(queryName, below[0]?.x ?? 0, BELOW + CHIP + 14);
}

/** The lines of one word: from a query to its keys, or to a key from its queries. */
function drawFocus(context, { above, below }, focus, { queries, keys, weight, colours }) {
  const isQuery = focus.query !== undefined;
  context.strokeStyle = isQuery ? colours.query : colours.key;
  const pairs = isQuery ? keys.map((_, column) => [focus.query, column]) : queries.map((_, row) => [row, focus.key]);
  const shares = pairs.map(([row, column]) => weight(row, column) || 0);
  const least = Math.min(FAINTEST, SHARE_DRAWN * Math.max(...shares));
  pairs.forEach(([row, column], i) => {
    if (shares[i] === 0 || shares[i] < least) return;
    drawLink(context, below[row], above[column], 1 + 6 * shares[i], 0.25 + 0.75 * shares[i]);
    const chip = isQuery ? above[column] : below[row];
    context.lineWidth = 1 + 2 * shares[i];
    context.strokeRect(chip.x, isQuery ? TOP : BELOW, chip.width, CHIP);
  });
  const own = isQuery ? below[focus.query] : above[focus.key];
  context.lineWidth = 3;
  if (own) context.strokeRect(own.x, isQuery ? BELOW : TOP, own.width, CHIP);
}

/**
 * values: row-major [queries, keys]; queries, keys: tokens; query: the chosen one; keyName, queryName: titles of the
 * lines of text; onPick({query} | {key}); label: for screen readers.
 */
export function TwoLines({ values, queries, keys, query, keyName, queryName, onPick, label, handle }) {
  const [hovered, setHovered] = useState(null); // {query} or {key}
  const widths = useMemo(() => ({ above: widthsOf(keys), below: widthsOf(queries) }), [queries, keys]);
  const longest = Math.max(lengthOf(widths.above, SPACE), lengthOf(widths.below, SPACE));
  const layoutOf = useCallback(
    (width) => ({ above: placesOf(widths.above, width, longest), below: placesOf(widths.below, width, longest) }),
    [widths, longest],
  );
  const isSigned = useMemo(() => values.some((value) => value < 0), [values]); // a difference: the line's width is its absolute value
  const full = useMemo(() => (isSigned ? Math.max(...extent(values).map(Math.abs)) : 1), [values, isSigned]);
  const valueAt = (row, column) => values[row * keys.length + column];
  const weight = (row, column) => (isSigned ? Math.abs(valueAt(row, column)) / full : valueAt(row, column));
  const draw = useCallback(
    (context, { width, colours }) => {
      const layout = layoutOf(width);
      drawAll(context, layout, { queries, keys, weight, colours });
      drawNames(context, layout, { keyName, queryName, colours });
    },
    [values, layoutOf, keyName, queryName],
  );
  const box = useRef(null);
  useMore(box);
  useLayoutEffect(() => {
    const { scrollLeft, clientWidth, scrollWidth } = box.current;
    const place = layoutOf(scrollWidth).below[query];
    if (place && (place.x < scrollLeft || place.x + place.width > scrollLeft + clientWidth))
      box.current.scrollLeft = place.x - clientWidth / 2;
  }, [query, layoutOf]);
  // the pointed word may not exist in a shorter text
  const isThere = hovered && (hovered.query ?? -1) < queries.length && (hovered.key ?? -1) < keys.length;
  const focus = isThere ? hovered : { query };
  const overlay = useCallback(
    (context, { width, colours }) => drawFocus(context, layoutOf(width), focus, { queries, keys, weight, colours }),
    [values, layoutOf, focus.query, focus.key],
  );
  const at = (x, y, width) => {
    if (x === null) return null;
    const { above, below } = layoutOf(width);
    const isAbove = y < (TOP + CHIP + BELOW) / 2;
    const index = (isAbove ? above : below).findIndex((place) => x >= place.x && x < place.x + place.width);
    return index < 0 ? null : isAbove ? { key: index } : { query: index };
  };
  const onKey = (key) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[key];
    const isQuery = focus.query !== undefined;
    if (by) {
      const [now, count] = isQuery ? [focus.query, queries.length] : [focus.key, keys.length];
      const next = Math.max(0, Math.min(count - 1, now + by));
      setHovered(isQuery ? { query: next } : { key: next });
    } else if (key === "ArrowUp") setHovered({ key: Math.min(focus.query ?? focus.key, keys.length - 1) });
    else if (key === "ArrowDown") setHovered({ query: Math.min(focus.query ?? focus.key, queries.length - 1) });
    else if (key === "Enter" || key === " ") onPick(focus);
    else return false;
    return true;
  };
  const told = said(focus, { queries, keys, weight, valueAt });
  return html`<div class="two-lines" ref=${box}><div style=${{ minWidth: `${Math.ceil(longest) + 2}px` }}>
      <${Picture} draw=${draw} overlay=${overlay} height=${HEIGHT}
        label=${`${label} Left and right walk the words, up and down change the line, Enter chooses.`} handle=${handle}
        tip=${isThere ? told : ""} keyTip=${told} tipAt=${(width) => chipAt(layoutOf(width), focus)}
        onPoint=${(x, y, width) => setHovered(at(x, y, width))}
          onPick=${(x, y, width) => at(x, y, width) && onPick(at(x, y, width))} onKey=${onKey} />
    </div></div>
    <p class="readout" aria-live="polite">${told}</p>`;
}

/** The place of the focused word. */
function chipAt({ above, below }, { query, key }) {
  const { x, width } = (query === undefined ? above[key] : below[query]) ?? above[0];
  return { x: x + width / 2, y: query === undefined ? TOP : BELOW };
}

/** "“girl” looks at: “little” 62 %, …", or the queries with the largest weights on a key. */
function said(focus, { queries, keys, weight, valueAt }) {
  const quoted = (token) => `“${shownToken(token ?? "")}”`;
  const isQuery = focus.query !== undefined;
  const others = isQuery ? keys : queries;
  const shares = others.map((_, i) => (isQuery ? weight(focus.query, i) : weight(i, focus.key)));
  const most = Array.from(descending(shares.map((share) => share || 0)).slice(0, NUM_NAMED));
  const shown = (i) => (isQuery ? valueAt(focus.query, i) : valueAt(i, focus.key));
  const list = most.filter((i) => shares[i] > 0).map((i) => `${quoted(others[i])} ${percent(shown(i))}`);
  const isSigned = others.some((_, i) => shown(i) < 0);
  return isQuery
    ? `${quoted(queries[focus.query])} looks ${isSigned ? "otherwise " : ""}at ${list.join(", ")}`
    : `${quoted(keys[focus.key])} is looked at by ${list.join(", ") || "no word"}`;
}
