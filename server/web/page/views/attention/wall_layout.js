// Layout and drawing of the wall: layers below each other, in several blocks if they fit.
import { SANS, fill, frame as framed, write } from "../../parts/ink.js";

const LEFT = 30;
const TOP = 34;
const GAP = 7; // between pictures, to separate those without a mask
const BLOCKS_APART = 14;
const SMALLEST = 16; // CSS pixels of a thumbnail
const LARGEST = 54;
const FONT = `11px ${SANS}`;

/** The largest thumbnails with a total height of at most `most`, or else the least height. */
export function layoutOf(width, layers, numHeads, most) {
  let best = blocksOf(width, layers, numHeads, 1);
  for (let count = 2; count <= layers.length; count += 1) {
    const next = blocksOf(width, layers, numHeads, count);
    if (next.lines > 1) break;
    const isBetter = best.height > most ? next.height < best.height : next.height <= most && next.cell > best.cell;
    if (isBetter) best = next;
  }
  return best;
}

function blocksOf(width, layers, numHeads, count) {
  const rows = Math.ceil(layers.length / count);
  const blockWidth = Math.floor((width - (count - 1) * BLOCKS_APART) / count);
  const fitting = Math.max(1, Math.floor((blockWidth - LEFT) / (SMALLEST + GAP)));
  const lines = Math.ceil(numHeads / fitting);
  const perLine = Math.ceil(numHeads / lines); // lines of equal length: not one line of two heads below one of fourteen
  const cell = Math.max(4, Math.min(LARGEST, Math.floor((blockWidth - LEFT) / perLine) - GAP));
  const pitch = cell + GAP;
  const band = lines * pitch + (lines > 1 ? 8 : 0); // of one layer
  const leftOf = (block) => block * (Math.min(blockWidth, LEFT + perLine * pitch) + BLOCKS_APART);
  const place = (layer, head) => {
    const index = layers.indexOf(layer);
    return {
      x: leftOf(Math.floor(index / rows)) + LEFT + (head % perLine) * pitch,
      y: TOP + (index % rows) * band + Math.floor(head / perLine) * pitch,
      size: cell,
    };
  };
  const at = (x, y) => {
    const block = Math.floor(x / leftOf(1));
    const row = Math.floor((y - TOP) / band);
    const line = Math.floor((y - TOP - row * band) / pitch);
    const column = Math.floor((x - leftOf(block) - LEFT) / pitch);
    const head = line * perLine + column;
    const layer = layers[block * rows + row];
    const isWithin = (place, count) => place >= 0 && place < count;
    const exists = isWithin(row, rows) && isWithin(line, lines) && isWithin(column, perLine) && head < numHeads;
    return exists && layer !== undefined ? { layer, head } : null;
  };
  const blocks = Array.from({ length: Math.ceil(layers.length / rows) }, (_, block) => leftOf(block));
  return { cell, perLine, lines, rows, blocks, layers, numHeads, height: TOP + rows * band + 4, place, at };
}

export function drawWall(context, layout, thumbnails, colours) {
  context.font = FONT; // in which the widest name is measured
  for (const [index, layer] of layout.layers.entries()) {
    nameLayer(context, layout, layer, colours.muted);
    for (let head = 0; head < layout.numHeads; head += 1) {
      const { x, y, size } = layout.place(layer, head);
      fill(context, x, y, size, size, colours.sunk);
      const canvas = thumbnails[index]?.[head]?.canvas;
      // cells larger than a pixel stay sharp; smaller ones are averaged
      context.imageSmoothingEnabled = canvas?.width > size;
      if (canvas) context.drawImage(canvas, x, y, size, size);
      framed(context, x - 0.5, y - 0.5, size + 1, size + 1, colours.line);
    }
  }
  layout.blocks.forEach((left, block) => {
    const first = layout.layers[block * layout.rows];
    write(context, "head →", left + LEFT, 7, colours.muted, { size: 11 });
    write(context, "layer", left, TOP - 9, colours.muted, { size: 11 });
    const longest = context.measureText(layout.lines > 1 ? `${layout.perLine}…` : String(layout.numHeads - 1)).width;
    const step = Math.ceil((longest + 4) / (layout.cell + GAP));
    for (let head = 0; head < layout.perLine; head += step) nameHead(context, layout, first, head, colours.muted);
  });
}

function nameLayer(context, layout, layer, colour, weight = "") {
  const { x, y, size } = layout.place(layer, 0);
  write(context, String(layer), x - 7, y + size / 2, colour, { size: 11, weight, align: "right" });
}

function nameHead(context, layout, layer, head, colour, ground) {
  const { x, size } = layout.place(layer, head);
  const name = layout.lines > 1 && !ground ? `${head}…` : String(head);
  if (ground) {
    const wide = Math.max(context.measureText(name).width + 4, size + GAP);
    fill(context, x + (size - wide) / 2, TOP - 17, wide, 15, ground);
  }
  write(context, name, x + size / 2, TOP - 9, colour, { size: 11, weight: ground ? "700" : "", align: "center" });
}

export function drawChosen(context, layout, { layer, head }, colours) {
  frame(context, layout.place(layer, head), 3, colours.accent);
  context.font = `700 ${FONT}`; // in which the head's name is measured
  const { x, y, size } = layout.place(layer, 0);
  fill(context, x - LEFT, y + size / 2 - 8, LEFT - 4, 16, colours.raised);
  nameLayer(context, layout, layer, colours.ink, "700");
  const block = Math.floor(layout.layers.indexOf(layer) / layout.rows);
  nameHead(context, layout, layout.layers[block * layout.rows], head, colours.ink, colours.raised);
}

export function frame(context, { x, y, size }, lineWidth, colour) {
  framed(context, x - lineWidth / 2, y - lineWidth / 2, size + lineWidth, size + lineWidth, colour, lineWidth);
}
