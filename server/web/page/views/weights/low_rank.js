// A head's output circuit as three pictures: value-down, value-up, and the large matrix that is their product.
import { useLook } from "../../core/fetching.js";
import { html, useCallback, useMemo } from "../../core/html.js";
import { useHead } from "../../core/model.js";
import { format, grouped, indices } from "../../core/numbers.js";
import { useStore } from "../../core/store.js";
import { theme } from "../../core/theme.js";
import { Lines } from "../../parts/lines.js";
import { ColourScale, bitmapOf, clippedScale } from "../../parts/matrix.js";
import { frame, write } from "../../parts/ink.js";
import { Picture } from "../../parts/picture.js";
import { Answer } from "../../parts/problem.js";
import { HeadPicker } from "../../parts/shared_bar.js";
import { Term } from "../../parts/term.js";
import { useLackOfWeights, useWeight, WeightCard } from "./asks.js";

const MOST = 384; // rows and columns of the product that is drawn; of a larger one every n-th

export function LowRank() {
  const lack = useLackOfWeights();
  const { part, prefix, layer, head, keyHead } = useHead();
  const owner = `${prefix}blocks.${layer}.${part === "cross" ? "cross_attn" : "attn"}`;
  const down = useWeight(lack ? null : `${owner}.W_V`, { head: keyHead });
  const up = useWeight(lack ? null : `${owner}.W_O`, { head });
  const body = { part, layers: layer, heads: head };
  const circuits = useLook(lack ? null : "v1/circuits", body);
  const product = useMemo(() => (fits(down.array, up.array) ? productOf(down.array, up.array) : null), [down.array, up.array]);
  const arrays = [{ label: "value down", array: down.array }, { label: "value up", array: up.array }];
  const answer = { ...down, data: product, loading: down.loading || up.loading, error: down.error ?? up.error };
  return html`<${WeightCard} title=${`Value down, value up: layer ${layer}, head ${head}`} copy=${{ route: down.route ?? "" }}
      save=${product && { name: `layer-${layer}-head-${head}-values`, arrays }}>
    <${HeadPicker} />
    <${Answer} answer=${answer}>${() => html`<${Told} down=${down.array} up=${up.array} product=${product} />`}<//>
    <h3>How much of the small space the head uses</h3>
    <${Answer} answer=${circuits}>${([entry]) => html`<${Spectrum} entry=${entry} size=${down.array?.shape[0]} />`}<//>
  <//>`;
}

const fits = (down, up) => Boolean(down && up && down.shape[1] === up.shape[0]);

/** Of every `step`-th row and column. */
function productOf({ data: down, shape: [rows, width] }, { data: up, shape: [, columns] }) {
  const step = Math.ceil(Math.max(rows, columns) / MOST);
  const [tall, wide] = [Math.ceil(rows / step), Math.ceil(columns / step)];
  const data = new Float32Array(tall * wide);
  for (let i = 0; i < tall; i += 1) {
    for (let k = 0; k < width; k += 1) {
      const factor = down[i * step * width + k];
      for (let j = 0; j < wide; j += 1) data[i * wide + j] += factor * up[k * columns + j * step];
    }
  }
  return { data, rows: tall, columns: wide, step };
}

function Told({ down, up, product }) {
  const [rows, width] = down.shape;
  const columns = up.shape[1];
  const small = rows * width + width * columns;
  const ratio = (rows * columns) / small;
  return html`<p>The head takes a word's ${grouped(rows)} numbers down to ${grouped(width)} (W<sub>V</sub>, value down), and
      the weighted sum back up to ${grouped(columns)} (W<sub>O</sub>, value up). Together they are one matrix
      of ${grouped(rows)} × ${grouped(columns)}, but made of far fewer numbers, and its rank is at most ${grouped(width)}.</p>
    <dl class="facts"><dt>value down and value up</dt><dd><b class="number">${grouped(rows)} × ${grouped(width)} + ${grouped(width)} ×${" "}
        ${grouped(columns)} = ${grouped(small)}</b> numbers</dd>
      <dt>the matrix that they stand for</dt><dd><b class="number">${grouped(rows)} × ${grouped(columns)} = ${
        grouped(rows * columns)}</b> numbers, ${ratio >= 1 ? `${format(ratio, 3)} times as many`
        : "fewer: this head's space is large for the model"}</dd></dl>
    <${Three} down=${down} up=${up} product=${product} />
    ${product.step > 1 && html`<p class="hint">Of every ${product.step} rows and columns of the product, one is drawn.</p>`}`;
}

function Three({ down, up, product }) {
  const mode = useStore(theme);
  const [rows, width] = down.shape;
  const columns = up.shape[1];
  const scales = useMemo(() => [down, up, product].map(({ data }) => clippedScale(data)), [down, up, product]);
  const maps = useMemo(() => [[down.data, rows, width], [up.data, width, columns], [product.data, product.rows, product.columns]]
    .map(([data, tall, wide], i) => bitmapOf(data, tall, wide, { ...scales[i], mode })), [scales, mode]);
  const unitOf = (total) => Math.min(2, (total - 70) / (width + 2 * columns));
  const draw = useCallback((context, { width: total, colours }) => {
    const unit = unitOf(total);
    const [x, y] = [4, 24];
    const places = [["W_V", x, y, width, rows, "×"], ["W_O", x + width * unit + 28, y, columns, width, "="],
      ["W_V W_O", x + (width + columns) * unit + 56, y, columns, rows, ""]];
    places.forEach(([name, left, top, wide, tall, sign], i) => {
      context.imageSmoothingEnabled = unit < 1;
      context.drawImage(maps[i], left, top, wide * unit, tall * unit);
      frame(context, left - 0.5, top - 0.5, wide * unit + 1, tall * unit + 1, colours.line);
      write(context, name, left, 10, colours.ink, { weight: "600" });
      write(context, sign, left + wide * unit + 14, top + (width * unit) / 2, colours.ink, { weight: "600", align: "center" });
    });
  }, [maps]);
  return html`<${Picture} draw=${draw} height=${(total) => Math.ceil(30 + rows * Math.max(unitOf(total), 0.05))}
    label=${`W_V, ${rows} by ${width}, times W_O, ${width} by ${columns}, is a matrix of ${rows} by ${columns}`} />
    <div class="toolbar low-rank-scales">${["W_V", "W_O", "W_V W_O"].map((name, i) => html`<span>${name}${" "}
      <${ColourScale} ...${scales[i]} /></span>`)}</div>
    <p class="hint">Each matrix has a scale of its own. It ends where 99 of 100 numbers do; larger ones have the colour of the end.</p>`;
}

function Spectrum({ entry, size }) {
  const values = Array.from(entry.arrays["ov.singular_values"].data);
  const rank = entry.arrays["ov.effective_rank"].data[0];
  return html`<p>Singular values measure the strength of each direction of the head. There are ${values.length}; the
      other ${size ? grouped(size - values.length) : ""} of a full matrix are 0. <${Term} of="effective rank">Effective rank<//>${" "}
      <b>${format(rank, 3)}</b>: as spread out as ${format(rank, 3)} equal values.</p>
    <${Lines} series=${[{ name: "W_V W_O", values }]} points=${indices(values.length, 1)} title="singular value, by size"
      low=${0} label="Singular values of value down times value up" />`;
}
