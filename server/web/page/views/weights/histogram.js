// Histogram of the cosines of pairs of vectors, compared with random directions.
import { html, useMemo } from "../../core/html.js";
import { grouped, percent, sum } from "../../core/numbers.js";
import { Histogram } from "../../parts/histogram.js";

/** Density of the cosine of two random directions: (1 - c^2)^((d - 3) / 2), normalised over the bins. */
function randomShares(bins, dimension) {
  const density = Array.from({ length: bins }, (_, i) => {
    const cosine = -1 + (2 * (i + 0.5)) / bins;
    return Math.exp(((dimension - 3) / 2) * Math.log1p(-(cosine ** 2)));
  });
  const whole = sum(density);
  return density.map((value) => value / whole);
}

export function savedCosines({ arrays, dimension }) {
  const counts = Array.from(arrays.histogram.data);
  const total = sum(counts);
  const random = randomShares(counts.length, dimension);
  return [{ label: "pairs by cosine", columns: ["pairs", "of random directions"],
    lists: counts.map((count, bin) => [count, random[bin] * total]),
    rows: counts.map((_, bin) => `from ${(-1 + (2 * bin) / counts.length).toFixed(4)}`) }];
}

export function CosineHistogram({ counts, dimension }) {
  const random = useMemo(() => randomShares(counts.length, dimension), [counts, dimension]);
  const total = sum(counts) || 1;
  const expected = useMemo(() => random.map((share) => share * total), [random, total]);
  const describe = (bin, range) =>
    `${range}: ${grouped(counts[bin])} pairs, ${percent(counts[bin] / total, 3)}; random: ${percent(random[bin], 3)}`;
  return html`<${Histogram} counts=${counts} low=${-1} high=${1} expected=${expected} ticks=${[-0.5, 0, 0.5]} describe=${describe}
      height=${240} label="Histogram of the cosines between the vectors, with the curve of random directions" />
    <ul class="legend"><li><b class="accent">▮</b> cosines of this matrix</li><li><b>━</b> random directions
      in ${dimension} dimensions, spread 1/√${dimension}</li></ul>`;
}
