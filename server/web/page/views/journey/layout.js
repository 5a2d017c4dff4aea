// Layout of the journey: one plane in units of its own. Two rows, each left to right in the order of the computation.
import { within } from "../../core/numbers.js";

const GAP = 60; // between successive boxes
const STRIP = 34;
const WIDE = 220;
export const MOST_TOKENS = 24; // of the encoder's, under the cross-attention
const MOST_CELLS = 7; // rows and columns of the grid around a pair, with their numbers
export const NAMES = 84; // room for words left of a matrix or above it
export const BARS_NAMES = 64; // below the weights

const box = (x, y, width, height) => ({ x, y, width, height });
function around(boxes) {
  const [left, top] = ["x", "y"].map((side) => Math.min(...boxes.map((one) => one[side])));
  return box(left, top, Math.max(...boxes.map((one) => one.x + one.width)) - left,
    Math.max(...boxes.map((one) => one.y + one.height)) - top);
}

/** row: the height of a word's line; turn: the height at which lines go back to the second row. */
export function layoutOf(data) {
  const numRows = data.shown.length;
  const row = within(440 / numRows, 20, 70);
  const tall = numRows * row;
  let x = 0;
  const next = (width, gap = GAP, y = 0, height = tall) => {
    x += width + gap;
    return box(x - width - gap, y, width, height);
  };
  const has = (id) => data.rows[id] !== null;
  const boxes = { text: next(240, 50), tokens: next(160, 50), embed: next(WIDE) };
  if (has("hook_pos_embed")) boxes.position = next(WIDE);
  if (data.layer > 0) boxes.before = next(within(data.layer * 70, 300, 420));
  x += NAMES + 40;
  boxes.pre = next(WIDE);
  if (has("ln1.hook_out")) boxes.norm = next(WIDE);
  boxes.q = next(180, NAMES + 6);
  const grid = next(tall);
  const below = (y, height) => box(grid.x, tall + y, tall, height);
  Object.assign(boxes, {
    grid,
    k: box(grid.x, -230, tall, 140),
    bars: below(80, 76),
    v: below(290, 110),
    weighted: below(570, 110),
    z: box(grid.x + tall + 80, tall + 570, 40, 110),
  });
  const turn = tall + 790;
  x = 0;
  placeStream(data, boxes, next, turn + (data.whole.cross_attention ? 460 : 190));
  const [queryRow, keyColumn] = [data.shown.indexOf(data.query), data.shown.indexOf(data.key)];
  return { row, turn, tall, boxes, queryRow, keyColumn };
}

/** All heads, the sums, the neurons, the other blocks, the next word. */
function placeStream(data, boxes, next, middle) {
  const headTall = within(420 / data.stack.num_heads, 8, 70) * data.stack.num_heads;
  const column = (width, height, y = 0) => next(width, 90, middle + y, height);
  const strip = ({ x, width }, y) => box(x, middle + y, width, STRIP);
  boxes.heads = column(480, headTall);
  boxes.heads_out = strip(boxes.heads, headTall + 60);
  if (data.nodes.has("hook_resid_mid")) {
    boxes.add = column(320, 274);
    for (const [i, name] of ["add_x", "add_heads", "add_sum"].entries()) boxes[name] = strip(boxes.add, 40 + 100 * i);
  }
  if (data.stackName === "decoder" && data.whole.cross_attention) {
    const count = Math.min(data.encoderTokens.length, MOST_TOKENS);
    const cross = column(within(count * 46, 560, 1104), 594, -270);
    const part = (y, height, width = cross.width) => box(cross.x, middle + y, width, height);
    Object.assign(boxes, {
      cross, encoder: part(-240, 90, cross.width * 0.7), cross_tokens: part(-120, 80), cross_bars: part(-30, 120),
      cross_out: strip(cross, 180), cross_sum: strip(cross, 290),
    });
  }
  const mlp = column(480, 524);
  Object.assign(boxes, {
    mlp, mlp_in: strip(mlp, 40), neurons: box(mlp.x, middle + 130, mlp.width, 190), mlp_out: strip(mlp, 380), mlp_sum: strip(mlp, 490),
  });
  const numAfter = data.numLayers - 1 - data.layer;
  if (numAfter > 0) boxes.after = column(620, 420);
  boxes.end = column(440, 430);
  boxes.end_in = strip(boxes.end, 40);
  boxes.words = box(boxes.end.x, middle + 160, 440, 270);
}

export function framesOf({ row, boxes, queryRow, keyColumn }) {
  const { grid, bars, after, mlp, v, cross, add } = boxes;
  const of = (...names) => around(names.map((name) => boxes[name]).filter(Boolean));
  const title = box(grid.x, grid.y + grid.height + 34, 0, 0); // below the grid
  const named = around([grid, box(grid.x - NAMES, grid.y - NAMES, 0, 0), title]);
  // whole cells around the pair, next to the words' names
  const cells = Math.min(MOST_CELLS, Math.round(grid.height / row));
  const first = (at) => within(at - Math.floor(cells / 2), 0, Math.round(grid.height / row) - cells) * row;
  const side = cells * row + NAMES;
  return {
    model: around(Object.values(boxes)),
    tokens: of("text", "tokens"),
    embedding: of("tokens", "embed", "position"),
    norm: around([of("pre", "norm"), box(boxes.pre.x - NAMES, 0, 0, 0)]),
    qk: around([of("q", "k", "grid"), title]),
    dots: named,
    scale: cells * row === grid.height ? named
      : box(grid.x + first(keyColumn < 0 ? Infinity : keyColumn) - NAMES, first(queryRow) - NAMES, side, side),
    mask: named,
    softmax: around([box(grid.x - NAMES, Math.max(0, queryRow) * row - NAMES, NAMES + grid.width, 0),
      box(bars.x, bars.y, bars.width, bars.height + BARS_NAMES)]),
    values: around([of("weighted", "z"), box(v.x, v.y - 130, 0, 0), box(v.x, boxes.z.y + boxes.z.height + 26, 0, 0)]),
    heads: of("heads", "heads_out"),
    add: add && around([add, box(add.x - 36, add.y, 0, 0)]),
    cross: cross && around([cross, box(cross.x - 40, cross.y, 0, 0)]),
    mlp,
    blocks: after ?? mlp,
    next: boxes.end,
  };
}
