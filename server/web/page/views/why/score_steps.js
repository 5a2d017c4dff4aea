// From the words' vectors to q.k: the steps before the score.
import { useLook } from "../../core/fetching.js";
import { html, useMemo } from "../../core/html.js";
import { shownToken, useCapabilities, useInput } from "../../core/model.js";
import { descending, format } from "../../core/numbers.js";
import { dot, lengthOf, rowOf } from "../../core/projection.js";
import { useSelection } from "../../core/state.js";
import { FieldChoices } from "../../parts/choices.js";
import { Problem, Progress } from "../../parts/problem.js";
import { SavedStrips } from "../../parts/strips.js";
import { Term } from "../../parts/term.js";
import { POSITIONS } from "../attention/kinds.js";
import { Shape, Step, Word } from "./pair.js";


export function Vectors({ pair, stack, body }) {
  const capabilities = useCapabilities();
  const { entry, query, key } = pair;
  const isNormed = ["pre", "sandwich"].includes(stack.norm_placement);
  const point = `${capabilities.kind === "encoder-decoder" ? `${entry.part}.` : ""}${isNormed ? "ln1.hook_out"
    : "hook_resid_pre"}`;
  const answer = useLook("v1/trace", { ...useInput(), points: [point], layers: body.layer,
    positions: [...new Set([query, key])] });
  const found = answer.entry && Object.values(answer.entry.arrays)[0];
  const rows = useMemo(() => found && vectorRows(pair, found), [found, pair]);
  const size = stack.hidden_size;
  return html`<${Step} title="Two words, two vectors"
    formula=${html`x = ${isNormed && html`<${Term} of=${stack.norm === "rmsnorm" ? "RMSNorm" : "LayerNorm"} />(`}
      <${Term} of="residual stream" />${isNormed && ")"} <${Shape} of=${[size]} />`}
    says=${html`The input of layer ${entry.layer} for <${Word} pair=${pair} side="query" /> and <${Word} pair=${pair}
      side="key" />: ${size} numbers each, with the additions of all earlier
      layers.${stack.positions.map((name) => ` Positions: ${POSITIONS[name]}.`)}${stack.positions.includes("rotary") &&
      html` See <${Term} of="RoPE" />.`}`}>
    ${rows ? html`<${SavedStrips} name="vectors" rows=${rows} hasOneScale label="Both words' vectors" />`
      : html`<${Progress} active=${answer.loading} />`}
    <${Problem} error=${answer.error} retry=${answer.retry} />
  <//>`;
}

function vectorRows(pair, found) {
  const keyRow = pair.query === pair.key ? 0 : 1;
  const row = (token, place, tone) => ({ name: `x ${shownToken(token)}`, values: rowOf(found, place), tone, height: 54 });
  return [row(pair.queries[pair.query], 0, "query"), row(pair.keys[pair.key], keyRow, "key")];
}

export function Project({ pair, stack }) {
  const { entry } = pair;
  const rows = useMemo(
    () => [
      { name: "q", values: pair.qProjected, tone: "query", height: 42 },
      { name: "k", values: pair.kProjected, tone: "key", height: 42 },
    ],
    [pair],
  );
  const shapes = html`<${Shape} of=${[stack.hidden_size]} /> · <${Shape} of=${[stack.hidden_size,
    stack.head_dim]} /> → <${Shape} of=${[stack.head_dim]} />`;
  const isShared = stack.num_kv_heads < stack.num_heads;
  return html`<${Step} title="Query and key"
    formula=${html`<b class="query">q</b> = x W<sub>Q</sub>${" "} <b class="key">k</b> = x W<sub>K</sub><br />${shapes}`}
    says=${html`Two matrices of the head make a <${Term} of="query" /> of the word that looks and a <${Term} of="key" /> of
      the word that is looked at: ${stack.head_dim} numbers each, which the next steps compare.${isShared &&
      ` ${stack.num_heads / stack.num_kv_heads} heads share each key: this one uses key head ${entry.kv_head}.`}`}>
    <${SavedStrips} name="q-and-k" rows=${rows} label=${`q and k of layer ${entry.layer}, head ${entry.head}`} />
  <//>`;
}

export function Rotate({ pair, stack }) {
  const isTurned = stack.positions.includes("rotary");
  const rows = useMemo(() => {
    const row = (name, values, tone) => ({ name, values, tone, note: `|${name[0]}| ${format(lengthOf(values), 3)}`,
      height: 28 });
    return [
      row("q before", pair.qProjected, "muted"),
      row("q after", pair.q, "query"),
      row("k before", pair.kProjected, "muted"),
      row("k after", pair.k, "key"),
    ];
  }, [pair]);
  const before = dot(pair.qProjected, pair.kProjected);
  const isNormed = stack.qk_norm !== null;
  const titles = [isNormed && "Norm", isTurned && "Rotation by the position"].filter(Boolean);
  return html`<${Step} title=${titles.join(", and ")}
    formula=${html`q · k before <b>${format(before)}</b> → after <b>${format(pair.dot)}</b>`}
    says=${html`${isNormed && "A norm brings q and k to a standard length. "}${isTurned &&
      html`<${Turned} pair=${pair} />`} A rotation does not change the lengths, at the right.`}>
    <${SavedStrips} name="turned-q-and-k" rows=${rows} label="q and k before and after the rotation by position" />
  <//>`;
}

const Turned = ({ pair }) =>
  html`Pairs of numbers are rotated by an angle that grows with the position, ${pair.query} for q and ${pair.key} for k, so
      that only the distance of the two positions, ${format(pair.query - pair.key)}, counts in q · k.`;

export function Dot({ pair }) {
  const { why_order: order } = useSelection();
  const { products } = pair;
  const drawn = useMemo(() => {
    const indices = order === "sorted" ? descending(products) : new Uint32Array(products.length).map((_, i) => i);
    const sums = new Float64Array(products.length);
    indices.forEach((index, i) => {
      sums[i] = (i ? sums[i - 1] : 0) + products[index];
    });
    return { indices, sums };
  }, [pair, order]);
  const { indices, sums } = drawn;
  const rows = useMemo(
    () => [
      { name: "q", values: pair.q, tone: "query" },
      { name: "k", values: pair.k, tone: "key" },
      { name: "q × k", values: products, tone: "ink", height: 60, strong: true },
      { name: "sum so far", values: sums, tone: "muted", height: 64, sums: true, note: `= ${format(sums.at(-1))}` },
    ],
    [drawn],
  );
  const terms = [...descending(products)].slice(0, 2).map((i) => `${format(pair.q[i], 3)} × ${format(pair.k[i], 3)}`);
  return html`<${Step} title="Multiply number by number, and sum"
    formula=${html`<b class="query">q</b> · <b class="key">k</b> = ${terms.join(" + ")} + …
      = <b id="why-sum">${format(sums.at(-1))}</b>`}
    says=${html`If both are large with the same sign, the product is large. The ${products.length} products sum
      to <${Term} of="q·k">q · k<//>${" "}
      = <b id="why-dot">${format(pair.dot)}</b>.${order === "sorted" && " The largest products come first: few determine the sum."}`}
    tools=${html`<div class="toolbar"><${FieldChoices} field="why_order" label="Order"
      choices=${[["sorted", "largest first"], ["natural", "unchanged"]]} /></div>`}>
    <${SavedStrips} name="dot" rows=${rows} order=${indices} label="q, k, their products and the running sum"
      describe=${(_, i, column) =>
        `q ${format(pair.q[i])} × k ${format(pair.k[i])} = ${format(products[i])}; sum so far ${format(sums[column])}`} />
  <//>`;
}
