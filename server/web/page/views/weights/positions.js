// Position encodings of a network: sinusoids by their formula, learned vectors, or rotated pairs.
import { useLook } from "../../core/fetching.js";
import { html, useMemo } from "../../core/html.js";
import { clamp, shownToken, stackAt, useCapabilities, useHead, useInput } from "../../core/model.js";
import { format, grouped, indices } from "../../core/numbers.js";
import { useSequences } from "../../core/sequences.js";
import { useSelection } from "../../core/state.js";
import { ColourScale, Matrix, scaleOf } from "../../parts/matrix.js";
import { Answer } from "../../parts/problem.js";
import { HeadPicker } from "../../parts/shared_bar.js";
import { Card } from "../../parts/tools.js";
import { POSITIONS } from "../attention/kinds.js";
import { useLackOfWeights, useWeight, WeightCard } from "./asks.js";
import { Clocks, PairTable } from "./clocks.js";

const ROWS = 64; // positions
const COLUMNS = 128; // numbers of a position
export function Positions() {
  const { model } = useCapabilities();
  const { stack, layer } = useHead();
  const own = stackAt(stack, layer).positions;
  const told = own.map((name) => POSITIONS[name] ?? name).join("; ");
  return html`<p><b>${model}</b>${own.length ? `: ${told}.` : " adds nothing about positions in this layer."}</p>
    ${own.includes("rotary") && html`<${Rotation} />`}
    ${own.includes("learned") && html`<${Learned} />`}
    <${Sinusoids} isOwn=${own.includes("sinusoidal")} />`;
}

/** Each pair of the query's numbers is a clock hand. */
function Rotation() {
  const selection = useSelection();
  const { part, prefix, stack, layer, head } = useHead();
  const lack = useLackOfWeights();
  const rope = useWeight(lack ? null : `${prefix}blocks.${layer}.attn.rotary_frequencies`);
  const angles = rope.array?.data ?? null;
  const sequences = useSequences();
  const tokens = sequences[part === "encoder" ? "encoder" : "decoder"];
  const position = tokens.length ? clamp(selection.query, tokens.length) : null;
  const points = ["hook_q", "hook_rot_q"].map((point) => `${prefix}blocks.${layer}.attn.${point}`);
  const body = { ...useInput(), points, positions: position ?? 0, heads: head };
  const trace = useLook(position === null || lack ? null : "v1/trace", body);
  const pairs = useMemo(() => (angles ? pairsOf(angles, position ?? 0, trace.entry, points) : []), [angles, position, trace.entry]);
  return html`<${WeightCard} title=${`Rotation: layer ${layer}, head ${head}`} copy=${{ route: rope.route }}>
    <${HeadPicker} />
    <p>Before a query meets the keys, its numbers are taken in pairs, and each pair is turned like the hand of a clock: by its own
      angle for each position. Keys are turned in the same way, so that a product of both depends on their distance.
      Fast pairs distinguish near words, slow ones far words.</p>
    ${position !== null && html`<p>“<b class="query">${shownToken(tokens[position])}</b>” is at position ${position}: pair i
      is turned by ${position} × its angle.</p>`}
    <${Answer} answer=${{ ...rope, loading: rope.loading || trace.loading, error: rope.error ?? trace.error }}>${() =>
      html`<${Clocks} pairs=${pairs} isMeasured=${Boolean(trace.entry)} />`}<//>
    <${PairTable} pairs=${pairs} position=${position ?? 0} isMeasured=${Boolean(trace.entry) && !stack.qk_norm} />
    ${stack.qk_norm && html`<p class="hint">This model also scales queries between the two, so hands change their lengths and
      directions by more than the angle.</p>`}
  <//>`;
}

/** Radians a position, the pair's two numbers, and the angle between them. */
function pairsOf(angles, position, entry, points) {
  const half = angles.length;
  const [before, after] = points.map((point) => entry?.arrays[point]?.data ?? null);
  return Array.from(angles, (angle, i) => {
    const pair = (data) => (data ? [data[i], data[i + half]] : null);
    const [from, to] = [pair(before), pair(after)];
    const turned = from && to ? Math.atan2(to[1], to[0]) - Math.atan2(from[1], from[0]) : null;
    return { angle, whole: angle * position, before: from, after: to, turned };
  });
}

function Learned() {
  const lack = useLackOfWeights();
  const { prefix, stack } = useHead();
  const rows = Math.min(ROWS, stack.max_model_len ?? ROWS);
  const columns = Math.min(COLUMNS, stack.hidden_size);
  const weight = useWeight(lack ? null : `${prefix}pos_embed.W_pos`, { rows: `0:${rows}`, columns: `0:${columns}` });
  return html`<${WeightCard} title=${html`Learned: the first rows of W<sub>pos</sub>`}>
    <${Answer} answer=${weight}>${() => html`<${Table} values=${weight.array.data} rows=${rows} columns=${columns}
      label="The vectors of the first positions" />`}<//><//>`;
}

/** The table of Vaswani et al. 2017, section 3.5, for vectors with the model's width. */
function Sinusoids({ isOwn }) {
  const { stack } = useHead();
  const width = stack.hidden_size;
  const columns = Math.min(COLUMNS, width);
  const values = useMemo(() => sinusoids(ROWS, columns, width), [columns, width]);
  const saved = [{ label: "sinusoids", array: { data: values, shape: [ROWS, columns] } }];
  return html`<${Card} title="Sinusoids, by their formula" save=${{ name: "sinusoids", arrays: saved }}>
    <p>${isOwn ? "This model adds such a table; it may keep its sines and cosines in another order."
      : "This model does not use them; the first transformer did, and they are drawn here as wide as this model's vectors."}</p>
    <p class="formula">PE[p, 2i] = sin(p / 10000^(2i/${width})), PE[p, 2i+1] = cos(p / 10000^(2i/${width}))</p>
    <p>Each row is the addition to the word at one position. The columns on the left swing fast, those on the right
      slowly, so that no two rows are alike.</p>
    <${Table} values=${values} rows=${ROWS} columns=${columns} label="Sinusoids of the first positions" />
  <//>`;
}

function sinusoids(rows, columns, width) {
  const at = (position, column) => {
    const angle = position / 10000 ** ((column - (column % 2)) / width);
    return column % 2 ? Math.cos(angle) : Math.sin(angle);
  };
  return Float32Array.from({ length: rows * columns }, (_, i) => at(Math.floor(i / columns), i % columns));
}

function Table({ values, rows, columns, label }) {
  const names = useMemo(() => ({ rows: indices(rows), columns: indices(columns) }), [rows, columns]);
  return html`<${ColourScale} ...${scaleOf(values, "diverging")} />
    <${Matrix} values=${values} rowNames=${names.rows} columnNames=${names.columns} rowTitle="position" columnTitle="d_model"
      kind="diverging" square=${false} maxCell=${9} label=${label}
      describe=${(row, column) => `position ${row}, number ${column}: ${format(values[row * columns + column])}`} />
    <p class="hint">${rows} positions, the first ${grouped(columns)} numbers of each.</p>`;
}
