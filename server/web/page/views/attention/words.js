// The text with lines from queries to keys: in two columns, or as one running text.
import { html, useCallback, useMemo } from "../../core/html.js";
import { shownToken } from "../../core/model.js";
import { largest } from "../../core/numbers.js";
import { write } from "../../parts/ink.js";
import { Picture } from "../../parts/picture.js";
import { columnOf, rowOf, sized } from "./numbers.js";

const MOST_IN_COLUMNS = 48; // tokens; a longer text is one running text
const PITCH = 23; // CSS pixels from line to line of the columns
const LINE = 40;
const WORD = 22;
const BAR = 3;
const LANE = LINE - WORD - BAR - 1; // free between the lines of text
const MARGIN = 14; // around the running text, for lines that lead to other lines of it
const ROUNDING = 5; // CSS pixels, of their corners
const FONT = '13px ui-monospace, "DejaVu Sans Mono", monospace';
const FAINTEST = 0.04; // share of the query's largest weight below which nothing is marked
const FAINTEST_LINE = 0.12; // the same for the lines of all queries together
const MOST_LINES = 10; // of the running text

export const isInColumns = (grid) => Math.max(grid.queries.length, grid.keys.length) <= MOST_IN_COLUMNS;

/** selected, hovered, onHover, onPick: {query, key}, null for none. side: of a pointed word in the running text. */
export function Words({ grid, side, selected, hovered, onHover, onPick, readout }) {
  const inColumns = isInColumns(grid);
  const layoutOf = useMemo(
    () => (inColumns ? columnsLayout(grid) : runningLayout(grid, side)),
    [grid.queries, grid.keys, inColumns, side],
  );
  const focus = useMemo(() => focusOf(grid, hovered ?? selected, side), [grid, hovered, selected, side]);
  const draw = useCallback(
    (context, { width, colours }) => {
      const layout = layoutOf(width);
      if (inColumns) drawAllLines(context, grid, layout, colours);
      context.font = FONT;
      context.textBaseline = "middle";
      context.fillStyle = colours.ink;
      for (const box of layout.boxes) {
        context.textAlign = box.align;
        context.fillText(box.shown, box.align === "right" ? box.x + box.width - 4 : box.x + 4, box.y + box.height / 2);
      }
    },
    [grid, layoutOf, inColumns],
  );
  const overlay = useCallback(
    (context, { width, colours }) => focus && drawFocus(context, layoutOf(width), focus, width, colours),
    [focus, layoutOf],
  );
  const at = (x, y, width) => {
    const box = x === null ? null : layoutOf(width).at(x, y);
    return box && { query: null, key: null, [box.side]: box.position };
  };
  const onKey = (key) => {
    const from = hovered ?? selected;
    const along = { ArrowUp: -1, ArrowDown: 1, ...(inColumns ? {} : { ArrowLeft: -1, ArrowRight: 1 }) }[key];
    const current = inColumns && from.query === null ? "key" : inColumns ? "query" : side;
    if (along) {
      const count = (current === "query" ? grid.queries : grid.keys).length;
      onHover({ query: null, key: null, [current]: Math.max(0, Math.min(count - 1, (from[current] ?? 0) + along)) });
    } else if (inColumns && key === "ArrowLeft") onHover({ query: from.query ?? selected.query, key: null });
    else if (inColumns && key === "ArrowRight") onHover({ query: null, key: from.key ?? selected.key });
    else if (key === "Enter" || key === " ") onPick(from);
    else return false;
    return true;
  };
  const inView = useCallback(
    (width) => {
      const word = inColumns ? null : layoutOf(width).of("query", selected.query);
      return word && { y: word.y, height: LINE };
    },
    [inColumns, layoutOf, selected.query],
  );
  return html`<${Picture} draw=${draw} overlay=${overlay} readout=${readout} inView=${inView}
    height=${(width) => layoutOf(width).height}
    label=${`The text with lines from ${
      side === "key" && !inColumns ? "the words that look to the chosen one" : "the chosen word to those it looks at"
    }. Arrow keys choose a word, Enter keeps it.`}
    onPoint=${(x, y, width) => onHover(at(x, y, width))}
    onPick=${(x, y, width) => at(x, y, width) && onPick(at(x, y, width))}
    onKey=${onKey} />`;
}

/** In a running text it is of the selected side. */
export function sideOf(grid, { query, key }, wanted) {
  if (query === null || key === null) return query === null ? "key" : "query";
  return isInColumns(grid) ? "query" : wanted;
}

/** A query and its keys, or a key and the queries that attend to it; share: relative to the largest. */
function focusOf(grid, place, wanted) {
  if (!place) return null;
  const side = sideOf(grid, place, wanted);
  const position = place[side];
  if (position >= (side === "query" ? grid.queries : grid.keys).length) return null;
  const values = side === "query" ? rowOf(grid.shown, grid, position) : columnOf(grid.shown, grid, position);
  return { side, position, others: sharesOf(sized(values, grid)) };
}

/** Of scores only the positive ones. */
function sharesOf(values) {
  const [best] = largest(values, 1);
  if (best === undefined || !(values[best] > 0)) return [];
  const shares = [];
  for (let position = 0; position < values.length; position += 1) {
    const share = values[position] / values[best];
    if (share >= FAINTEST) shares.push({ position, share });
  }
  return shares.sort((a, b) => b.share - a.share);
}

function columnsLayout({ queries, keys }) {
  return (width) => {
    const column = Math.min(Math.max(width * 0.36, 90), 220);
    const right = Math.min(width - column, column + 420);
    const boxesOf = (tokens, side, x, align) =>
      tokens.map((token, position) => {
        const place = { x, y: TOP + position * PITCH, width: column, height: PITCH - 3, align };
        return { side, position, shown: shortened(token, column), ...place };
      });
    const left = boxesOf(queries, "query", 0, "right");
    const others = boxesOf(keys, "key", right, "left");
    const boxes = [...left, ...others];
    const of = (side, position) => (side === "query" ? left : others)[position];
    const at = (x, y) => {
      const position = Math.floor((y - TOP) / PITCH);
      return of(x < (column + right) / 2 ? "query" : "key", position) ?? null;
    };
    const line = (query, key) => {
      const [from, to] = [of("query", query), of("key", key)];
      return [column, from.y + from.height / 2, right, to.y + to.height / 2];
    };
    const height = TOP + Math.max(queries.length, keys.length) * PITCH + 6;
    return { isRunning: false, boxes, of, at, line, titles: [column, right], height };
  };
}

const TOP = 24;

const shortened = (token, width) => {
  const shown = shownToken(token);
  const most = Math.max(3, Math.floor((width - 12) / 7.9));
  return shown.length > most ? `${shown.slice(0, most - 1)}…` : shown;
};

/** Of cross attention first the queries', then the keys'. */
function runningLayout({ queries, keys }, side) {
  const context = document.createElement("canvas").getContext("2d");
  context.font = FONT;
  const isCross = queries !== keys;
  const widths = new Map();
  const widthOf = (shown) => {
    if (!widths.has(shown)) widths.set(shown, context.measureText(shown).width);
    return widths.get(shown);
  };
  return remembered((width) => {
    const flow = (tokens, ofSide, top) => {
      let [x, y] = [MARGIN, top];
      return tokens.map((token, position) => {
        const shown = shortened(token, width - 2 * MARGIN);
        const wide = widthOf(shown) + 8;
        if (x + wide > width - MARGIN) [x, y] = [MARGIN, y + LINE];
        const box = { side: ofSide, position, shown, x, y, width: wide, height: WORD, align: "left" };
        x += wide + 1;
        if (token.includes("\n")) [x, y] = [MARGIN, y + LINE];
        return box;
      });
    };
    const first = flow(queries, isCross ? "query" : side, TOP);
    const second = isCross ? flow(keys, "key", first.at(-1).y + 2 * LINE) : first;
    const boxes = isCross ? [...first, ...second] : first;
    const of = (ofSide, position) => (ofSide === "query" ? first : second)[position];
    const isIn = (box, x, y) => x >= box.x && x <= box.x + box.width && y >= box.y - 4 && y <= box.y + LINE - 6;
    const at = (x, y) => boxes.find((box) => isIn(box, x, y)) ?? null;
    return { isRunning: true, boxes, of, at, height: second.at(-1).y + LINE };
  });
}

/** Keeps its last answer, because hovering calls it repeatedly. */
function remembered(layoutOf) {
  let last = null;
  return (width) => {
    if (last?.width !== width) last = { width, layout: layoutOf(width) };
    return last.layout;
  };
}

function drawAllLines(context, grid, layout, colours) {
  context.strokeStyle = colours.muted;
  for (let query = 0; query < grid.queries.length; query += 1) {
    for (const { position, share } of sharesOf(rowOf(grid.shown, grid, query))) {
      if (share < FAINTEST_LINE) break;
      context.globalAlpha = 0.3 * share;
      context.lineWidth = 0.5 + share;
      curve(context, ...layout.line(query, position));
    }
  }
  context.globalAlpha = 1;
  write(context, "query", layout.titles[0] - 4, 9, colours.query, { weight: "600", align: "right" });
  write(context, "key", layout.titles[1] + 4, 9, colours.key, { weight: "600" });
}

function drawFocus(context, layout, focus, width, colours) {
  const own = layout.of(focus.side, focus.position);
  const otherSide = focus.side === "query" ? "key" : "query";
  const [ownColour, otherColour] = [colours[focus.side], colours[otherSide]];
  context.fillStyle = otherColour;
  for (const { position, share } of focus.others) {
    const box = layout.of(otherSide, position);
    context.globalAlpha = 0.06 + 0.24 * share; // keeps the word below readable
    context.fillRect(box.x, box.y, box.width, box.height);
    context.globalAlpha = 1;
    // the bar's length shows the weight too; the bar begins at the end of the line
    const isFromRight = !layout.isRunning && otherSide === "query";
    const from = isFromRight ? box.x + box.width * (1 - share) : box.x;
    context.fillRect(from, box.y + box.height, box.width * share, BAR);
  }
  context.strokeStyle = ownColour;
  for (const [rank, { position, share }] of (layout.isRunning ? focus.others.slice(0, MOST_LINES) : focus.others).entries()) {
    context.globalAlpha = 0.25 + 0.75 * share;
    context.lineWidth = 0.75 + (layout.isRunning ? 2 : 3.25) * share; // lanes are narrow
    const isOver = focus.side === "query";
    if (layout.isRunning) arch(context, own, layout.of(otherSide, position), { isOver, rank, width });
    else if (focus.side === "query") curve(context, ...layout.line(focus.position, position));
    else curve(context, ...layout.line(position, focus.position));
  }
  context.globalAlpha = 1;
  context.lineWidth = 2;
  context.strokeRect(own.x + 1, own.y, own.width - 2, own.height);
}

function curve(context, fromX, fromY, toX, toY) {
  const middle = (fromX + toX) / 2;
  context.beginPath();
  context.moveTo(fromX, fromY);
  context.bezierCurveTo(middle, fromY, middle, toY, toX, toY);
  context.stroke();
}

/** A line over words from a query and under them from a key, in the lanes between lines of text; rank separates lines in a lane. */
function arch(context, from, to, { isOver, rank, width }) {
  const [fromX, toX] = [from.x + from.width / 2, to.x + to.width / 2];
  const sign = isOver ? -1 : 1;
  const edge = (box) => (isOver ? box.y : box.y + box.height + BAR);
  context.beginPath();
  context.moveTo(fromX, edge(from));
  if (from.y === to.y) {
    const reach = sign * Math.min(LANE, 8 + Math.abs(toX - fromX) / 14) * (4 / 3); // a curve goes three quarters of the way
    context.bezierCurveTo(fromX, edge(from) + reach, toX, edge(to) + reach, toX, edge(to));
  } else {
    const away = 2 + (rank / MOST_LINES) * (LANE - 4);
    const side = fromX + toX < width ? MARGIN - away : width - MARGIN + away;
    const corners = [[fromX, edge(from) + sign * away], [side, edge(from) + sign * away], [side, edge(to) + sign * away],
      [toX, edge(to) + sign * away], [toX, edge(to)]];
    corners.forEach(([x, y], i) => {
      const next = corners[i + 1];
      if (next) context.arcTo(x, y, ...next, ROUNDING);
      else context.lineTo(x, y);
    });
  }
  context.stroke();
}
