// The picture of the flow: boxes with the numbers of the chosen position, and the wires between them.
import { html, useCallback, useMemo, useRef, useState } from "../../core/html.js";
import { format } from "../../core/numbers.js";
import { useStore } from "../../core/store.js";
import { theme } from "../../core/theme.js";
import { bitmapOf } from "../../parts/matrix.js";
import { MONO, SANS, dot, fill, frame, line, ring, tip, write } from "../../parts/ink.js";
import { fillFitted, Picture, STEPS } from "../../parts/picture.js";
import { useMore } from "../../parts/scrolled.js";
import { colourLimit } from "./histogram.js";
import { BOX, found, layoutOf, narrowest, stripGrid } from "./layout.js";

/** notes: texts shown in place of a strip, by id; layer: the open block; open: id of the open tensor. */
export function Diagram({ graph, strips, shapes, notes, layer, open, onOpen, onLayer, describe }) {
  const [hovered, setHovered] = useState(null); // {id, index, cell} or {block}
  const mode = useStore(theme);
  const bitmaps = useMemo(() => new Map([...strips].map(([id, strip]) => [id, stripOf(strip, mode)])), [strips, mode]);
  const layouts = useMemo(() => new Map(), [graph]);
  const layoutFor = (width) => {
    if (!layouts.has(width)) layouts.set(width, layoutOf(graph, width));
    return layouts.get(width);
  };
  const draw = useCallback(
    (context, { width, colours }) => {
      const layout = layoutFor(width);
      layout.wires.forEach((wire) => drawWire(context, wire, colours));
      layout.pluses.forEach((plus) => drawPlus(context, plus, colours));
      layout.blocks.forEach((block) => drawBlock(context, block, block.layer === layer, colours));
      for (const box of layout.boxes) {
        const { id } = box.node;
        drawBox(context, box, { bitmap: bitmaps.get(id), shape: shapes.get(id), note: notes.get(id), colours });
      }
      for (const [text, x, y] of layout.titles) write(context, text, x, y, colours.ink, { size: 13, weight: "600" });
    },
    [graph, bitmaps, shapes, notes, layer],
  );
  const overlay = useCallback(
    (context, { width, colours }) => drawMarks(context, layoutFor(width), { hovered, open, colours }),
    [graph, hovered, open],
  );
  const at = (x, y, width) => {
    const layout = layoutFor(width);
    const hit = x === null ? null : found(layout, x, y, (node) => strips.get(node.id)?.values.length);
    if (!hit) return null;
    return hit.block
      ? { block: hit.block.layer }
      : { index: layout.boxes.indexOf(hit.box), cell: hit.cell, id: hit.box.node.id };
  };
  const pick = (place) => {
    if (place?.block !== undefined) onLayer(place.block);
    else if (place) onOpen(place.id);
  };
  const [, anyLayout] = [...layouts][0] ?? [];
  const boxes = anyLayout?.boxes ?? [];
  const onKey = (key) => {
    if (key === "Enter" || key === " ") pick(hovered);
    else if (key in STEPS && boxes.length) {
      const index = neighbour(boxes, hovered?.index ?? boxes.findIndex((box) => box.node.id === open), STEPS[key]);
      setHovered({ index, cell: null, id: boxes[index].node.id });
    } else return false;
    return true;
  };
  const node = boxes[hovered?.index]?.node ?? nodesOf(graph).find(({ id }) => id === open);
  const said = node
    ? describe(node, hovered?.cell ?? null)
    : "Point at a box for its numbers; click it to see the whole tensor.";
  const told = hovered?.block === undefined ? said : `Block ${hovered.block}: click to open it`;
  const box = useRef(null);
  useMore(box);
  return html`<div class="flow-scroll" ref=${box}>
      <div class="flow-canvas" style=${{ minWidth: `${narrowest(graph.bands)}px` }}>
        <${Picture} draw=${draw} overlay=${overlay} height=${(width) => layoutFor(Math.max(width, 1)).height}
          label="One block as a graph of tensors. Arrow keys walk the tensors, Enter opens one."
          tip=${hovered ? told : ""} keyTip=${told} tipAt=${(width) => middleOf(layoutFor(width).boxes[hovered?.index])}
          onPoint=${(x, y, width) => setHovered(at(x, y, width))} onPick=${(x, y, width) => pick(at(x, y, width))} onKey=${onKey} />
      </div>
    </div>
    <p class="readout" aria-live="polite">${told}</p>`;
}

const middleOf = (box) => box && { x: box.x + box.width / 2, y: box.y };

function drawMarks(context, { boxes, blocks, wires }, { hovered, open, colours }) {
  for (const box of boxes) if (box.node.id === open) outline(context, box, 3, colours.accent);
  if (hovered?.block !== undefined) outline(context, blocks[hovered.block], 2, colours.accent);
  const box = boxes[hovered?.index];
  if (!box) return;
  const touching = wires.filter((wire) => wire.from === box.node.id || wire.to === box.node.id);
  touching.forEach((wire) => drawWire(context, wire, colours, 3));
  outline(context, box, 2, colours.accent);
}

export const nodesOf = ({ bands, ends: [before, behind] }) => [
  ...before,
  ...bands.flatMap((band) => band.nodes),
  ...behind,
];

/** The nearest box in that direction; the same if there is none. */
function neighbour(boxes, index, [down, right]) {
  if (index < 0) return 0;
  const centre = (box) => [box.x + box.width / 2, box.y + box.height / 2];
  const [x, y] = centre(boxes[index]);
  let best = index;
  let least = Infinity;
  boxes.forEach((box, other) => {
    const [toX, toY] = centre(box);
    const along = (toX - x) * right + (toY - y) * down;
    const aside = Math.abs((toX - x) * down) + Math.abs((toY - y) * right);
    const cost = along + 2.5 * aside;
    if (along > 1 && cost < least) [best, least] = [other, cost];
  });
  return best;
}

/** Weights from 0 to 1, others symmetric around 0. width: of a row. */
export function rangeOf(values, kind, width) {
  if (kind === "sequential") return { low: 0, high: 1 };
  const limit = colourLimit(values, width);
  return { low: -limit, high: limit };
}

function stripOf({ values, kind }, mode) {
  const count = values.length;
  const { columns, rows } = stripGrid(count);
  const padded = new Float32Array(columns * rows).fill(NaN);
  padded.set(values);
  return bitmapOf(padded, rows, columns, { ...rangeOf(values, kind), kind, mode });
}

const outline = (context, { x, y, width, height }, lineWidth, colour) =>
  frame(context, x - 1, y - 1, width + 2, height + 2, colour, lineWidth);

function drawBox(context, box, { bitmap, shape, note, colours }) {
  const { node, x, y, width, height, strip } = box;
  const room = width - 2 * BOX.pad;
  fill(context, x, y, width, height, node.isCopy ? colours.sunk : colours.paper);
  frame(context, x + 0.5, y + 0.5, width - 1, height - 1, colours.line);
  fill(context, x, y, width, 3, colours[node.tone]);
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  let at = y + BOX.pad + 12;
  context.font = `600 13px ${SANS}`;
  fillFitted(context, node.title, room, x + BOX.pad, at);
  context.fillStyle = colours.ink;
  context.font = `11px ${SANS}`;
  for (const text of node.how) {
    at += BOX.line;
    fillFitted(context, text, room, x + BOX.pad, at);
  }
  context.fillStyle = colours.muted;
  context.font = `11px ${MONO}`;
  fillFitted(context, shape ?? "", room, x + BOX.pad, strip.y - 6);
  if (bitmap) {
    context.imageSmoothingEnabled = false;
    context.drawImage(bitmap, strip.x, strip.y, strip.width, strip.height);
    context.strokeRect(strip.x - 0.5, strip.y - 0.5, strip.width + 1, strip.height + 1);
  } else if (note) {
    context.fillStyle = colours.ink;
    context.font = `600 12px ${MONO}`;
    fillFitted(context, note, room, strip.x, strip.y + 16);
  }
}

function drawBlock(context, block, isOpen, colours) {
  fill(context, block.x, block.y, block.width, block.height, isOpen ? colours.accent : colours.sunk);
  frame(context, block.x + 0.5, block.y + 0.5, block.width - 1, block.height - 1, isOpen ? colours.accent : colours.muted);
  if (block.width < 14) return;
  const ink = isOpen ? colours["accent-ink"] : colours.ink;
  write(context, String(block.layer), block.x + block.width / 2, block.y + block.height / 2, ink, { align: "center" });
}

function drawWire(context, { tone, path, isStream, isUp, isDown, isBent }, colours, lineWidth = 1.75) {
  const colour = isStream ? colours.glow : tone === "ink" ? colours.muted : colours[tone];
  const [[x, y]] = path;
  const [toX, toY] = path.at(-1);
  context.strokeStyle = colour;
  context.lineWidth = isStream ? 5 : lineWidth;
  context.beginPath();
  context.moveTo(x, y);
  if (isStream || isUp || isDown) context.lineTo(toX, toY);
  else if (isBent) context.bezierCurveTo(x, toY, x, toY, toX - 4, toY);
  else {
    // straight in its own row, with the bend in the last gap
    const bend = Math.max(x, toX - 20);
    context.lineTo(bend, y);
    context.bezierCurveTo(bend + 12, y, toX - 14, toY, toX - 4, toY);
  }
  context.stroke();
  if (!isStream) tip(context, [toX, toY], isUp ? [0, -1] : isDown ? [0, 1] : [1, 0], 7, 4, colour);
}
function drawPlus(context, { x, y }, colours) {
  dot(context, x, y, 10, colours.raised);
  ring(context, x, y, 10, colours.ink, 1.5);
  line(context, [[x - 5, y], [x + 5, y]], colours.ink, 1.5);
  line(context, [[x, y - 5], [x, y + 5]], colours.ink, 1.5);
}

export const cellText = (value) => (Number.isFinite(value) ? format(value) : "masked");
