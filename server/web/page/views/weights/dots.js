// A scatter plot of two lists of numbers, with a dot for each word.
import { html, useCallback } from "../../core/html.js";
import { shownToken } from "../../core/model.js";
import { extent, format } from "../../core/numbers.js";
import { dot, frame, write } from "../../parts/ink.js";
import { Points } from "../../parts/points.js";

const MARGIN = { left: 66, right: 16, top: 10, bottom: 34 };
const HEIGHT = 300;
const REACH = 30; // CSS pixels around a dot in which it is pointed at

function rangeOf(values) {
  const [low, high] = extent(values);
  return high > low ? [low, high] : [low - 1, high + 1];
}

function drawDots(context, { width, colours }, places, { ends: [left, right, low, high], pair }) {
  frame(context, MARGIN.left, MARGIN.top, width - MARGIN.left - MARGIN.right, HEIGHT - MARGIN.top - MARGIN.bottom, colours.line);
  const number = (value, x, y, align = "right") => write(context, format(value, 3), x, y, colours.muted, { align });
  number(left, MARGIN.left, HEIGHT - 22, "left");
  number(right, width - MARGIN.right, HEIGHT - 22);
  number(high, MARGIN.left - 5, MARGIN.top + 6);
  number(low, MARGIN.left - 5, HEIGHT - MARGIN.bottom - 6);
  const title = `neuron ${pair[0]} →, neuron ${pair[1]} ↑`;
  write(context, title, (MARGIN.left + width) / 2, HEIGHT - 8, colours.muted, { align: "center" });
  for (const { x, y } of places) dot(context, x, y, 4, colours.accent);
}

export function Dots({ values: [across, up], tokens, pair }) {
  const identity = JSON.stringify([across, up, pair]);
  const ends = [...rangeOf(across), ...rangeOf(up)];
  const placesOf = useCallback(
    (width) => {
      const [left, right, low, high] = ends;
      return across.map((value, i) => ({
        x: MARGIN.left + ((value - left) / (right - left)) * (width - MARGIN.left - MARGIN.right),
        y: MARGIN.top + ((high - up[i]) / (high - low)) * (HEIGHT - MARGIN.top - MARGIN.bottom),
      }));
    },
    [identity],
  );
  const draw = useCallback((context, size, places) => drawDots(context, size, places, { ends, pair }), [identity]);
  const said = (i) => `“${shownToken(tokens[i] ?? "")}” (${i}): ${format(across[i])}, ${format(up[i])}`;
  return html`<${Points} placesOf=${placesOf} count=${across.length} draw=${draw} reach=${REACH} describe=${said} height=${HEIGHT}
    label=${`Neuron ${pair[0]} against neuron ${pair[1]}, a dot for each word`}
    summary=${across.slice(0, 12).map((_, i) => said(i)).join("; ")} />`;
}
