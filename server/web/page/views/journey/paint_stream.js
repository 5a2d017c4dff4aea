// Drawing of the journey's second row: all heads, sums, neurons, other blocks, the next word.
import { shownToken } from "../../core/model.js";
import { counted, format, percent } from "../../core/numbers.js";
import { MONO } from "../../parts/ink.js";
import { between } from "./camera.js";
import { heatOf } from "./heat.js";
import { MOST_TOKENS } from "./layout.js";
import { paintBlocks, paintPart, paintTitle } from "./paint_words.js";

const ASPECT = 2.5; // of the neurons' picture
const ROWS_OF_BLOCKS = 8;

function paintStrip(pen, { vector, mode, formula }, box, id, { title = formula(id), tone = "ink", share = 1, sign = "" } = {}) {
  const values = vector(id);
  pen.rect(box, "sunk");
  if (values) pen.image(heatOf(values, values.length, mode), box.x, box.y, box.width * share, box.height);
  pen.edge(box, tone, tone === "ink" ? 1 : 2);
  pen.text(title, box.x, box.y - 13, { size: 16, colour: tone, room: box.width });
  pen.text(sign, box.x - 18, box.y + box.height / 2, { size: 30, most: 24, align: "center" });
}

const middleOf = (box) => box.x + box.width / 2;
/** Across to `bend`, up or down, and across again. */
const stepped = ([x, y], [toX, toY], bend) => [[x, y], [bend, y], [bend, toY], [toX, toY]];
/** An arrow down to the box below, with space for its title. */
const fall = (pen, from, to, colour) =>
  pen.line([[middleOf(to), from.y + from.height + 4], [middleOf(to), to.y - 27]], colour, { thickness: 4, isArrow: true });

function paintHeads(pen, film) {
  const { data, layout, lengths } = film;
  const { heads, heads_out: sum, z } = layout.boxes;
  const share = film.shareOf("heads");
  const count = data.stack.num_heads;
  const step = heads.height / count;
  const wide = heads.width * 0.5;
  const longest = lengths ? Math.max(...lengths, 1e-9) : 1;
  paintTitle(pen, heads, `All ${count} heads through W_O`, { part: `${count} heads` });
  pen.text("length", heads.x + heads.width, heads.y - 12, { size: 14, align: "right", colour: "muted" });
  const own = heads.y + (data.head + 0.5) * step;
  const [right, level] = [z.x + z.width + 46, z.y + z.height / 2];
  pen.line([[right - 40, level], [right, level], ...stepped([right, layout.turn], [heads.x - 6, own], heads.x - 50)],
    "value", { thickness: 4, isArrow: true });
  for (let head = 0; head < count; head += 1) {
    const y = heads.y + head * step;
    const isOwn = head === data.head;
    if (film.headRows) pen.image(heatOf(film.headRows[head], data.stack.hidden_size, film.mode), heads.x, y + 1, wide * share, step - 2);
    if (lengths) {
      const long = (heads.width * 0.3) * (lengths[head] / longest) * share;
      pen.rect(heads.x + wide + 6, y + step * 0.2, long, step * 0.6, "value", isOwn ? 1 : 0.55);
      pen.text(`${head}: ${format(lengths[head], 3)}`, heads.x + heads.width, y + step / 2, {
        size: Math.min(15, step * 0.62), colour: isOwn ? "value" : "muted", family: MONO, align: "right", weight: isOwn ? "600 " : "",
      });
    }
    if (isOwn) pen.edge(heads.x, y, wide, step, "value", 2);
  }
  fall(pen, heads, sum, "value");
  paintStrip(pen, film, sum, "hook_attn_out", { tone: "value" });
}

function paintLane(pen, film) {
  const { layout: { boxes, row, queryRow, turn } } = film;
  const stream = (points) => pen.line(points, "ink", { thickness: 7, alpha: 0.55, isArrow: true });
  const way = (from, to, back = 45) => stream(stepped(from, to, to[0] - back));
  const entryOf = (strip) => [strip.x - 4, strip.y + strip.height / 2];
  const exitOf = (box) => [box.x + box.width, box.y + box.height / 2];
  const first = entryOf(boxes.add_x ?? boxes.mlp_in);
  const [start, y, top] = [boxes.pre.x + boxes.pre.width, (queryRow + 0.5) * row, turn + 60];
  stream([[start, y], [start + 30, y], ...stepped([start + 30, top], first, first[0] - 45)]);
  pen.text("residual stream", start + 50, top - 20, { size: 22, colour: "muted" });
  if (boxes.add_sum) way(exitOf(boxes.add_sum), entryOf(boxes.cross_out ?? boxes.mlp_in));
  if (boxes.cross_sum) way(exitOf(boxes.cross_sum), entryOf(boxes.mlp_in));
  const end = entryOf(boxes.end_in);
  way(exitOf(boxes.mlp_sum), boxes.after ? [boxes.after.x - 6, exitOf(boxes.after)[1]] : end);
  if (boxes.after) way(exitOf(boxes.after), end);
}

function paintAdd(pen, film) {
  const { data, layout: { boxes } } = film;
  if (!boxes.add) return;
  paintTitle(pen, boxes.add, "Added to the stream", { part: "Sum" });
  const entry = data.strips.has("hook_predicted") ? "hook_predicted" : "hook_resid_pre";
  paintStrip(pen, film, boxes.add_x, entry, { title: "x, as the block found it" });
  paintStrip(pen, film, boxes.add_heads, "hook_attn_out", { title: "output of the heads", tone: "value", sign: "+" });
  paintStrip(pen, film, boxes.add_sum, "hook_resid_mid", {
    sign: "=", share: film.shareOf("add"),
  });
}

/** The weights from the decoder's word to each of the encoder's. */
function paintCross(pen, film) {
  const { data, layout: { boxes } } = film;
  if (!boxes.cross) return;
  const stack = data.capabilities.stacks.encoder;
  paintPart(pen, boxes.cross, "Encoder");
  paintTitle(pen, boxes.encoder, `Encoder: ${stack.num_layers} blocks read the text both ways`);
  paintBlocks(pen, boxes.encoder, Array.from({ length: stack.num_layers }, (_, i) => i), { colour: "key" });
  const weights = data.cross?.arrays.weights.data;
  const { cross_bars: bars, cross_tokens: tokens, cross_out: out, cross_sum: sum } = boxes;
  const tokensShown = data.encoderTokens.slice(0, MOST_TOKENS);
  const step = tokens.width / tokensShown.length;
  const share = film.shareOf("cross");
  const largest = weights ? Math.max(...weights.subarray(0, tokensShown.length), 1e-9) : 1;
  tokensShown.forEach((token, i) => {
    const x = tokens.x + (i + 0.5) * step;
    const tone = i === data.encoderKey ? "key" : "query";
    pen.text(shownToken(token), x, tokens.y + tokens.height, {
      size: 16, colour: i === data.encoderKey ? "key" : "ink", family: MONO, room: 72, isUpright: true, isAlways: i === data.encoderKey,
    });
    if (!weights) return;
    const tall = (weights[i] / largest) * bars.height * share;
    pen.rect(x - step * 0.35, bars.y + bars.height - tall, step * 0.7, tall, tone);
    if (step * pen.scale > 44) pen.number(percent(weights[i], 2), x, bars.y + bars.height + 16, { size: 12 });
  });
  pen.rect(bars.x, bars.y + bars.height, bars.width, 2, "line");
  paintTitle(pen, { ...tokens, y: tokens.y - 4 }, `Cross-attention, head ${data.head}`, { gap: 10 });
  paintStrip(pen, film, out, "hook_cross_attn_out", { tone: "value", sign: "+" });
  paintStrip(pen, film, sum, "hook_resid_mid_cross", { sign: "=" });
}

function paintNeurons(pen, film) {
  const { data, layout: { boxes } } = film;
  const share = film.shareOf("mlp");
  paintTitle(pen, boxes.mlp, "MLP", { part: "MLP" });
  const normed = data.strips.has("ln2.hook_out");
  const entry = normed ? "ln2.hook_out" : data.strips.has("hook_resid_mid") ? "hook_resid_mid" : "hook_resid_pre";
  paintStrip(pen, film, boxes.mlp_in, entry, normed ? {} : { title: "x" });
  const box = boxes.neurons;
  const [id, values] = film.neurons;
  pen.rect(box, "sunk");
  if (values) {
    const columns = Math.ceil(Math.sqrt(values.length * ASPECT));
    const [wide, tall] = [box.width / columns, box.height / Math.ceil(values.length / columns)];
    pen.image(heatOf(values, columns, film.mode), box);
    pen.rect(box.x, box.y + box.height * share, box.width, box.height * (1 - share), "sunk");
    const rest = values.length % columns; // the last line's cells
    if (rest) pen.rect(box.x + rest * wide, box.y + box.height - tall, box.width - rest * wide, tall, "paper");
    pen.text(`${values.length} ${id.includes("expert") ? "experts" : "neurons"}: ${film.formula(id)}`, box.x, box.y - 14,
      { size: 16, room: box.width });
  }
  pen.edge(box, "line");
  fall(pen, boxes.mlp_in, box, "muted");
  fall(pen, box, boxes.mlp_out, "muted");
  paintStrip(pen, film, boxes.mlp_out, "hook_mlp_out", { sign: "+" });
  paintStrip(pen, film, boxes.mlp_sum, "hook_resid_post", { sign: "=" });
}

function paintAfter(pen, film) {
  const { data, layout: { boxes } } = film;
  if (!boxes.after) return;
  const layers = Array.from({ length: data.numLayers - 1 - data.layer }, (_, i) => data.layer + 1 + i);
  const title = data.lens ? "More blocks, with the lens's word" : "More blocks";
  paintTitle(pen, boxes.after, title, { part: counted(layers.length, "block") });
  const marks = data.lens && layers.map((layer) => shownToken(data.lens.top_tokens[layer + 1][0][0]));
  paintBlocks(pen, boxes.after, layers, { marks, most: ROWS_OF_BLOCKS });
}

/** For a model without a head, the vector. */
function paintEnd(pen, film) {
  const { data, layout: { boxes } } = film;
  const { end, end_in: strip, words } = boxes;
  const share = film.shareOf("next");
  paintTitle(pen, end, film.endTitle, { part: film.endTitle });
  const normed = data.strips.has("ln_final.hook_out");
  paintStrip(pen, film, strip, normed ? "ln_final.hook_out" : "hook_resid_post", normed ? {} : { title: "x out" });
  if (!data.next) return;
  const { tokens } = data.next.temperatures[0];
  const step = words.height / tokens.length;
  const columns = { token: 120, logit: 200, probability: 440 }; // their right edges
  pen.text("× W_U, then softmax:", words.x, words.y - 62, { size: 16, colour: "muted" });
  for (const [name, right] of Object.entries(columns)) {
    pen.text(name, words.x + right, words.y - 16, { size: 16, align: "right", colour: "muted" });
  }
  tokens.forEach(({ token, probability, logit }, i) => {
    const y = words.y + (i + 0.5) * step;
    const cell = (text, right, more) => pen.text(text, words.x + right, y, { size: 18, align: "right", family: MONO, ...more });
    cell(shownToken(token), columns.token, { size: 20, room: columns.token, weight: i ? "" : "600 " });
    cell(format(logit), columns.logit);
    pen.rect(words.x + 216, y - step * 0.3, between(2, 140, share * probability / tokens[0].probability), step * 0.6, "accent");
    cell(percent(probability), columns.probability);
  });
}

export function paintStream(pen, film) {
  paintLane(pen, film);
  paintHeads(pen, film);
  paintAdd(pen, film);
  paintCross(pen, film);
  paintNeurons(pen, film);
  paintAfter(pen, film);
  paintEnd(pen, film);
}
