// Histogram of the cosines of pairs of vectors, compared with random directions.
import { html, useCallback, useState } from "../../core/html.js";
import { format, grouped } from "../../core/numbers.js";
import { Picture } from "../../parts/picture.js";

const MARGIN = { left: 8, right: 8, top: 24, bottom: 34 };

/**
 * Density of the cosine of two random directions in `dimension` dimensions: (1 - c^2)^((d - 3) / 2), normalised over
 * the bins.
 */
function randomShares(bins, dimension) {
  const density = Array.from({ length: bins }, (_, i) => {
    const cosine = -1 + (2 * (i + 0.5)) / bins;
    return Math.exp(((dimension - 3) / 2) * Math.log1p(-(cosine ** 2)));
  });
  const sum = density.reduce((total, value) => total + value, 0);
  return density.map((value) => value / sum);
}

/** The counts of an answer's histogram, and the expected counts for the same number of pairs of random directions. */
export function savedCosines({ arrays, dimension }) {
  const counts = Array.from(arrays.histogram.data);
  const total = counts.reduce((sum, count) => sum + count, 0);
  const random = randomShares(counts.length, dimension);
  return [{ label: "pairs by cosine", columns: ["pairs", "of random directions"],
    array: { data: Float64Array.from(counts.flatMap((count, bin) => [count, random[bin] * total])), shape: [counts.length, 2] },
    rows: counts.map((_, bin) => `from ${(-1 + (2 * bin) / counts.length).toFixed(4)}`) }];
}

/** counts: of equal bins from -1 to 1; dimension: of the vectors. */
export function CosineHistogram({ counts, dimension, handle, height = 260 }) {
  const [at, setAt] = useState(null);
  const bins = counts.length;
  const total = counts.reduce((sum, count) => sum + count, 0) || 1;
  const draw = useCallback(
    (context, { width, height: tall, colours }) => {
      const random = randomShares(bins, dimension);
      const top = Math.max(...random, ...counts.map((count) => count / total));
      const step = (width - MARGIN.left - MARGIN.right) / bins;
      const ground = tall - MARGIN.bottom;
      const yOf = (share) => ground - (share / top) * (ground - MARGIN.top);
      context.fillStyle = colours.accent;
      counts.forEach((count, i) => context.fillRect(MARGIN.left + i * step, yOf(count / total),
        Math.max(step - 0.5, 0.5), ground - yOf(count / total)));
      context.strokeStyle = colours.ink;
      context.lineWidth = 2;
      context.beginPath();
      random.forEach((share, i) => context[i ? "lineTo" : "moveTo"](MARGIN.left + (i + 0.5) * step, yOf(share)));
      context.stroke();
      context.font = "12px system-ui, sans-serif";
      context.textBaseline = "top";
      context.fillStyle = colours.muted;
      for (const tick of [-1, -0.5, 0, 0.5, 1]) {
        context.textAlign = tick === -1 ? "left" : tick === 1 ? "right" : "center";
        context.fillText(String(tick).replace("-", "−"), MARGIN.left + ((tick + 1) / 2) * bins * step, ground + 4);
      }
      context.textAlign = "center";
      context.fillText("cosine", width / 2, ground + 19);
    },
    [counts, dimension],
  );
  const overlay = useCallback(
    (context, { width, height: tall, colours }) => {
      if (at === null) return;
      const step = (width - MARGIN.left - MARGIN.right) / bins;
      context.strokeStyle = colours.ink;
      context.strokeRect(MARGIN.left + at * step, MARGIN.top, step, tall - MARGIN.top - MARGIN.bottom);
    },
    [at, bins],
  );
  const move = (bin) => setAt(Math.max(0, Math.min(bins - 1, bin)));
  const from = (bin) => -1 + (2 * bin) / bins;
  const readout = at === null ? "" : `${format(from(at), 2)} to ${format(from(at + 1),
    2)}: ${grouped(counts[at])} pairs, ${format((counts[at] / total) * 100,
      3)} %; random: ${format(randomShares(bins, dimension)[at] * 100, 3)} %`;
  return html`<${Picture} draw=${draw} overlay=${overlay} height=${height} handle=${handle} readout=${readout}
      label="Histogram of the cosines between the vectors, with the curve of random directions"
      onPoint=${(x, _, width) => (x === null ? setAt(null)
        : move(Math.floor(((x - MARGIN.left) / (width - MARGIN.left - MARGIN.right)) * bins)))}
      onKey=${(key) => {
        if (key === "ArrowRight") move((at ?? bins / 2 - 1) + 1);
        else if (key === "ArrowLeft") move((at ?? bins / 2 + 1) - 1);
        else return false;
        return true;
      }} />
    <ul class="legend"><li><b class="accent">▮</b> this matrix</li><li><b>━</b> random directions
      in ${dimension} dimensions, spread 1/√${dimension}</li></ul>`;
}
