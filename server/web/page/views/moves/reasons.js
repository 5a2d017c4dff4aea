// Reasons for the model's answer (a token, a label or a score): parts of its logit less the runner-up's, by word, head or layer.
import { interventionsOf } from "../../core/changes.js";
import { useJson } from "../../core/fetching.js";
import { html, useMemo } from "../../core/html.js";
import { lackOf, shownToken, textsOf, useCapabilities } from "../../core/model.js";
import { format, percent, sum } from "../../core/numbers.js";
import { saved } from "../../core/place.js";
import { select, useSelection } from "../../core/state.js";
import { Bars } from "../../parts/bars.js";
import { FieldChoices } from "../../parts/choices.js";
import { Field } from "../../parts/field.js";
import { Answer } from "../../parts/problem.js";
import { spaced } from "../../parts/target_field.js";
import { Tokens } from "../../parts/tokens.js";
import { Card } from "../../parts/tools.js";
import { Waterfall } from "../../parts/waterfall.js";
import { HeadMap, largestFirst } from "./who.js";

const SHOWN = 12; // words of the waterfall

export const answersWithLabels = (capabilities) =>
  lackOf(capabilities, "/v1/next") !== null && lackOf(capabilities, "/v1/classify") === null;

/** {route, body} of the answer and its reasons, or null if the model does not support them. */
function requestOf(selection, capabilities, query, part) {
  const { contributions_by: by, contributions_verify: verify, contributions_pair: pair } = selection;
  const explain = { by, verify: by === "word" ? Number(verify) : 0 };
  if (answersWithLabels(capabilities)) {
    if (pair === "" || lackOf(capabilities, "/v1/score")) return { route: "v1/classify", body: { input: selection.text, explain } };
    return { route: "v1/score", body: { text_1: selection.text, text_2: pair, explain } };
  }
  const isOther = part === "encoder" && capabilities.kind !== "encoder"; // only the decoder predicts
  if (lackOf(capabilities, "/v1/next") || isOther) return null;
  return { route: "v1/next", body: { ...textsOf(selection, capabilities), position: query, num_tokens: 6, explain } };
}

export function Reasons({ query, part }) {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const request = requestOf(selection, capabilities, query, part);
  const canAsk = request !== null && selection.text !== "" && (request.route !== "v1/next" || query !== null);
  const answer = useJson(canAsk ? request.route : null, request?.body);
  if (request === null) return null;
  const entry = answer.data?.data[0];
  const { contributions_by: by } = selection;
  const isRefused = answer.error?.code === "not_explainable";
  const tools = html`<${FieldChoices} field="contributions_by" label="Split by"
      choices=${["word", "head", "layer"].map((name) => [name, name])} />
    ${by === "word" && html`<${FieldChoices} field="contributions_verify" label="Take out"
      choices=${[["8", "8 words"], ["3", "3 words"], ["0", "nothing: estimates"]]} />`}`;
  return html`<${Card} class="contributions-rows reasons" title=${TITLES[request.route]} aside=${tools} copy=${request}
      save=${entry && { name: "reasons", arrays: savedParts(entry.reasons) }}>
    ${answersWithLabels(capabilities) && html`<${PairField} lack=${lackOf(capabilities, "/v1/score")} />`}
    ${interventionsOf(selection, capabilities).length > 0 && html`<p class="hint">This card shows the unchanged model.</p>`}
    ${isRefused ? html`<p class="lack">${refusalOf(answer.error)}</p>`
      : html`<${Answer} answer=${answer} minHeight="25rem">${() => html`<${Told} entry=${entry} />`}<//>`}
  <//>`;
}

/** The server's error text without sentences about a field that the page does not offer. */
const refusalOf = ({ message }) =>
  message.replace(/^explain: (.)/, (_, letter) => letter.toUpperCase()).replace(/; [^;]* accepted\.$/, ".");

const TITLES = { "v1/next": "Why this word?", "v1/classify": "Why this label?", "v1/score": "Why this score?" };

function PairField({ lack }) {
  const { contributions_pair: pair } = useSelection();
  if (lack || saved) return null;
  return html`<div class="toolbar"><label class="pair-field">Second text of a pair
    <${Field} type="text" value=${pair} placeholder="none: only the text" isLive
      onTake=${(value) => select({ contributions_pair: value })} /></label></div>`;
}

const nameOf = ({ option, label, token }) => option ?? label ?? spaced(token);

function Told({ entry }) {
  const { reasons } = entry;
  const { target, versus, value, sum: whole, by } = reasons;
  const Drawn = { word: ByWord, head: ByHead, layer: ByLayer }[by];
  return html`<p class="hint"><code class="word">${nameOf(target)}</code> ${chanceOf(entry)}${versus && html`, rather
      than <code class="word">${nameOf(versus)}</code>`}: its logit is${" "}
      <b id="reasons-value">${format(value)}</b>${versus && " larger"}. All parts together are <b id="reasons-sum">${
      format(whole)}</b>; a part speaks <b class="positive">for</b> it or <b class="negative">against</b> it.</p>
    <${Drawn} reasons=${reasons} />`;
}

function chanceOf({ score, probs, temperatures }) {
  if (score !== undefined) return `scores ${format(score)}`;
  return probs ? `has ${format(Math.max(...probs))}` : percent(temperatures[0].tokens[0].probability);
}

const wordName = ({ token, position, stack }) => `${shownToken(token)} (${stack === "encoder" ? "encoder " : ""}${position})`;
const restOf = (reasons) => Object.entries(reasons.rest).map(([name, value]) => ({ name, value }));

function Steps({ reasons, steps, label, onPick }) {
  const all = useMemo(() => [...steps, ...restOf(reasons)], [reasons]);
  return html`<${Waterfall} steps=${all} total=${{ name: reasons.versus ? "difference" : "logit", value: reasons.sum }}
    label=${label} onPick=${onPick} />`;
}

function ByWord({ reasons }) {
  const { parts, verify } = reasons;
  const stacks = [...new Set(parts.map(({ stack }) => stack))];
  const measured = useMemo(() => verify && measuredOf(reasons), [reasons]);
  const weightOf = (part) => (measured ? measured.rows.find((row) => row.part === part)?.value : part.value);
  const most = Math.max(...(measured?.rows ?? parts).map(({ value }) => Math.abs(value)), 1e-30);
  const Drawn = measured ? Measured : Estimated;
  const shared = { parts, most, weightOf };
  return html`${stacks.map((stack) => html`<${StackWords} key=${stack} stack=${stack} ...${shared} />`)}
    <${Drawn} reasons=${reasons} measured=${measured} />`;
}

/** {rows: [{part, value, estimate}], all}: the logit with each word less the logit without it, the largest first. */
function measuredOf({ parts, verify, value }) {
  const rows = verify.filter(({ words }) => words.length === 1).map(({ words: [word], predicted, measured }) => ({
    part: parts.find(({ position, stack }) => position === word.position && stack === word.stack),
    value: value - measured, estimate: value - predicted }));
  return { rows: rows.sort((a, b) => Math.abs(b.value) - Math.abs(a.value)), all: verify.find(({ words }) => words.length > 1) };
}

function Measured({ reasons, measured: { rows, all } }) {
  return html`<${Bars} columns=${["without", "measured", "estimate"]} onPick=${(row) => select({ key: rows[row].part.position })}
      rows=${rows.map(({ part, value, estimate }) => ({ name: wordName(part), value, note: format(estimate) }))}
      caption=${`How far the logit${reasons.versus ? "’s lead" : ""} falls without the word: measured by taking the word out. The
        estimate is the word’s own part; where they differ, other words took over.`} />
    ${all && html`<p class="hint">Without all ${all.words.length} words at once it is ${format(all.measured)}; the estimate is ${
      format(all.predicted)}.</p>`}`;
}

function Estimated({ reasons }) {
  const { parts } = reasons;
  const steps = useMemo(() => largestFirst(parts.map((part) => ({ name: wordName(part), key: part.position, value: part.value })),
    SHOWN), [reasons]);
  return html`<${Steps} reasons=${reasons} steps=${steps} label="Contribution of each word, and the sum"
    onPick=${({ key }) => key !== undefined && select({ key })} />`;
}

function StackWords({ stack, parts, most, weightOf }) {
  const [tokens, weights] = useMemo(() => {
    const own = parts.filter((part) => part.stack === stack);
    return [own.map(({ token }) => token.replaceAll("\ufffd", "◌")), own.map(weightOf)];
  }, [parts, stack]);
  return html`<${Tokens} tokens=${tokens} weights=${weights} largest=${most} isSigned write=${format}
    label=${`Words${stack ? ` of the ${stack}` : ""} by their contributions`} onPick=${(key) => select({ key })} />`;
}

function ByHead({ reasons }) {
  const map = useMemo(() => headMap(reasons.parts), [reasons]);
  const steps = [{ name: "all heads", value: sum(map.values) }];
  return html`<div class="columns">
    <div><${HeadMap} ...${map} label="Contribution of each head to the answer" /></div>
    <div><${Steps} reasons=${reasons} steps=${steps} label="All heads, the rest, and the sum" /></div></div>`;
}

/** {values, rows, count}: the contribution of each head, one row per layer; layers without attention have no row. */
function headMap(parts) {
  const rowOf = ({ layer, part }) => (part === "cross" ? `cross ${layer}` : String(layer));
  const rows = [...new Set(parts.map(rowOf))];
  const count = 1 + Math.max(...parts.map(({ head }) => head));
  const values = new Float32Array(rows.length * count);
  const places = new Map(rows.map((row, i) => [row, i]));
  for (const part of parts) values[places.get(rowOf(part)) * count + part.head] = part.value;
  return { values, rows, count };
}

function ByLayer({ reasons }) {
  const steps = useMemo(() => reasons.parts.flatMap(({ layer, attention, mlp }) =>
    [{ name: `attn ${layer}`, layer, value: attention }, { name: `mlp ${layer}`, layer, value: mlp }]), [reasons]);
  return html`<${Steps} reasons=${reasons} steps=${steps} label="Contribution of each layer, and the sum"
    onPick=${({ layer }) => layer !== undefined && select({ layer })} />`;
}

function savedParts({ by, parts, rest }) {
  const named = parts.flatMap(({ layer, attention, mlp, part = "", head, stack, position, token, value }) =>
    (by === "layer" ? [[`layer ${layer} attention`, attention], [`layer ${layer} mlp`, mlp]]
      : [[(by === "head" ? `${part} layer ${layer} head ${head}` : `${stack ?? ""} ${position} ${token}`).trim(), value]]));
  const all = [...named, ...Object.entries(rest)];
  return [{ label: "parts", array: { data: Float32Array.from(all, ([, value]) => value), shape: [all.length] }, rows: ["part"],
    columns: all.map(([name]) => name) }];
}
