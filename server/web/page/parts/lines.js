// A few lines over a common axis: steps of a trajectory, ranks through the layers.
import { html, useCallback, useState } from "../core/html.js";
import { extent, format, largest } from "../core/numbers.js";
import { Picture } from "./picture.js";

const MARGIN = { left: 52, right: 24, top: 12, bottom: 34 };
// Lines also differ in their dashes, for readers who cannot distinguish the colours.
const STYLES = [["ink", []], ["value", [6, 3]], ["good", [2, 3]], ["accent", [8, 3, 2, 3]], ["muted", [1, 4]]];

/**
 * series: [{name, values}], all of one length; points: names along the axis; title: of the axis. low, high: the range
 * (default: of the values); isLogarithmic: powers of ten; isInverted: the lowest value on top, for ranks;
 * onPick(index): a click on a point; selected: the index of a marked point.
 */
export function Lines(props) {
  const { series, points, title, low, high, isLogarithmic = false, isInverted = false, height = 240 } = props;
  const { label, onPick, selected = null, handle, write = format } = props;
  const [pointed, setHovered] = useState(null);
  const hovered = pointed !== null && pointed < points.length ? pointed : null; // there may be fewer points now
  const scale = isLogarithmic ? (value) => Math.log10(Math.max(value, 1e-30)) : (value) => value;
  const [least, most] = extent(series.flatMap((line) => Array.from(line.values, scale)));
  const bottom = low === undefined ? least : scale(low);
  const top = high === undefined ? (most > bottom ? most : bottom + 1) : scale(high);
  const roomOf = (width) => Math.max(width - MARGIN.left - MARGIN.right, 1);
  const xOf = (index, width) => MARGIN.left + (points.length < 2 ? 0.5 : index / (points.length - 1)) * roomOf(width);
  const heightOf = (scaled, tall) => {
    const share = (scaled - bottom) / (top - bottom);
    return MARGIN.top + (isInverted ? share : 1 - share) * (tall - MARGIN.top - MARGIN.bottom);
  };
  const identity = JSON.stringify([series.map((line) => [line.name, [...line.values]]), points, bottom, top, isInverted]);
  const draw = useCallback(
    (context, { width, height: tall, colours }) => {
      context.font = "11px system-ui, sans-serif";
      for (const tick of ticksOf(bottom, top, isLogarithmic)) {
        drawTick(context, write(isLogarithmic ? 10 ** tick : tick), heightOf(tick, tall), width, colours);
      }
      context.textAlign = "center";
      const step = Math.ceil((points.length * 42) / Math.max(width - MARGIN.left, 1));
      points.forEach((name, index) => index % step === 0 && context.fillText(name, xOf(index, width), tall - 22));
      if (title) context.fillText(title, (MARGIN.left + width) / 2, tall - 7);
      series.forEach((line, place) => {
        const [colour, dashes] = STYLES[place % STYLES.length];
        const placeOf = (i) => [xOf(i, width), heightOf(scale(line.values[i]), tall)];
        drawLine(context, line.values, dashes, placeOf, colours[colour]);
      });
    },
    [identity],
  );
  const overlay = useCallback(
    (context, { width, height: tall, colours }) => {
      for (const [index, colour] of [[selected, colours.accent], [hovered, colours.ink]]) {
        if (index === null) continue;
        context.strokeStyle = colour;
        context.beginPath();
        context.moveTo(xOf(index, width), MARGIN.top);
        context.lineTo(xOf(index, width), tall - MARGIN.bottom);
        context.stroke();
      }
    },
    [hovered, selected, identity],
  );
  const nearest = (x, width) => Math.round(((x - MARGIN.left) / roomOf(width)) * (points.length - 1));
  const move = (index) => setHovered(Math.max(0, Math.min(points.length - 1, index)));
  const values = series.map((line) => `${line.name} ${write(line.values[hovered])}`).join(", ");
  const summary = series.map((line) => inWords(line, points, write)).join("; ");
  return html`<div class="lines">
    <${Picture} draw=${draw} overlay=${overlay} height=${height} label=${label} summary=${summary} handle=${handle}
      readout=${hovered === null ? "" : `${points[hovered]}: ${values}`}
      tipAt=${(width) => ({ x: xOf(hovered ?? 0, width), y: MARGIN.top })}
      onPoint=${(x, _, width) => (x === null ? setHovered(null) : move(nearest(x, width)))}
      onPick=${onPick && (() => hovered !== null && onPick(hovered))}
      onKey=${(key) => {
        if (key === "ArrowLeft") move((hovered ?? selected ?? points.length) - 1);
        else if (key === "ArrowRight") move((hovered ?? selected ?? -1) + 1);
        else if (key === "Enter" && onPick && hovered !== null) onPick(hovered);
        else return false;
        return true;
      }} />
    <ul class="legend">${series.map((line, place) =>
      html`<li><i class=${`dash-${place % STYLES.length}`}></i>${line.name}</li>`)}</ul>
  </div>`;
}

/** A line in words: its first, last and largest value. */
function inWords({ name, values }, points, write) {
  const [best = 0] = largest(values, 1);
  const ends = `from ${write(values[0])} at ${points[0]} to ${write(values.at(-1))} at ${points.at(-1)}`;
  return `${name}: ${ends}, highest ${write(values[best])} at ${points[best]}`;
}

/** Round ticks for the axis: powers of ten, or 1, 2 or 5 times one, so that there are four to eight. */
export function ticksOf(low, high, isLogarithmic = false) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = isLogarithmic ? Math.max(1, Math.ceil(rough)) : power * [1, 2, 5, 10].find((times) => times * power >= rough);
  const ticks = [];
  for (let count = Math.ceil(low / step - 1e-9); count * step <= high + step * 1e-9; count += 1) ticks.push(count * step);
  return ticks.map((tick) => Number(tick.toPrecision(12)));
}

function drawTick(context, name, y, width, colours) {
  context.strokeStyle = colours.line;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(MARGIN.left, y);
  context.lineTo(width - MARGIN.right, y);
  context.stroke();
  context.fillStyle = colours.muted;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.fillText(name, MARGIN.left - 6, y);
}

/** A line with its points, without values that are not finite. Dashes are drawn as pieces, so that SVG has them too. */
function drawLine(context, values, dashes, place, colour) {
  context.strokeStyle = colour;
  context.fillStyle = colour;
  context.lineWidth = 2;
  const has = (i) => Number.isFinite(values[i]);
  context.beginPath();
  for (let i = 0; i + 1 < values.length; i += 1) if (has(i) && has(i + 1)) dashed(context, place(i), place(i + 1), dashes);
  context.stroke();
  for (let i = 0; i < values.length; i += 1) {
    if (!has(i)) continue;
    context.beginPath();
    context.arc(...place(i), 2.5, 0, 2 * Math.PI);
    context.fill();
  }
}

function dashed(context, [x, y], [toX, toY], dashes) {
  const length = Math.hypot(toX - x, toY - y);
  const pattern = dashes.length ? dashes : [length || 1, 0];
  let done = 0;
  for (let piece = 0; done < length; piece += 1) {
    const end = Math.min(length, done + pattern[piece % pattern.length]);
    if (piece % 2 === 0) {
      context.moveTo(x + ((toX - x) * done) / length, y + ((toY - y) * done) / length);
      context.lineTo(x + ((toX - x) * end) / length, y + ((toY - y) * end) / length);
    }
    done = end;
    if (pattern[piece % pattern.length] === 0 && pattern[(piece + 1) % pattern.length] === 0) break;
  }
}
