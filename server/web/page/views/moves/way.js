// Measures the ways of one or more words: points in a common plane or space, lengths, remaining distances.
import { shownToken } from "../../core/model.js";
import { labelOf, stepsOf, whatOf } from "./steps.js";
import { addTo, dot, lengthOf, onAxes, orthonormal, shareHeld, sumOf, withPrincipal, zeros } from "./vectors.js";

const SOURCES = ["word", "head", "more", "rest", "attention", "cross"]; // all additions of attention except its bias
const DIMENSIONS = { plane: 2, space: 3 };

const MOST_READ = 3; // words of the lens

/**
 * {ways, axes: [{vector, name}], share, apart, difference, leftOut}. A way's steps have {what, label, size, share,
 * stretch, left, to, reads}: size: the step's length; share: the part of its square that the picture holds; stretch:
 * size over the length in the picture, which a way has for its whole vector; left: the distance from its end to the
 * way's end; to: its end point; reads: the words that the lens of the entry (`entry.lens`) reads there, or null. apart:
 * the share of the differences between the ends that the picture holds. difference: the largest distance of the sum of
 * all steps from the real state, in all dimensions. leftOut: the step of the word with the largest addition, if it is
 * not among the sources of the axes.
 */
export function measured(entries, { layers, layer, axes: asked, space, key, hasMlps }) {
  const ways = entries.map((entry) => stepsOf(entry, layers, layer, hasMlps));
  ways.forEach((way, i) => way.steps.forEach((step) => (step.reads = readAt(entries[i].lens, step.state))));
  const axes = axesOf(ways, asked, DIMENSIONS[space], key);
  for (const way of ways) measure(way, axes.map((axis) => axis.vector));
  if (space === "plane" && extent(ways, 1) > extent(ways, 0)) { // the picture is wider than tall
    axes.reverse();
    for (const way of ways) measure(way, axes.map((axis) => axis.vector));
  }
  const vectors = axes.map((axis) => axis.vector);
  const added = ways.flatMap((way) => way.steps.slice(1).map((step) => step.vector));
  return { ways, axes, share: shareHeld(added, vectors), apart: shareHeld(apartFrom(ways), vectors),
    leftOut: asked === "sources" ? leftOut(ways[0]) : undefined,
    difference: Math.max(...ways.map((way) => way.difference)) };
}

/** The likeliest words at a state by the lens, without punctuation; null if there are none. */
function readAt(lens, state) {
  const words = state === null ? null : lens?.top_tokens[state]?.[0].filter((token) => /[\p{L}\p{N}]/u.test(token));
  return words?.length ? words.slice(0, MOST_READ).map(shownToken) : null;
}

/** The true length of a vector over its length along the axes; 1 if the axes hold nothing of it. */
const stretchOf = (share) => (share > 1e-9 ? 1 / Math.sqrt(share) : 1);

/** The extent of the ways along an axis. */
function extent(ways, axis) {
  const at = ways.flatMap(({ from, steps }) => [...(steps[0].kind === "state" ? [] : [from]), ...steps.map((step) => step.to)])
    .map((point) => point[axis]);
  return Math.max(...at) - Math.min(...at);
}

function measure(way, axes) {
  const running = zeros(way.width);
  const left = (here) => lengthOf(addTo(Float64Array.from(way.end), here, -1));
  way.from = onAxes(running, axes);
  for (const step of way.steps) {
    addTo(running, step.vector);
    step.size = lengthOf(step.vector);
    step.share = shareHeld([step.vector], axes);
    step.stretch = stretchOf(step.share);
    step.to = onAxes(running, axes);
    step.left = left(running);
    step.what = whatOf(step, way);
    step.label = labelOf(step, way);
  }
  way.difference = left(running);
  way.stretch = stretchOf(shareHeld([addTo(Float64Array.from(way.end), way.steps[0].vector, -1)], axes));
  way.endLength = lengthOf(way.end);
  way.rounded = way.steps.filter((step) => step.kind === "rounding").reduce((sum, step) => sum + step.size, 0);
}

/**
 * The steps that determine the axes of sources: heads, or words other than the word itself and the first one, which
 * often receives unused weight. Without such words, all words.
 */
function sourcesOf(way) {
  const sources = way.steps.filter((step) => step.kind === "head" || step.kind === "word");
  const others = sources.filter((step) => step.kind === "head" || (step.key !== 0 && step.key !== way.position));
  return others.length ? others : sources;
}

function leftOut(way) {
  const [largest] = way.steps.filter((step) => step.kind === "word").sort((a, b) => b.size - a.size);
  return sourcesOf(way).includes(largest) ? undefined : largest;
}

/** The difference of each way's end from the mean of the ends. */
function apartFrom(ways) {
  const mean = sumOf(ways.map((way) => way.end), ways[0].width).map((value) => value / ways.length);
  return ways.map((way) => addTo(Float64Array.from(way.end), mean, -1));
}

/**
 * The selected axes, each directed so that the first way ends at a positive coordinate. A plane has no axis for the
 * start of the word, because the additions are often a hundred times as long.
 */
function axesOf(ways, asked, count, key) {
  const { width, end } = ways[0];
  const start = sumOf(ways.map((way) => way.steps[0].vector), width);
  const added = ways.flatMap((way) => way.steps.slice(1).map((step) => step.vector));
  const of = (...kinds) => sumOf(ways.flatMap((way) => way.steps.filter((step) => kinds.includes(step.kind)))
    .map((step) => step.vector), width);
  const own = ways[0].steps[0].kind === "state" ? "the state before" : "the embedding";
  const begin = count > 2 ? [[start, own]] : [];
  let named;
  if (asked === "apart") {
    const axes = withPrincipal([], apartFrom(ways), Math.min(count, ways.length - 1));
    named = axes.map((vector, i) => ({ vector, name: `what sets the contexts apart${i ? ", second" : ""}` }));
  } else if (asked === "parts") {
    const wanted = [[start, own], [of(...SOURCES), "the addition of attention"],
      [of("mlp"), "the addition of the MLPs"]];
    named = namedAxes(wanted).slice(0, count);
  } else if (asked === "key") {
    const chosen = ways.flatMap((way) => way.steps.filter((step) => step.kind === "word" && step.key === key(way)));
    named = namedAxes([...begin, [sumOf(chosen.map((step) => step.vector), width), "the addition of the chosen word"]]);
  } else {
    named = namedAxes(begin);
  }
  const isOfSources = asked === "sources" || asked === "key";
  const sources = ways.flatMap(sourcesOf).map((step) => step.vector);
  const begun = withPrincipal(named.map((axis) => axis.vector), isOfSources ? sources : [], count);
  const whose = ways[0].steps.some((step) => step.kind === "head") ? "heads" : "other words";
  const most = isOfSources && sources.length ? `most of what ${whose} add` : "most of what is added";
  const all = withPrincipal(begun, added, count);
  return all.map((vector, i) => {
    const turned = dot(vector, end) < 0 ? vector.map((value) => -value) : vector;
    return { vector: turned, name: named[i]?.name ?? (i === named.length ? most : "most of the rest") };
  });
}

/** Orthogonal axes from the given directions, with their names; linearly dependent directions are omitted. */
function namedAxes(wanted) {
  const named = [];
  for (const [vector, name] of wanted) {
    const axes = orthonormal([...named.map((axis) => axis.vector), vector]);
    if (axes.length > named.length) named.push({ vector: axes.at(-1), name });
  }
  return named;
}
