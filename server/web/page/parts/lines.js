// A few lines over a common axis: steps of a trajectory, ranks through the layers.
import { html, useCallback, useRef } from "../core/html.js";
import { extent, format, largest } from "../core/numbers.js";
import { dot, line, path, write as inked } from "./ink.js";
import { Picture, usePointed } from "./picture.js";
import { SaveMenu } from "./tools.js";

const MARGIN = { left: 52, right: 24, top: 12, bottom: 34 };
// Lines also differ in their dashes, for readers who cannot distinguish the colours.
const STYLES = [["ink", []], ["value", [6, 3]], ["good", [2, 3]], ["accent", [8, 3, 2, 3]], ["muted", [1, 4]]];

/**
 * series: [{name, values}], all of one length; points: names along the axis; title: of the axis. isLogarithmic: powers of
 * ten; isInverted: the lowest value on top, for ranks; selected: the index of a marked point.
 */
export function Lines(props) {
  const { series, points, title, low, high, isLogarithmic = false, isInverted = false, height = 240 } = props;
  const { label, onPick, selected = null, handle, write = format } = props;
  const { at, point, onKey } = usePointed(points.length, { from: selected, onPick });
  const scale = isLogarithmic ? (value) => Math.log10(Math.max(value, 1e-30)) : (value) => value;
  const [least, most] = extent(series.flatMap(({ values }) => Array.from(values, scale)));
  const bottom = low === undefined ? least : scale(low);
  const top = high === undefined ? (most > bottom ? most : bottom + 1) : scale(high);
  const roomOf = (width) => Math.max(width - MARGIN.left - MARGIN.right, 1);
  const xOf = (index, width) => MARGIN.left + (points.length < 2 ? 0.5 : index / (points.length - 1)) * roomOf(width);
  const heightOf = (scaled, tall) => {
    const share = (scaled - bottom) / (top - bottom);
    return MARGIN.top + (isInverted ? share : 1 - share) * (tall - MARGIN.top - MARGIN.bottom);
  };
  const identity = JSON.stringify([series.map(({ name, values }) => [name, [...values]]), points, bottom, top, isInverted]);
  const draw = useCallback(
    (context, { width, height: tall, colours }) => {
      const name = (text, x, y, align = "center") => inked(context, text, x, y, colours.muted, { size: 11, align });
      for (const tick of ticksOf(bottom, top, isLogarithmic)) {
        const y = heightOf(tick, tall);
        line(context, [[MARGIN.left, y], [width - MARGIN.right, y]], colours.line);
        name(write(isLogarithmic ? 10 ** tick : tick), MARGIN.left - 6, y, "right");
      }
      const step = Math.ceil((points.length * 42) / Math.max(width - MARGIN.left, 1));
      points.forEach((text, index) => index % step === 0 && name(text, xOf(index, width), tall - 22));
      if (title) name(title, (MARGIN.left + width) / 2, tall - 7);
      series.forEach(({ values }, place) => {
        const [colour, dashes] = STYLES[place % STYLES.length];
        drawLine(context, Array.from(values, (value, i) => [xOf(i, width), heightOf(scale(value), tall)]), dashes, colours[colour]);
      });
    },
    [identity],
  );
  const overlay = useCallback(
    (context, { width, height: tall, colours }) => {
      for (const [index, colour] of [[selected, colours.accent], [at, colours.ink]]) {
        if (index !== null) line(context, [MARGIN.top, tall - MARGIN.bottom].map((y) => [xOf(index, width), y]), colour);
      }
    },
    [at, selected, identity],
  );
  const values = series.map((one) => `${one.name} ${write(one.values[at])}`).join(", ");
  return html`<div class="lines">
    <${Picture} draw=${draw} overlay=${overlay} height=${height} label=${label} handle=${handle}
      summary=${series.map((one) => inWords(one, points, write)).join("; ")}
      readout=${at === null ? "" : `${points[at]}: ${values}`} tipAt=${(width) => ({ x: xOf(at ?? 0, width), y: MARGIN.top })}
      onPoint=${(x, _, width) => point(x === null ? null : Math.round(((x - MARGIN.left) / roomOf(width)) * (points.length - 1)))}
      onPick=${onPick && (() => at !== null && onPick(at))} onKey=${onKey} />
    <ul class="legend">${series.map(({ name }, place) => html`<li><i class=${`dash-${place % STYLES.length}`}></i>${name}</li>`)}</ul>
  </div>`;
}

/** Lines with a title, an explanation, and a menu that saves them, or `only` one list. */
export function SavedLines({ heading, name, says, only, ...more }) {
  const picture = useRef(null);
  const { series, points } = more;
  const saved = only ? { label: name, array: { data: only, shape: [only.length] }, rows: [name], columns: points }
    : { label: "lines", lists: series.map(({ values }) => values), rows: series.map((line) => line.name), columns: points };
  return html`<div><header class="line-head"><h3>${heading}</h3>
      <${SaveMenu} picture=${picture} name=${name} arrays=${[saved]} /></header>
    ${says && html`<p class="hint">${says}</p>`}<${Lines} ...${more} handle=${picture} /></div>`;
}

function inWords({ name, values }, points, write) {
  const [best = 0] = largest(values, 1);
  const ends = `from ${write(values[0])} at ${points[0]} to ${write(values.at(-1))} at ${points.at(-1)}`;
  return `${name}: ${ends}, highest ${write(values[best])} at ${points[best]}`;
}

/** Four to eight round ticks for the axis. */
export function ticksOf(low, high, isLogarithmic = false) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = isLogarithmic ? Math.max(1, Math.ceil(rough)) : power * [1, 2, 5, 10].find((times) => times * power >= rough);
  const ticks = [];
  for (let count = Math.ceil(low / step - 1e-9); count * step <= high + step * 1e-9; count += 1) ticks.push(count * step);
  return ticks.map((tick) => Number(tick.toPrecision(12)));
}

/** A line with its points, interrupted at values that are not finite. */
function drawLine(context, places, dashes, colour) {
  context.strokeStyle = colour;
  context.lineWidth = 2;
  context.setLineDash(dashes);
  const runs = places.map(([, y]) => (Number.isFinite(y) ? "x" : " ")).join("").matchAll(/x+/g);
  for (const { 0: run, index } of runs) {
    path(context, places.slice(index, index + run.length));
    context.stroke();
  }
  context.setLineDash([]);
  for (const [x, y] of places) if (Number.isFinite(y)) dot(context, x, y, 2.5, colour);
}
