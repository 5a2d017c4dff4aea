// Drawing of the journey's last part: all heads, the additions to the stream, neurons, other blocks, the next word.
import { shownToken } from "../../core/model.js";
import { format, percent } from "../../core/numbers.js";
import { between, eased } from "./camera.js";
import { heatOf } from "./heat.js";
import { arrival } from "./layout.js";
import { paintBlocks, paintTitle } from "./paint_words.js";
import { MONO } from "./pen.js";

const MOST_NEURON_COLUMNS = 4; // times as wide as tall

/** One vector as a line of cells; an empty box before its numbers arrive. */
function paintStrip(pen, film, box, values, title, { tone = "ink", share = 1, sign = "" } = {}) {
  pen.rect(box.x, box.y, box.width, box.height, pen.colours.sunk);
  if (values) pen.image(heatOf(values, values.length, film.mode), box.x, box.y, box.width * share, box.height);
  pen.edge(box.x, box.y, box.width, box.height, pen.colours[tone], tone === "ink" ? 1 : 2);
  pen.text(title, box.x, box.y - 13, { size: 16, most: 15, colour: tone });
  if (sign) pen.text(sign, box.x - 18, box.y + box.height / 2, { size: 30, most: 24, align: "center" });
}

const middleOf = (box) => box.x + box.width / 2;
/** Points from one to another: across to `bend`, up or down, and across again. */
const stepped = ([x, y], [toX, toY], bend) => [[x, y], [bend, y], [bend, toY], [toX, toY]];
/** An arrow from a box down to the one below it, with space for its title. */
const fall = (pen, from, to, colour) =>
  pen.line([[middleOf(to), from.y + from.height + 4], [middleOf(to), to.y - 27]], colour, { thickness: 4, isArrow: true });

function paintHeads(pen, film, progress) {
  const { data, layout, lengths } = film;
  const { heads, heads_out: sum, z } = layout.boxes;
  const share = eased(arrival(progress, film.indexOf("heads")));
  const count = data.stack.num_heads;
  const step = heads.height / count;
  const wide = heads.width * 0.66;
  const longest = lengths ? Math.max(...lengths, 1e-9) : 1;
  paintTitle(pen, heads, `All ${count} heads`, { shape: "through W_O", isLarge: pen.scale < 0.4 });
  const own = heads.y + (data.head + 0.5) * step;
  const { turn } = layout;
  const [right, level] = [z.x + z.width + 6, z.y + z.height / 2];
  const start = turn === null ? [[right, level]] : [[right, level], [right + 40, level], [right + 40, turn]];
  const way = [...start.slice(0, -1), ...stepped(start.at(-1), [heads.x - 6, own], heads.x - 70)];
  pen.line(way, pen.colours.value, { thickness: 4, isArrow: true });
  pen.text("W_O", heads.x - 66, own - 16, { size: 15, most: 14, colour: "value", family: MONO });
  for (let head = 0; head < count; head += 1) {
    const y = heads.y + head * step;
    const isOwn = head === data.head;
    if (film.headRows) pen.image(heatOf(film.headRows[head], data.stack.hidden_size, film.mode), heads.x, y + 1, wide * share, step - 2);
    if (lengths) {
      const long = (heads.width - wide - 6) * (lengths[head] / longest) * share;
      pen.rect(heads.x + wide + 6, y + step * 0.2, long, step * 0.6, pen.colours.value, isOwn ? 1 : 0.55);
      pen.text(`${head}: ${format(lengths[head], 3)}`, heads.x + heads.width + 8, y + step / 2, {
        size: Math.min(15, step * 0.62), most: 14, colour: isOwn ? "value" : "muted", family: MONO,
      });
    }
    if (isOwn) pen.edge(heads.x, y, wide, step, pen.colours.value, 2);
  }
  fall(pen, heads, sum, pen.colours.value);
  paintStrip(pen, film, sum, data.strips.get("hook_attn_out")?.values, `${film.formula("hook_attn_out")}`, { tone: "value" });
}

/** The residual stream: from the block's entry over the attention to each sum, and on to the next word. */
function paintLane(pen, film) {
  const { layout: { boxes, row, queryRow, turn } } = film;
  const stream = (points) => pen.line(points, pen.colours.ink, { thickness: 7, alpha: 0.55, isArrow: true });
  const way = (from, to, back = 50) => stream(stepped(from, to, to[0] - back));
  const entryOf = (strip) => [strip.x - 4, strip.y + strip.height / 2];
  const exitOf = (box) => [box.x + box.width, box.y + box.height / 2];
  const first = entryOf(boxes.add_x ?? boxes.mlp_in);
  const [start, y, top] = [boxes.pre.x + boxes.pre.width, (queryRow + 0.5) * row, turn === null ? boxes.k.y - 70 : turn + 60];
  stream([[start, y], [start + 30, y], [start + 30, top], ...stepped([start + 30, top], first, first[0] - 60).slice(1)]);
  pen.text("residual stream", turn === null ? boxes.grid.x : start + 50, top - 20, { size: 22, most: 15, colour: "muted" });
  if (boxes.add_sum) way(exitOf(boxes.add_sum), entryOf(boxes.cross_out ?? boxes.mlp_in));
  if (boxes.cross_sum) way(exitOf(boxes.cross_sum), entryOf(boxes.mlp_in));
  const end = entryOf(boxes.end_in);
  way(exitOf(boxes.mlp_sum), boxes.after ? [boxes.after.x - 6, exitOf(boxes.after)[1]] : end);
  if (boxes.after) way(exitOf(boxes.after), end, 45);
}

function paintAdd(pen, film, progress) {
  const { data, layout: { boxes } } = film;
  if (!boxes.add) return;
  const of = (id) => data.strips.get(id)?.values;
  paintTitle(pen, boxes.add, "Added to the stream");
  paintStrip(pen, film, boxes.add_x, of("hook_predicted") ?? of("hook_resid_pre"), "x, as the block found it");
  paintStrip(pen, film, boxes.add_heads, of("hook_attn_out"), "output of the heads", { tone: "value", sign: "+" });
  paintStrip(pen, film, boxes.add_sum, of("hook_resid_mid"), film.formula("hook_resid_mid"), {
    sign: "=", share: eased(arrival(progress, film.indexOf("add"))),
  });
}

/** The encoder above, and the weights from the decoder's word to each of its words. */
function paintCross(pen, film, progress) {
  const { data, layout: { boxes } } = film;
  if (!boxes.cross) return;
  const stack = data.capabilities.stacks.encoder;
  paintTitle(pen, boxes.encoder, `Encoder: ${stack.num_layers} blocks read the text both ways`);
  paintBlocks(pen, boxes.encoder, Array.from({ length: stack.num_layers }, (_, i) => i), { colour: "key" });
  const weights = data.cross?.arrays.weights.data;
  const { cross_bars: bars, cross_tokens: tokens, cross_out: out } = boxes;
  const count = Math.round(tokens.width / 46);
  const share = eased(arrival(progress, film.indexOf("cross")));
  const largest = weights ? Math.max(...weights.subarray(0, count), 1e-9) : 1;
  for (let i = 0; i < count; i += 1) {
    const x = tokens.x + (i + 0.5) * 46;
    pen.text(shownToken(data.encoderTokens[i]), x, tokens.y + tokens.height, {
      size: 16, colour: i === data.encoderKey ? "key" : "ink", family: MONO, room: 78, isUpright: true,
    });
    if (!weights) continue;
    const tall = (weights[i] / largest) * bars.height * share;
    pen.rect(x - 16, bars.y + bars.height - tall, 32, tall, i === data.encoderKey ? pen.colours.key : pen.colours.query);
    pen.number(percent(weights[i]), x, bars.y + bars.height + 16, { size: 12, most: 12 });
  }
  pen.rect(bars.x, bars.y + bars.height, bars.width, 2, pen.colours.line);
  paintTitle(pen, { ...tokens, y: tokens.y - 4 }, `Cross-attention, head ${data.head}`, { gap: 14 });
  const sum = (box, id, more) => paintStrip(pen, film, box, data.strips.get(id)?.values, film.formula(id), more);
  sum(out, "hook_cross_attn_out", { tone: "value", sign: "+" });
  sum(boxes.cross_sum, "hook_resid_mid_cross", { sign: "=" });
}

function paintNeurons(pen, film, progress) {
  const { data, layout: { boxes } } = film;
  const of = (id) => data.strips.get(id)?.values;
  const share = eased(arrival(progress, film.indexOf("mlp")));
  const normed = of("ln2.hook_out");
  paintTitle(pen, boxes.mlp, "MLP", { isLarge: true });
  paintStrip(pen, film, boxes.mlp_in, normed ?? of("hook_resid_mid") ?? of("hook_resid_pre"), normed ? film.formula("ln2.hook_out") : "x");
  const box = boxes.neurons;
  const [id, values] = film.neurons;
  pen.rect(box.x, box.y, box.width, box.height, pen.colours.sunk);
  if (values) {
    const columns = Math.min(values.length, Math.ceil(Math.sqrt(values.length * MOST_NEURON_COLUMNS * 0.5)));
    const rows = Math.ceil(values.length / columns);
    pen.image(heatOf(values, columns, film.mode), box.x, box.y, box.width, box.height);
    pen.rect(box.x, box.y + box.height * share, box.width, box.height * (1 - share), pen.colours.sunk);
    if (columns * rows > values.length) {
      const cell = box.width / columns;
      const left = (values.length % columns) * cell;
      pen.rect(box.x + left, box.y + (box.height / rows) * (rows - 1), box.width - left, box.height / rows, pen.colours.paper);
    }
    const what = id.includes("expert") ? "experts" : "neurons";
    pen.text(`${values.length} ${what}: ${film.formula(id)}`, box.x, box.y - 14, { size: 16, most: 15 });
  }
  pen.edge(box.x, box.y, box.width, box.height, pen.colours.line);
  fall(pen, boxes.mlp_in, { ...boxes.mlp_in, y: box.y }, pen.colours.muted);
  fall(pen, box, boxes.mlp_out, pen.colours.muted);
  paintStrip(pen, film, boxes.mlp_out, of("hook_mlp_out"), film.formula("hook_mlp_out"), { sign: "+" });
  paintStrip(pen, film, boxes.mlp_sum, of("hook_resid_post"), film.formula("hook_resid_post"), { sign: "=" });
}

function paintAfter(pen, film) {
  const { data, layout: { boxes } } = film;
  if (!boxes.after) return;
  const layers = Array.from({ length: data.numLayers - 1 - data.layer }, (_, i) => data.layer + 1 + i);
  paintTitle(pen, boxes.after, "More blocks", { isLarge: true });
  paintBlocks(pen, boxes.after, layers, { marks: data.lens && layers.map((layer) => shownToken(data.lens.top_tokens[layer + 1][0][0])) });
}

/**
 * The end: the final norm, and the likeliest tokens with their probabilities; for a model without a head, the vector.
 */
function paintEnd(pen, film, progress) {
  const { data, layout: { boxes } } = film;
  const { end, end_in: strip, words } = boxes;
  const share = eased(arrival(progress, film.indexOf("next")));
  paintTitle(pen, end, film.endTitle, { isLarge: true, gap: 30 });
  const normed = data.strips.get("ln_final.hook_out")?.values;
  paintStrip(pen, film, strip, normed ?? data.strips.get("hook_resid_post")?.values, normed ? film.formula("ln_final.hook_out") : "x out");
  if (!data.next) return;
  pen.text("× W_U, then softmax", words.x, words.y - 26, { size: 16, most: 15, colour: "muted", family: MONO });
  const { tokens } = data.next.temperatures[0];
  const step = words.height / tokens.length;
  tokens.forEach(({ token, probability }, i) => {
    const y = words.y + i * step;
    const weight = i ? "" : "600 ";
    pen.text(shownToken(token), words.x + 100, y + step / 2, { size: 20, most: 17, align: "right", family: MONO, room: 100, weight });
    pen.rect(words.x + 110, y + step * 0.2, between(2, 150, share * probability / tokens[0].probability), step * 0.6, pen.colours.accent);
    pen.text(percent(probability), words.x + 268, y + step / 2, { size: 18, most: 15, family: MONO });
  });
}

export function paintStream(pen, film, progress) {
  paintLane(pen, film);
  paintHeads(pen, film, progress);
  paintAdd(pen, film, progress);
  paintCross(pen, film, progress);
  paintNeurons(pen, film, progress);
  paintAfter(pen, film);
  paintEnd(pen, film, progress);
}
