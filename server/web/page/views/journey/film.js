// The journey as a film: the layout, the stops, and `paint`, which draws any moment of it on any context.
import { lengthOf, rowOf } from "../../core/projection.js";
import { SANS, fill } from "../../parts/ink.js";
import { rangeOf } from "../flow/diagram.js";
import { mixed, pairsOf, weightsAt } from "./attention.js";
import { arrival, cameraBetween, cameraOver, eased } from "./camera.js";
import { framesOf, layoutOf } from "./layout.js";
import { paintAttention } from "./paint_attention.js";
import { paintStream } from "./paint_stream.js";
import { paintWords } from "./paint_words.js";
import { Pen } from "./pen.js";
import { stopsOf } from "./stops.js";

const CAPTION = 36; // CSS pixels

export function filmOf(data, temperature, mode) {
  const products = pairsOf(data);
  const { numKeys } = products;
  const { explain, shown, query, stack, results } = data;
  const weights = weightsAt(products, explain.softmax.sink, temperature);
  const first = shown.indexOf(query) * numKeys;
  const rowWeights = weights.subarray(first, first + numKeys);
  const { k, v, z } = explain.arrays;
  // the MLP's neurons, or the experts' weights of a mixture
  const inner = ["mlp.hook_post", "mlp.hook_expert_weights"].find((id) => data.nodes.has(id)) ?? "hook_mlp_out";
  const headRows = results && Array.from({ length: stack.num_heads }, (_, head) => rowOf(results, head));
  const valueRows = new Map(shown.map((key) => [key, rowOf(v, key)])); // one array for each, for the cache of heatOf
  const film = {
    data, mode, temperature, products, weights, rowWeights, headRows,
    z: temperature === 1 ? z.data : mixed(v.data, rowWeights, numKeys),
    layout: layoutOf(data),
    largestDot: Math.max(...shown.flatMap((_, i) => shown.map((key) => Math.abs(products.dots[i * numKeys + key])))),
    lengths: headRows?.map(lengthOf) ?? null,
    valueOf: (key) => valueRows.get(key),
    valueRange: rangeOf(v.data, "diverging"),
    shownKeys: Float32Array.from(shown.flatMap((key) => [...rowOf(k, key)])),
    neurons: [inner, data.strips.get(inner)?.values ?? null],
    vector: (id) => data.strips.get(id)?.values,
    formula: (id) => data.nodes.get(id)?.how.join(", ") ?? "",
    endTitle: data.hasNext ? (data.capabilities.kind === "encoder" ? "In its place" : "Next word") : "The last vector",
  };
  const stops = stopsOf(film);
  const indexOf = (id) => Math.max(0, stops.findIndex((stop) => stop.id === id));
  return Object.assign(film, { stops, indexOf, frames: framesOf(film.layout) });
}

/** progress: a whole number at each stop. aside: {x, y, zoom}, the user's pan and zoom; hasCaption: with the stop's title. */
export function paint(context, film, progress, { width, height, colours, aside = { x: 0, y: 0, zoom: 1 }, hasCaption = false }) {
  const { stops, frames } = film;
  const size = { width, height: hasCaption ? height - CAPTION : height };
  const at = Math.max(0, Math.min(stops.length - 1, progress));
  const from = Math.floor(at);
  const [start, end] = [from, Math.min(from + 1, stops.length - 1)].map((i) => cameraOver(frames[stops[i].id], size));
  const camera = cameraBetween(start, end, at - from);
  const pen = new Pen(context, {
    ...size, colours, camera: { x: camera.x + aside.x, y: camera.y + aside.y, span: camera.span / aside.zoom },
  });
  film.pen = pen; // converts a point of the picture to the scene
  film.shareOf = (id) => eased(arrival(at, film.indexOf(id)));
  fill(context, 0, 0, width, height, colours.paper);
  paintWords(pen, film);
  paintAttention(pen, film);
  paintStream(pen, film);
  pen.write();
  if (!hasCaption) return;
  const stop = Math.round(at);
  context.font = `600 16px ${SANS}`;
  context.fillStyle = colours.ink;
  context.textAlign = "left";
  context.fillText(`${stop + 1}. ${stops[stop].title}`, 14, height - CAPTION / 2);
}

export const described = (film, i) => `${i + 1}. ${film.stops[i].title}. ${film.stops[i].says}`;
