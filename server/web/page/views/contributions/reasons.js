// Reasons for the model's answer: components of the difference between the logits of the answer and the runner-up, by
// word, head or layer. The answer is the next token, or with a classification head a label, or the score of two
// texts.
import { interventionsOf } from "../../core/changes.js";
import { useJson } from "../../core/fetching.js";
import { html, useMemo, useRef, useState } from "../../core/html.js";
import { lackOf, shownToken, textsOf, useCapabilities, useHead } from "../../core/model.js";
import { counted, format, largest, percent } from "../../core/numbers.js";
import { saved } from "../../core/place.js";
import { select, useSelection } from "../../core/state.js";
import { Choices } from "../../parts/choices.js";
import { Field } from "../../parts/field.js";
import { ColourScale, Matrix, scaleOf } from "../../parts/matrix.js";
import { Answer } from "../../parts/problem.js";
import { spaced } from "../../parts/target_field.js";
import { Tokens } from "../../parts/tokens.js";
import { CopyMenu, SaveMenu } from "../../parts/tools.js";
import { Waterfall } from "../../parts/waterfall.js";

const SHOWN = 12; // words of the waterfall
const NAMES = { word: "word", head: "head", layer: "layer" };
const total = (values) => values.reduce((sum, value) => sum + value, 0);

/** Whether the model answers with a label or a score instead of a token. */
export const answersWithLabels = (capabilities) =>
  lackOf(capabilities, "/v1/next") !== null && lackOf(capabilities, "/v1/classify") === null;

/** {route, body} of the answer and its reasons, or null if the model does not support them. */
function requestOf(selection, capabilities, query, part) {
  const { contributions_by: by, contributions_verify: verify, contributions_pair: pair } = selection;
  const explain = { by, verify: Number(verify) };
  if (answersWithLabels(capabilities)) {
    if (pair === "" || lackOf(capabilities, "/v1/score")) return { route: "v1/classify", body: { input: selection.text, explain } };
    return { route: "v1/score", body: { text_1: selection.text, text_2: pair, explain } };
  }
  const isOther = part === "encoder" && capabilities.kind !== "encoder"; // only the decoder predicts
  if (lackOf(capabilities, "/v1/next") || isOther) return null;
  return { route: "v1/next", body: { ...textsOf(selection, capabilities), position: query, num_tokens: 6, explain } };
}

/** query: the position of the prediction, null until it is known. */
export function Reasons({ query, part }) {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const request = requestOf(selection, capabilities, query, part);
  const canAsk = request !== null && selection.text !== "" && (request.route !== "v1/next" || query !== null);
  const picture = useRef(null);
  const answer = useJson(canAsk ? request.route : null, request?.body);
  if (request === null) return null;
  const entry = answer.data?.data[0];
  const { contributions_by: by, contributions_verify: verify } = selection;
  const isRefused = answer.error?.code === "not_explainable";
  return html`<section class="card contributions-rows reasons"><header><h2>${TITLES[request.route]}</h2>
      <${Choices} label="Split by" value=${by} onPick=${(value) => select({ contributions_by: value })}
        choices=${Object.entries(NAMES)} />
      <${Choices} label="Take out" value=${verify} onPick=${(value) => select({ contributions_verify: value })}
        choices=${[["0", "nothing"], ["3", "3 words"], ["8", "8 words"]]} />
      <${CopyMenu} route=${request.route} body=${request.body} />
      ${entry && html`<${SaveMenu} picture=${picture} name="reasons" arrays=${savedParts(entry.reasons)} />`}</header>
    ${answersWithLabels(capabilities) && html`<${PairField} lack=${lackOf(capabilities, "/v1/score")} />`}
    ${interventionsOf(selection, capabilities).length > 0 && html`<p class="hint">This card shows the unchanged model.</p>`}
    ${isRefused ? html`<p class="lack">${refusalOf(answer.error)}</p>`
      : html`<${Answer} answer=${answer}>${() => html`<${Told} entry=${entry} handle=${picture} />`}<//>`}
  </section>`;
}

/** The server's error text without sentences about a field that the page does not offer. */
const refusalOf = ({ message }) =>
  message.replace(/^explain: (.)/, (_, letter) => letter.toUpperCase()).replace(/; [^;]* accepted\.$/, ".");

const TITLES = { "v1/next": "Why this word?", "v1/classify": "Why this label?", "v1/score": "Why this score?" };

/** The second text of a pair, for a model with a head that scores pairs. */
function PairField({ lack }) {
  const { contributions_pair: pair } = useSelection();
  if (lack || saved) return null;
  return html`<div class="toolbar"><label class="pair-field">Second text of a pair
    <${Field} type="text" value=${pair} placeholder="none: only the text" isLive
      onTake=${(value) => select({ contributions_pair: value })} /></label></div>`;
}

const nameOf = ({ option, label, token }) => option ?? label ?? spaced(token);

function Told({ entry, handle }) {
  const { reasons } = entry;
  const { target, versus, value, sum, by } = reasons;
  const Drawn = { word: ByWord, head: ByHead, layer: ByLayer }[by];
  return html`<p class="hint"><code class="word">${nameOf(target)}</code> ${chanceOf(entry)}${versus && html`, rather
      than <code class="word">${nameOf(versus)}</code>`}: its logit is${" "}
      <b id="reasons-value">${format(value)}</b>${versus && " larger"}. All parts together are <b id="reasons-sum">${
      format(sum)}</b>: green speaks for it, pink against it.</p>
    <${Drawn} reasons=${reasons} handle=${handle} />
    ${reasons.verify && html`<${Verified} rows=${reasons.verify} value=${value} />`}`;
}

function chanceOf({ score, probs, temperatures }) {
  if (score !== undefined) return `scores ${format(score)}`;
  return probs ? `has ${format(Math.max(...probs))}` : percent(temperatures[0].tokens[0].probability);
}

const wordName = ({ token, position, stack }) => `${shownToken(token)} (${stack === "encoder" ? "encoder " : ""}${position})`;
const restOf = (reasons) => Object.entries(reasons.rest).map(([name, value]) => ({ name, value }));

/** The parts and the rest as steps to the sum. */
function Steps({ reasons, steps, label, onPick, handle }) {
  const all = useMemo(() => [...steps, ...restOf(reasons)], [reasons]);
  return html`<${Waterfall} steps=${all} total=${{ name: reasons.versus ? "difference" : "logit", value: reasons.sum }}
    label=${label} handle=${handle} onPick=${onPick} />`;
}

function ByWord({ reasons, handle }) {
  const { parts } = reasons;
  const stacks = [...new Set(parts.map(({ stack }) => stack))];
  const most = Math.max(...parts.map(({ value }) => Math.abs(value)), 1e-30);
  const steps = useMemo(() => {
    const places = largest(parts.map(({ value }) => Math.abs(value)), SHOWN);
    const shown = places.map((place) => ({ name: wordName(parts[place]), key: parts[place].position, value: parts[place].value }));
    const others = parts.length - places.length;
    const left = total(parts.map(({ value }) => value)) - total(shown.map(({ value }) => value));
    return others ? [...shown, { name: counted(others, "other"), value: left }] : shown;
  }, [reasons]);
  return html`${stacks.map((stack) => html`<${StackWords} key=${stack} stack=${stack} parts=${parts} most=${most} />`)}
    <${Steps} reasons=${reasons} steps=${steps} label="Contribution of each word, and the sum" handle=${handle}
      onPick=${({ key }) => key !== undefined && select({ key })} />`;
}

function StackWords({ stack, parts, most }) {
  const [tokens, weights] = useMemo(() => {
    const own = parts.filter((part) => part.stack === stack);
    return [own.map(({ token }) => token.replaceAll("\ufffd", "◌")), own.map(({ value }) => value)];
  }, [parts, stack]);
  return html`<${Tokens} tokens=${tokens} weights=${weights} largest=${most} isSigned write=${format}
    label=${`Words${stack ? ` of the ${stack}` : ""} by their contributions`} onPick=${(key) => select({ key })} />`;
}

function ByHead({ reasons, handle }) {
  const [hovered, setHovered] = useState(null);
  const { values, rows, columns } = useMemo(() => headMap(reasons.parts), [reasons]);
  const { layer, head } = useHead();
  const selected = useMemo(() => ({ row: rows.indexOf(String(layer)), column: head }), [rows, layer, head]);
  const describe = (row, column) => `layer ${rows[row]}, head ${column}: ${format(values[row * columns.length + column])}`;
  const pick = ({ row, column }) => select({ layer: Number(rows[row].split(" ").at(-1)), head: column });
  const steps = [{ name: "all heads", value: total(reasons.parts.map(({ value }) => value)) }];
  return html`<div class="columns"><div>
      <${Matrix} values=${values} rowNames=${rows} columnNames=${columns} rowTitle="layer" columnTitle="head" rowColour="ink"
        columnColour="ink" square=${false} maxCell=${44} kind="diverging" label="Contribution of each head to the answer"
        selected=${selected} hovered=${hovered} onHover=${setHovered} handle=${handle} onPick=${pick} describe=${describe} />
      <${ColourScale} ...${scaleOf(values, "diverging")} /></div>
    <div><${Steps} reasons=${reasons} steps=${steps} label="All heads, the rest, and the sum" /></div></div>`;
}

/** {values, rows, columns}: the contribution of each head, one row per layer; layers without attention have no row. */
function headMap(parts) {
  const rowOf = ({ layer, part }) => (part === "cross" ? `cross ${layer}` : String(layer));
  const rows = [...new Set(parts.map(rowOf))];
  const columns = Array.from({ length: 1 + Math.max(...parts.map(({ head }) => head)) }, (_, head) => String(head));
  const values = new Float32Array(rows.length * columns.length);
  const places = new Map(rows.map((row, i) => [row, i]));
  for (const part of parts) values[places.get(rowOf(part)) * columns.length + part.head] = part.value;
  return { values, rows, columns };
}

function ByLayer({ reasons, handle }) {
  const steps = useMemo(() => reasons.parts.flatMap(({ layer, attention, mlp }) =>
    [{ name: `attn ${layer}`, layer, value: attention }, { name: `mlp ${layer}`, layer, value: mlp }]), [reasons]);
  return html`<${Steps} reasons=${reasons} steps=${steps} label="Contribution of each layer, and the sum" handle=${handle}
    onPick=${({ layer }) => layer !== undefined && select({ layer })} />`;
}

/** The predicted result of removing the most important words next to the model's measured result. */
function Verified({ rows, value }) {
  return html`<table class="plain-table"><caption>Without a word, the prediction from its part and the measured result;
      with all words ${format(value)}. Where they differ, the other words' parts changed too.</caption>
    <thead><tr><th scope="col">without</th><th scope="col">predicted</th><th scope="col">measured</th></tr></thead>
    <tbody>${rows.map(({ words, predicted, measured }) => html`<tr><th scope="row">${
      words.length > 1 ? `all ${words.length}` : html`<code>${words.map(wordName).join()}</code>`}</th>
      <td class="number">${format(predicted)}</td><td class="number">${format(measured)}</td></tr>`)}</tbody></table>`;
}

function savedParts({ by, parts, rest }) {
  const named = parts.flatMap((part) => {
    if (by === "layer") return [[`layer ${part.layer} attention`, part.attention], [`layer ${part.layer} mlp`, part.mlp]];
    if (by === "head") return [[`${part.part ?? ""} layer ${part.layer} head ${part.head}`.trim(), part.value]];
    return [[`${part.stack ?? ""} ${part.position} ${part.token}`.trim(), part.value]];
  });
  const all = [...named, ...Object.entries(rest)];
  return [{ label: "parts", array: { data: Float32Array.from(all, ([, value]) => value), shape: [all.length] }, rows: ["part"],
    columns: all.map(([name]) => name) }];
}
