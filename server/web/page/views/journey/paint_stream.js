// The journey's last part on the canvas: all heads, what is added to the stream, the neurons, the other blocks, the next word.
import { shownToken } from "../../core/model.js";
import { format, percent } from "../../core/numbers.js";
import { between, eased } from "./camera.js";
import { heatOf } from "./heat.js";
import { arrival } from "./layout.js";
import { paintBlocks, paintTitle } from "./paint_words.js";
import { MONO } from "./pen.js";

const MOST_NEURON_COLUMNS = 4; // times as wide as tall

/** One vector as a line of cells; an empty box until its numbers have come. */
function paintStrip(pen, film, box, values, title, { tone = "ink", share = 1, sign = "" } = {}) {
  pen.rect(box.x, box.y, box.width, box.height, pen.colours.sunk);
  if (values) pen.image(heatOf(values, values.length, film.mode), box.x, box.y, box.width * share, box.height);
  pen.edge(box.x, box.y, box.width, box.height, pen.colours[tone], tone === "ink" ? 1 : 2);
  pen.text(title, box.x, box.y - 13, { size: 16, most: 15, colour: tone });
  if (sign) pen.text(sign, box.x - 18, box.y + box.height / 2, { size: 30, most: 24, align: "center" });
}

const center = (box) => [box.x + box.width / 2, box.y + box.height / 2];

function paintHeads(pen, film, progress) {
  const { data, layout, lengths } = film;
  const { heads, heads_out: sum, z } = layout.boxes;
  const share = eased(arrival(progress, film.indexOf("heads")));
  const count = data.stack.num_heads;
  const step = heads.height / count;
  const wide = heads.width * 0.66;
  const longest = lengths ? Math.max(...lengths, 1e-9) : 1;
  paintTitle(pen, heads, `All ${count} heads`, { shape: "through W_O", isLarge: pen.scale < 0.4 });
  const [zX, zY] = center(z);
  const own = heads.y + (data.head + 0.5) * step;
  pen.line([[z.x + z.width + 6, zY], [heads.x - 70, zY], [heads.x - 70, own], [heads.x - 6, own]], pen.colours.value, { thickness: 4, isArrow: true });
  pen.text("W_O", heads.x - 66, own - 16, { size: 15, most: 14, colour: "value", family: MONO });
  for (let head = 0; head < count; head += 1) {
    const y = heads.y + head * step;
    const isOwn = head === data.head;
    if (film.headRows) pen.image(heatOf(film.headRows[head], data.stack.hidden_size, film.mode), heads.x, y + 1, wide * share, step - 2);
    if (lengths) {
      pen.rect(heads.x + wide + 6, y + step * 0.2, (heads.width - wide - 6) * (lengths[head] / longest) * share, step * 0.6, pen.colours.value, isOwn ? 1 : 0.55);
      pen.text(`${head}: ${format(lengths[head], 3)}`, heads.x + heads.width + 8, y + step / 2, {
        size: Math.min(15, step * 0.62), most: 14, colour: isOwn ? "value" : "muted", family: MONO,
      });
    }
    if (isOwn) pen.edge(heads.x, y, wide, step, pen.colours.value, 2);
  }
  pen.line([[heads.x + heads.width / 2, heads.y + heads.height + 4], [sum.x + sum.width / 2, sum.y - 26]], pen.colours.value, { thickness: 4, isArrow: true });
  paintStrip(pen, film, sum, data.strips.get("hook_attn_out")?.values, `${film.formula("hook_attn_out")}`, { tone: "value" });
}

/** The residual stream: from the block's entry over the attention to each sum, and on to the next word. */
function paintLane(pen, film) {
  const { layout: { boxes, row, queryRow } } = film;
  const first = boxes.add_x ?? boxes.mlp_in;
  const top = boxes.k.y - 70;
  const y = (queryRow + 0.5) * row;
  const start = boxes.pre.x + boxes.pre.width;
  const style = { thickness: 7, alpha: 0.55 };
  const rise = start + 30;
  const fall = first.x - 60;
  pen.line([[start, y], [rise, y], [rise, top], [fall, top], [fall, first.y + 17], [first.x - 4, first.y + 17]], pen.colours.ink, { ...style, isArrow: true });
  pen.text("residual stream", boxes.grid.x, top - 20, { size: 22, most: 15, colour: "muted" });
  const sums = [boxes.add_sum, boxes.cross_sum].filter(Boolean);
  const goals = [boxes.cross_sum && boxes.cross_out, boxes.mlp_in].filter(Boolean);
  sums.forEach((sum, i) => {
    const to = goals[i];
    const middle = to.x - 50;
    pen.line([[sum.x + sum.width, sum.y + 17], [middle, sum.y + 17], [middle, to.y + 17], [to.x - 4, to.y + 17]], pen.colours.ink, { ...style, isArrow: true });
  });
  const last = boxes.after ?? boxes.end_in;
  const goal = boxes.after ? boxes.after.y + boxes.after.height / 2 : boxes.end_in.y + 17;
  const from = boxes.mlp_sum;
  pen.line([[from.x + from.width, from.y + 17], [last.x - 50, from.y + 17], [last.x - 50, goal], [last.x - 6, goal]], pen.colours.ink, { ...style, isArrow: true });
  if (!boxes.after) return;
  const [endY, out] = [boxes.end_in.y + 17, boxes.after.x + boxes.after.width];
  pen.line([[out, goal], [boxes.end_in.x - 45, goal], [boxes.end_in.x - 45, endY], [boxes.end_in.x - 6, endY]], pen.colours.ink, { ...style, isArrow: true });
}

function paintAdd(pen, film, progress) {
  const { data, layout: { boxes } } = film;
  if (!boxes.add) return;
  const of = (id) => data.strips.get(id)?.values;
  paintTitle(pen, boxes.add, "Added to the stream");
  paintStrip(pen, film, boxes.add_x, of("hook_predicted") ?? of("hook_resid_pre"), "x, as the block found it");
  paintStrip(pen, film, boxes.add_heads, of("hook_attn_out"), "what the heads wrote", { tone: "value", sign: "+" });
  paintStrip(pen, film, boxes.add_sum, of("hook_resid_mid"), film.formula("hook_resid_mid"), {
    sign: "=", share: eased(arrival(progress, film.indexOf("add"))),
  });
}

/** The encoder above, and how much the decoder's word takes of each of its words. */
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
  paintStrip(pen, film, out, data.strips.get("hook_cross_attn_out")?.values, film.formula("hook_cross_attn_out"), { tone: "value", sign: "+" });
  paintStrip(pen, film, boxes.cross_sum, data.strips.get("hook_resid_mid_cross")?.values, film.formula("hook_resid_mid_cross"), { sign: "=" });
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
    pen.text(`${values.length} ${id.includes("expert") ? "experts" : "neurons"}: ${film.formula(id)}`, box.x, box.y - 14, { size: 16, most: 15 });
  }
  pen.edge(box.x, box.y, box.width, box.height, pen.colours.line);
  const x = boxes.mlp_in.x + boxes.mlp_in.width / 2;
  pen.line([[x, boxes.mlp_in.y + 38], [x, box.y - 30]], pen.colours.muted, { thickness: 3, isArrow: true });
  pen.line([[x, box.y + box.height + 4], [x, boxes.mlp_out.y - 28]], pen.colours.muted, { thickness: 3, isArrow: true });
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

/** The end: the final norm, and the likeliest words with their probabilities; without a head, the vector itself. */
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
    pen.text(shownToken(token), words.x + 100, y + step / 2, { size: 20, most: 17, align: "right", family: MONO, room: 100, weight: i ? "" : "600 " });
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
