// Layout of the flow: the places of boxes and wires, in CSS pixels.

const GAP = 20; // between columns, where the arrows are
const LINE = 13;
const PAD = 7;
const STRIP = 24;
const TITLE = 26;
const STREAM_GAP = 30; // between the stream's boxes and the row below
const ROW_GAP = 14;
const BAND_GAP = 22;
const NARROWEST = 112; // a column
const WIDEST = 230;
const MARGIN = 6;

export const BOX = { line: LINE, pad: PAD };

const numLines = (nodes) => Math.max(1, ...nodes.map((node) => node.how.length));
const boxHeight = (nodes) => PAD * 2 + 15 + LINE * numLines(nodes) + LINE + 4 + STRIP;

export const narrowest = (bands) => Math.max(...bands.map((band) => band.columns)) * NARROWEST + 2 * MARGIN;

export function stripGrid(count) {
  if (count <= 64) return { columns: count, rows: 1 };
  const columns = Math.ceil(Math.sqrt(4 * count));
  return { columns, rows: Math.ceil(count / columns) };
}

const boxAt = (node, x, y, width, height) => ({
  node, x, y, width, height,
  strip: { x: x + PAD, y: y + height - PAD - STRIP, width: width - 2 * PAD, height: STRIP },
});

/** The whole pass, from the embedding through all blocks to the logits. */
function passBand([before, behind], numLayers, columnWidth, numColumns) {
  const height = boxHeight([...before, ...behind]);
  const y = TITLE;
  const place = (node, column) => boxAt(node, MARGIN + column * columnWidth, y, columnWidth - GAP, height);
  const boxes = [
    ...before.map((node, i) => place(node, i)),
    ...behind.map((node, i) => place(node, numColumns - behind.length + i)),
  ];
  const left = MARGIN + before.length * columnWidth;
  const right = MARGIN + (numColumns - behind.length) * columnWidth - GAP;
  const step = Math.min((right - left) / numLayers, 60);
  const blocks = Array.from({ length: numLayers }, (_, layer) => ({
    layer,
    x: left + (right - left - step * numLayers) / 2 + layer * step,
    y: y + height * 0.2,
    width: Math.max(step - Math.min(6, step * 0.25), 2),
    height: height * 0.6,
  }));
  const middle = y + height / 2;
  const path = [[MARGIN + columnWidth - GAP, middle], [MARGIN + numColumns * columnWidth - GAP, middle]];
  return { boxes, blocks, lines: [{ tone: "ink", path, isStream: true }], bottom: y + height };
}

export function layoutOf({ bands, ends, numLayers }, width) {
  const columnWidth = (numColumns) => Math.max(NARROWEST, Math.min(WIDEST, (width - 2 * MARGIN + GAP) / numColumns));
  const numColumns = Math.max(...bands.map((band) => band.columns));
  const pass = passBand(ends, numLayers, columnWidth(numColumns), numColumns);
  const laid = {
    boxes: [...pass.boxes],
    blocks: pass.blocks,
    wires: [...pass.lines],
    pluses: [],
    titles: [["The whole pass", MARGIN, 12]],
  };
  let top = pass.bottom + BAND_GAP;
  for (const band of bands) top = layBand(laid, band, top, columnWidth(band.columns)) + BAND_GAP;
  return { ...laid, height: top - BAND_GAP + 8 };
}

function layBand(laid, band, top, columnWidth) {
  const width = columnWidth - GAP;
  const height = boxHeight(band.nodes);
  const xOf = (column) => MARGIN + column * columnWidth;
  const streamY = top + TITLE + height / 2;
  const firstRow = top + TITLE + height + STREAM_GAP;
  const yOf = (row) => (row < 0 ? top + TITLE : firstRow + row * (height + ROW_GAP));
  const boxes = band.nodes.map((node) => boxAt(node, xOf(node.column), yOf(node.row), width, height));
  // If the stream's box is not in the band, a copy of it is drawn below, and wires start at the copy.
  const byId = new Map(boxes.map((box) => [box.node.id, box]));
  laid.titles.push([band.title, MARGIN, top + 12]);
  laid.boxes.push(...boxes);
  layStream(laid, band, byId, { streamY, left: MARGIN, right: xOf(band.columns) - GAP });
  for (const [from, to, tone] of band.wires) laid.wires.push(wire(byId.get(from), byId.get(to), tone));
  return yOf(band.rows - 1) + height;
}

function layStream(laid, band, byId, { streamY, left, right }) {
  const start = byId.get(band.start);
  const end = byId.get(band.end);
  const from = start && start.node.row < 0 ? start.x + start.width : left;
  const stream = [[from, streamY], [end ? end.x : right, streamY]];
  laid.wires.push({ tone: "ink", path: stream, isStream: true, from: band.start, to: band.end });
  for (const id of band.adds) {
    const box = byId.get(id);
    const x = box.x + box.width / 2;
    laid.pluses.push({ x, y: streamY });
    laid.wires.push({ tone: box.node.tone, path: [[x, box.y], [x, streamY + 10]], isUp: true, from: id, to: band.end });
  }
}

/** Down from the stream, else from side to side, with the bend near the end. */
function wire(from, to, tone) {
  const ids = { tone, from: from.node.id, to: to.node.id };
  const { row, column } = from.node;
  const end = [to.x, to.y + to.height * (to.node.row < row ? 0.62 : to.node.row > row ? 0.38 : 0.5)];
  if (row >= 0) return { ...ids, path: [[from.x + from.width, from.y + from.height / 2], end] };
  const x = from.x + from.width / 2;
  const start = [x, from.y + from.height];
  if (to.node.column === column) return { ...ids, path: [start, [x, to.y]], isDown: true };
  return { ...ids, path: [start, [x, end[1]], end], isBent: true };
}

export function found(layout, x, y, countOf) {
  const inside = (area) => x >= area.x && x < area.x + area.width && y >= area.y && y < area.y + area.height;
  const box = layout.boxes.find(inside);
  if (box) {
    const count = countOf(box.node);
    if (!count || !inside(box.strip)) return { box, cell: null };
    const grid = stripGrid(count);
    const column = Math.floor(((x - box.strip.x) / box.strip.width) * grid.columns);
    const row = Math.floor(((y - box.strip.y) / box.strip.height) * grid.rows);
    const cell = row * grid.columns + column;
    return { box, cell: cell < count ? cell : null };
  }
  const block = layout.blocks.find(inside);
  return block ? { block } : null;
}
