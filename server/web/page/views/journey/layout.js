// Layout of the journey: one large plane, left to right in the direction of the computation, in its own units.
import { clamp01 } from "./camera.js";

const GAP = 70; // between successive boxes
const STRIP = 34; // the height of one vector
const WIDE = 250; // of a vector of the stream
const MOST_BLOCKS_WIDE = 620;
const MOST_TOKENS = 24; // of the encoder's, under the cross-attention

const within = (value, low, high) => Math.max(low, Math.min(high, value));
const box = (x, y, width, height) => ({ x, y, width, height });
/** The smallest rectangle around the given ones, with a margin. */
export function around(boxes, margin) {
  const left = Math.min(...boxes.map((one) => one.x)) - margin;
  const top = Math.min(...boxes.map((one) => one.y)) - margin;
  const right = Math.max(...boxes.map((one) => one.x + one.width)) + margin;
  const bottom = Math.max(...boxes.map((one) => one.y + one.height)) + margin;
  return box(left, top, right - left, bottom - top);
}

/** A part of a rectangle, of that size and around a point, moved so that it is inside. */
function near(whole, x, y, width, height) {
  const along = (at, size, first, all) => (size >= all ? first + (all - size) / 2 : within(at - size / 2, first, first + all - size));
  return box(along(x, width, whole.x, whole.width), along(y, height, whole.y, whole.height), width, height);
}

/**
 * {row, column, …}: the layout; `row` is the height of one word's line, boxes are {x, y, width, height}. isNarrow:
 * boxes after the chosen head are placed below those before it, to fill a phone's screen; turn is then the height at
 * which the lines turn back, else null.
 */
export function layoutOf(data, isNarrow) {
  const numRows = data.shown.length;
  const row = within(520 / numRows, 24, 56);
  const tall = numRows * row;
  let x = 0;
  const next = (width, height = tall, y = 0, gap = GAP) => {
    const made = box(x, y, width, height);
    x += width + gap;
    return made;
  };
  const has = (id) => data.rows[id] !== null;
  const boxes = { tokens: next(150, tall, 0, 60), embed: next(WIDE) };
  if (has("hook_pos_embed")) boxes.position = next(WIDE);
  if (data.layer > 0) boxes.before = next(within(data.layer * 70, 70, MOST_BLOCKS_WIDE));
  boxes.pre = next(WIDE);
  if (has("ln1.hook_out")) boxes.norm = next(WIDE);
  boxes.q = next(180, tall, 0, 60);
  const grid = next(tall, tall, 0, 270);
  Object.assign(boxes, {
    grid,
    k: box(grid.x, -230, grid.width, 140),
    bars: box(grid.x, tall + 80, grid.width, 120),
    v: box(grid.x, tall + 280, grid.width, 110),
    weighted: box(grid.x, tall + 450, grid.width, 110),
    z: box(grid.x + grid.width + 80, tall + 450, 40, 110),
  });
  const turn = isNarrow ? tall + 450 + 110 + 110 : null;
  if (isNarrow) x = 0;
  placeStream(data, boxes, next, { middle: isNarrow ? turn + (data.whole.cross_attention ? 460 : 190) : Math.max(0, (tall - 480) / 2) });
  const [queryRow, keyColumn] = [data.shown.indexOf(data.query), data.shown.indexOf(data.key)];
  return { row, turn, tall, boxes, queryRow, keyColumn, all: Object.values(boxes) };
}

/** Place the boxes after the chosen head: all heads, the sums, the neurons, the other blocks, the next word. */
function placeStream(data, boxes, next, { middle }) {
  const numHeads = data.stack.num_heads;
  const headTall = within(420 / numHeads, 8, 40) * numHeads;
  const strip = (place, y) => box(place.x, middle + y, WIDE, STRIP);
  const column = () => next(WIDE, 0, 0, 110);
  boxes.heads = next(300, headTall, middle, 230);
  boxes.heads_out = box(boxes.heads.x, middle + headTall + 60, 300, STRIP);
  if (data.nodes.has("hook_resid_mid")) {
    const place = column();
    boxes.add = box(place.x, middle, WIDE, 300);
    boxes.add_x = strip(place, 40);
    boxes.add_heads = strip(place, 130);
    boxes.add_sum = strip(place, 240);
  }
  if (data.stackName === "decoder" && data.whole.cross_attention) placeCross(data, boxes, next, middle, strip);
  const place = next(340, 0, 0, 110);
  boxes.mlp = box(place.x, middle, 340, 560);
  boxes.mlp_in = strip(place, 40);
  boxes.neurons = box(place.x, middle + 130, 340, 190);
  boxes.mlp_out = strip(place, 380);
  boxes.mlp_sum = strip(place, 490);
  const numAfter = data.numLayers - 1 - data.layer;
  if (numAfter > 0) boxes.after = next(within(numAfter * 110, 270, 900), 300, middle + 90, 110);
  boxes.end = next(WIDE + 90, 430, middle, 90);
  boxes.end_in = strip(boxes.end, 40);
  boxes.words = box(boxes.end.x, middle + 150, WIDE + 90, 280);
}

function placeCross(data, boxes, next, middle, strip) {
  const count = Math.min(data.encoderTokens.length, MOST_TOKENS);
  const place = next(Math.max(count * 46, WIDE + 60), 0, 0, 110);
  boxes.cross = box(place.x, middle - 270, place.width, 660);
  boxes.encoder = box(place.x, middle - 270, Math.max(place.width * 0.6, 200), 100);
  boxes.cross_tokens = box(place.x, middle - 120, count * 46, 80);
  boxes.cross_bars = box(place.x, middle - 30, count * 46, 120);
  boxes.cross_out = strip(place, 180);
  boxes.cross_sum = strip(place, 290);
}

/** The camera's frame at each stop, by the stop's name. */
export function framesOf({ row, boxes, all, queryRow, keyColumn }) {
  const { grid } = boxes;
  const of = (margin, ...names) => around(names.map((name) => boxes[name]).filter(Boolean), margin);
  const [cellX, cellY] = [grid.x + (keyColumn + 0.5) * row, (Math.max(queryRow, 0) + 0.5) * row];
  const lines = near(grid, grid.x, cellY, grid.width, Math.min(grid.height, 7 * row));
  return {
    model: around(all, 60),
    tokens: around([boxes.tokens, box(0, 0, 380, 10)], 60),
    embedding: of(70, "tokens", "embed", "position"),
    norm: of(70, "pre", "norm"),
    qk: around([boxes.q, boxes.k, grid], 60),
    dots: around([grid, box(grid.x - 110, -80, 10, 10)], 20),
    scale: near(around([grid], row), keyColumn < 0 ? grid.x + grid.width : cellX, cellY, 7 * row, 4 * row),
    mask: around([grid, box(grid.x - 110, -80, 10, 10)], 20),
    softmax: around([lines, boxes.bars, box(grid.x - 110, boxes.bars.y, 10, 10)], 34),
    values: around([boxes.bars, boxes.weighted, boxes.z, box(grid.x - 110, boxes.v.y, 10, 10)], 30),
    heads: of(70, "heads", "heads_out"),
    add: of(60, "add"),
    cross: of(60, "cross"),
    mlp: of(60, "mlp"),
    blocks: boxes.after ? of(60, "after") : of(60, "mlp"),
    next: of(60, "end"),
  };
}

/**
 * The arrival at a stop at a progress: 0 when leaving the previous stop, 1 at the stop; always 1 for the first stop.
 */
export const arrival = (progress, index) => Math.max(clamp01(progress - index + 1), clamp01(1 - progress * 2));
