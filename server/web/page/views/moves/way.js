// Measures the ways of one or more words: points in a common plane or space, lengths, remaining distances.
import { shownToken } from "../../core/model.js";
import { dot, lengthOf } from "../../core/projection.js";
import { labelOf, stepsOf, whatOf } from "./steps.js";
import { addTo, onAxes, orthonormal, shareHeld, sumOf, withPrincipal, zeros } from "./vectors.js";

const SOURCES = ["word", "head", "more", "rest", "attention", "cross"]; // all additions of attention except its bias
const DIMENSIONS = { plane: 2, space: 3 };

const MOST_READ = 3; // words of the lens

/**
 * {ways, axes: [{vector, name}], share, apart, difference, leftOut}. A way's steps have {what, label, size, share,
 * stretch, left, to, reads}: size: the step's length; share: the part of its square that the picture holds; stretch:
 * size over the length in the picture, which a way has for its whole vector; left: the distance to the way's end; to:
 * the end point; reads: the words that `entry.lens` reads there, or null. apart: the share of the differences between
 * the ends that the picture holds. difference: the largest distance of the sum of all steps from the real state.
 * leftOut: the step of the word with the largest addition, if it is not among the sources of the axes.
 */
export function measured(entries, { layers, layer, axes: asked, space, key, hasMlps }) {
  const ways = entries.map((entry) => stepsOf(entry, layers, layer, hasMlps));
  ways.forEach((way, i) => way.steps.forEach((step) => (step.reads = readAt(entries[i].lens, step.state))));
  const axes = axesOf(ways, asked, DIMENSIONS[space], key);
  const vectors = () => axes.map((axis) => axis.vector);
  const measureAll = () => ways.forEach((way) => measure(way, vectors()));
  measureAll();
  if (space === "plane" && extent(ways, 1) > extent(ways, 0)) { // the picture is wider than tall
    axes.reverse();
    measureAll();
  }
  return { ways, axes, share: shareHeld(addedBy(ways), vectors()), apart: shareHeld(apartFrom(ways), vectors()),
    leftOut: asked === "sources" ? leftOut(ways[0]) : undefined,
    difference: Math.max(...ways.map((way) => way.difference)) };
}

const vectorsOf = (steps) => steps.map((step) => step.vector);
const addedBy = (ways) => ways.flatMap((way) => vectorsOf(way.steps.slice(1)));
const lessOf = (vector, other) => addTo(Float64Array.from(vector), other, -1);

/** The likeliest words at a state, without punctuation; null if there are none. */
function readAt(lens, state) {
  const words = state === null ? null : lens?.top_tokens[state]?.[0].filter((token) => /[\p{L}\p{N}]/u.test(token));
  return words?.length ? words.slice(0, MOST_READ).map(shownToken) : null;
}

const stretchOf = (share) => (share > 1e-9 ? 1 / Math.sqrt(share) : 1);

function extent(ways, axis) {
  const at = ways.flatMap(({ from, steps }) => [...(steps[0].kind === "state" ? [] : [from]), ...steps.map((step) => step.to)])
    .map((point) => point[axis]);
  return Math.max(...at) - Math.min(...at);
}

function measure(way, axes) {
  const running = zeros(way.width);
  const left = () => lengthOf(lessOf(way.end, running));
  way.from = onAxes(running, axes);
  for (const step of way.steps) {
    addTo(running, step.vector);
    step.size = lengthOf(step.vector);
    step.share = shareHeld([step.vector], axes);
    step.stretch = stretchOf(step.share);
    step.to = onAxes(running, axes);
    step.left = left();
    step.what = whatOf(step, way);
    step.label = labelOf(step, way);
  }
  way.difference = left();
  way.stretch = stretchOf(shareHeld([lessOf(way.end, way.steps[0].vector)], axes));
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

function apartFrom(ways) {
  const mean = sumOf(ways.map((way) => way.end), ways[0].width).map((value) => value / ways.length);
  return ways.map((way) => lessOf(way.end, mean));
}

/**
 * The selected axes, each directed so that the first way ends at a positive coordinate. A plane has no axis for the
 * start of the word, because the additions are often a hundred times as long.
 */
function axesOf(ways, asked, count, key) {
  const { width, end } = ways[0];
  const sumWhere = (holds) => sumOf(vectorsOf(ways.flatMap((way) => way.steps.filter((step, i) => holds(step, i, way)))), width);
  const start = sumWhere((_, i) => i === 0);
  const own = ways[0].steps[0].kind === "state" ? "the state before" : "the embedding";
  const begin = count > 2 ? [[start, own]] : [];
  let named;
  if (asked === "apart") {
    const axes = withPrincipal([], apartFrom(ways), Math.min(count, ways.length - 1));
    named = axes.map((vector, i) => ({ vector, name: `what sets the contexts apart${i ? ", second" : ""}` }));
  } else if (asked === "parts") {
    named = namedAxes([[start, own], [sumWhere(({ kind }) => SOURCES.includes(kind)), "the addition of attention"],
      [sumWhere(({ kind }) => kind === "mlp"), "the addition of the MLPs"]]).slice(0, count);
  } else if (asked === "key") {
    const chosen = sumWhere((step, _, way) => step.kind === "word" && step.key === key(way));
    named = namedAxes([...begin, [chosen, "the addition of the chosen word"]]);
  } else {
    named = namedAxes(begin);
  }
  const isOfSources = asked === "sources" || asked === "key";
  const sources = vectorsOf(ways.flatMap(sourcesOf));
  const begun = withPrincipal(vectorsOf(named), isOfSources ? sources : [], count);
  const whose = ways[0].steps.some((step) => step.kind === "head") ? "heads" : "other words";
  const most = isOfSources && sources.length ? `most of what ${whose} add` : "most of what is added";
  return withPrincipal(begun, addedBy(ways), count).map((vector, i) => {
    const turned = dot(vector, end) < 0 ? vector.map((value) => -value) : vector;
    return { vector: turned, name: named[i]?.name ?? (i === named.length ? most : "most of the rest") };
  });
}

function namedAxes(wanted) {
  const named = [];
  for (const [vector, name] of wanted) {
    const axes = orthonormal([...vectorsOf(named), vector]);
    if (axes.length > named.length) named.push({ vector: axes.at(-1), name });
  }
  return named;
}
