// The journey as a film: the layout, the stops, and `paint`, which draws any moment of it on any context.
import { rangeOf } from "../flow/diagram.js";
import { mixed, productsOf, weightsAt } from "./attention.js";
import { between, cameraBetween, cameraOver } from "./camera.js";
import { framesOf, layoutOf } from "./layout.js";
import { paintAttention } from "./paint_attention.js";
import { paintStream } from "./paint_stream.js";
import { paintWords } from "./paint_words.js";
import { Pen, SANS, fitted, widthOf } from "./pen.js";
import { stopsOf } from "./stops.js";

const LINE = 19; // of the caption, in CSS pixels
const PAD = 12;

/** The film for the data (see data.js), at a temperature of the attention and in a theme; isNarrow: see layoutOf. */
export function filmOf(data, temperature, mode, isNarrow) {
  const products = productsOf(data);
  const { numKeys } = products;
  const { explain, shown, query, stack, results } = data;
  const weights = weightsAt(products, explain.softmax.sink, temperature);
  const first = shown.indexOf(query) * numKeys;
  const rowWeights = weights.subarray(first, first + numKeys);
  const values = explain.arrays.v.data;
  const width = explain.arrays.v.shape[1];
  const headRows = results && Array.from({ length: stack.num_heads }, (_, head) =>
    results.data.subarray(head * stack.hidden_size, (head + 1) * stack.hidden_size));
  const valueRows = shown.map((key) => values.subarray(key * width, (key + 1) * width));
  const keyWidth = explain.arrays.k.shape[1];
  const film = {
    data,
    mode,
    temperature,
    products,
    weights,
    rowWeights,
    z: temperature === 1 ? explain.arrays.z.data : mixed(values, rowWeights, numKeys),
    layout: layoutOf(data, isNarrow),
    largestDot: Math.max(...shown.flatMap((_, i) => shown.map((key) => Math.abs(products.dots[i * numKeys + key])))),
    headRows,
    lengths: headRows?.map((row) => Math.hypot(...row)) ?? null,
    valueOf: (key) => valueRows[shown.indexOf(key)],
    valueRange: rangeOf(values, "diverging"),
    shownKeys: Float32Array.from(shown.flatMap((key) => [...explain.arrays.k.data.subarray(key * keyWidth, (key + 1) * keyWidth)])),
    neurons: neuronsOf(data),
    formula: (id) => data.nodes.get(id)?.how.join(", ") ?? "",
    endTitle: data.hasNext ? (data.capabilities.kind === "encoder" ? "In its place" : "Next word") : "The last vector",
    words: new Map(), // text in cells, by cell and stage
  };
  const stops = stopsOf(film);
  const index = new Map(stops.map((stop, i) => [stop.id, i]));
  return Object.assign(film, { stops, frames: framesOf(film.layout), indexOf: (id) => index.get(id) ?? 0 });
}

/** [id, values] of the MLP's inner activations: its neurons, or the experts' weights of a mixture. */
function neuronsOf({ nodes, strips }) {
  const id = ["mlp.hook_post", "mlp.hook_expert_weights"].find((each) => nodes.has(each)) ?? "hook_mlp_out";
  return [id, strips.get(id)?.values ?? null];
}

/** Split a text into lines that fit a width. */
function linesOf(context, text, room, size) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const longer = lines.at(-1) === "" ? word : `${lines.at(-1)} ${word}`;
    if (widthOf(context, longer, size, SANS) <= room) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

const captions = new WeakMap(); // of stops: {width, lines}

function captionOf(context, stop, width) {
  const kept = captions.get(stop);
  if (kept?.width === width) return kept.lines;
  const lines = linesOf(context, stop.says, width - 2 * PAD, 14);
  captions.set(stop, { width, lines });
  return lines;
}

/** The text below the picture: of the nearest stop, paler between stops. */
function paintCaption(context, film, progress, { width, height, colours, room }) {
  const at = Math.round(progress);
  const stop = film.stops[at];
  const lines = captionOf(context, stop, width);
  const top = height - room;
  context.fillStyle = colours.raised;
  context.fillRect(0, top, width, room);
  context.fillStyle = colours.line;
  context.fillRect(0, top, width, 1);
  const isThere = 1 - Math.min(1, Math.abs(progress - at) * 2) ** 2;
  context.globalAlpha = between(0.25, 1, isThere);
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillStyle = colours.ink;
  const title = fitted(context, `${at + 1}. ${stop.title}`, width - 2 * PAD, 16, SANS, "600 ");
  context.font = `600 16px ${SANS}`;
  context.fillText(title, PAD, top + 18);
  context.font = `14px ${SANS}`;
  lines.forEach((line, i) => context.fillText(line, PAD, top + 42 + i * LINE));
  context.globalAlpha = 1;
  context.fillStyle = colours.accent;
  context.fillRect(0, top - 1, (width * progress) / Math.max(1, film.stops.length - 1), 3);
}

/** Height of the caption: that of the longest sentence, so that the picture does not move. */
function captionRoom(context, film, width) {
  const lines = Math.max(...film.stops.map((stop) => captionOf(context, stop, width).length));
  return 42 + lines * LINE;
}

/**
 * Draw one moment. progress: 0 at the first stop, a whole number at each stop. aside: {x, y, zoom}, the user's pan
 * and zoom relative to the stop's frame.
 */
export function paint(context, film, progress, { width, height, colours, aside = { x: 0, y: 0, zoom: 1 } }) {
  const { stops, frames } = film;
  const room = captionRoom(context, film, width);
  const view = { width: width * 0.97, height: Math.max(120, height - room) * 0.97 };
  const at = Math.max(0, Math.min(stops.length - 1, progress));
  const from = Math.floor(at);
  const [start, end] = [from, Math.min(from + 1, stops.length - 1)].map((i) => cameraOver(frames[stops[i].id], view));
  const camera = cameraBetween(start, end, at - from);
  const seen = { x: camera.x + aside.x, y: camera.y + aside.y, span: camera.span / 0.97 / aside.zoom };
  const pen = new Pen(context, { width, height, middle: (height - room) / 2, colours, camera: seen });
  film.pen = Object.assign(pen, { below: room }); // converts a point of the picture to the scene
  context.fillStyle = colours.paper;
  context.fillRect(0, 0, width, height);
  paintWords(pen, film, at);
  paintAttention(pen, film, at);
  paintStream(pen, film, at);
  paintCaption(context, film, at, { width, height, colours, room });
}

/** A stop in words. */
export const described = (film, i) => `${i + 1}. ${film.stops[i].title}. ${film.stops[i].says}`;
