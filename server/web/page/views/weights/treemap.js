// The census as areas: squarified treemap (Bruls, Huizing, van Wijk 2000).
import { html, useCallback, useMemo, useRef } from "../../core/html.js";
import { grouped, percent, sum } from "../../core/numbers.js";
import { fill, frame, write } from "../../parts/ink.js";
import { Picture, usePointed } from "../../parts/picture.js";

/** [{x, y, width, height, item}] of items [{area}] that fill a rectangle, nearly square. */
function squarify(items, width, height) {
  const total = sum(items.map(({ area }) => area));
  const scale = (width * height) / total;
  const rest = items.map((item) => ({ item, area: item.area * scale })).sort((a, b) => b.area - a.area);
  const placed = [];
  let frame = { x: 0, y: 0, width, height };
  while (rest.length) {
    const side = Math.min(frame.width, frame.height);
    const row = [rest.shift()];
    while (rest.length && worstRatio([...row, rest[0]], side) <= worstRatio(row, side)) row.push(rest.shift());
    frame = placeRow(row, frame, placed);
  }
  return placed;
}

function worstRatio(row, side) {
  const areas = row.map(({ area }) => area);
  const whole = sum(areas);
  return Math.max((side ** 2 * Math.max(...areas)) / whole ** 2, whole ** 2 / (side ** 2 * Math.min(...areas)));
}

function placeRow(row, { x, y, width, height }, placed) {
  const whole = sum(row.map(({ area }) => area));
  const isColumn = width >= height;
  const thick = whole / (isColumn ? height : width);
  let along = isColumn ? y : x;
  for (const { item, area } of row) {
    const long = area / thick;
    placed.push(isColumn ? { x, y: along, width: thick, height: long, item } : { x: along, y, width: long, height: thick, item });
    along += long;
  }
  return isColumn ? { x: x + thick, y, width: width - thick, height } : { x, y: y + thick, width, height: height - thick };
}

// Related parts have one colour; their names distinguish them.
const COLOURS = { embedding: "value", unembedding: "value", query: "query", key: "key", value: "value", output: "good",
  gate: "accent", up: "accent", down: "accent" };

export function Treemap({ rows, total, height = 320 }) {
  const items = useMemo(
    () => rows.filter((row) => !row.tied_to && row.parameters > 0).map((row) => ({ ...row, area: row.parameters })),
    [rows],
  );
  const { at, point, onKey } = usePointed(items.length, { isFlat: true });
  const boxes = useRef([]);
  const draw = useCallback(
    (context, { width, height: tall, colours }) => {
      boxes.current = squarify(items, width, tall);
      for (const { x, y, width: wide, height: high, item } of boxes.current) {
        context.globalAlpha = 0.22;
        const ground = colours[COLOURS[item.component] ?? "muted"];
        fill(context, x + 1, y + 1, Math.max(wide - 2, 0.5), Math.max(high - 2, 0.5), ground);
        context.globalAlpha = 1;
        if (wide < 58 || high < 34) continue;
        const text = (written, down, style) => write(context, written, x + 8, y + down, colours.ink, { baseline: "top", ...style });
        text(item.component, 8, { size: 13, weight: "600" });
        if (wide > 70) text(percent(item.share, 3), 25);
        if (wide > 120 && high > 58) text(`${item.count} of ${item.shape.join(" × ")}`, 41);
      }
    },
    [items],
  );
  const overlay = useCallback(
    (context, { colours }) => {
      const box = boxes.current[at];
      if (box) frame(context, box.x + 1, box.y + 1, box.width - 2, box.height - 2, colours.ink, 2.5);
    },
    [at],
  );
  const find = (x, y) => boxes.current.findIndex((box) => x >= box.x && x < box.x + box.width && y >= box.y
    && y < box.y + box.height);
  const item = boxes.current[at]?.item;
  return html`<${Picture} draw=${draw} overlay=${overlay} height=${height} onKey=${onKey}
    label=${`Treemap of ${grouped(total)} parameters by component; the table below has the numbers`}
    onPoint=${(x, y) => point(x === null || find(x, y) < 0 ? null : find(x, y))}
    readout=${item ? said(item) : ""} tipAt=${() => middleOf(boxes.current[at])} />`;
}

const middleOf = (box) => box && { x: box.x + box.width / 2, y: box.y + box.height / 2 };

function said({ component, weight, stack, count, shape, parameters, share }) {
  return `${component} (${weight}, ${stack}): ${count} of ${shape.join(" × ")} = ${grouped(parameters)}, ${percent(share, 3)}`;
}
