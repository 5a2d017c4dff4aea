// A word's vector in motion: the additions of words, heads and MLPs as arrows, in one text or several contexts.
import { sidesOfRequest } from "../../core/compare.js";
import { useLook } from "../../core/fetching.js";
import { html, useMemo, useRef } from "../../core/html.js";
import { clamp, inputOf, lackOf, useCapabilities, useHead } from "../../core/model.js";
import { format, indices, percent } from "../../core/numbers.js";
import { useQueryOf } from "../../core/sequences.js";
import { select, useSelection } from "../../core/state.js";
import { useStrongestPair } from "../../core/strongest.js";
import { FieldChoices, FieldSelect } from "../../parts/choices.js";
import { ClipButton } from "../../parts/clip_button.js";
import { Answer } from "../../parts/problem.js";
import { HeadPicker } from "../../parts/shared_bar.js";
import { CopyMenu, SaveMenu } from "../../parts/tools.js";
import { ContextFields, contextsOf, useContexts } from "./contexts.js";
import { Figure } from "./figure.js";
import { Head } from "./head.js";
import { lensBody } from "./layers.js";
import { Controls, usePlayer } from "./player.js";
import { OF_WAY, Scene } from "./scene.js";
import { StepsTable } from "./table.js";
import { measured } from "./way.js";

const LONGEST_LABEL = 22; // characters of a text, in the picture
const SUMMED = { word: ["head"], head: ["key"], one: [] };

export function Arrows() {
  const { motion_show: show, motion_by: by } = useSelection();
  const capabilities = useCapabilities();
  const { part: chosen, layer, head } = useHead();
  const part = show === "contexts" ? capabilities.attention.parts[0] : chosen;
  const fields = { part, vectors: true, sum_over: SUMMED[by], ...(by === "one" ? { layers: [layer], heads: [head] } : {}) };
  const reads = !lackOf(capabilities, "/v1/lens") && part === (capabilities.kind === "encoder" ? "encoder" : "decoder");
  const Shown = show === "contexts" ? InContexts : InText;
  return html`<${Shown} fields=${fields} reads=${reads} layer=${layer} />`;
}

function InText({ fields, reads, layer }) {
  const selection = useSelection();
  const given = sidesOfRequest(inputOf(selection, useCapabilities())).own;
  const query = useQueryOf(fields.part);
  const body = { ...given, query_positions: query, ...fields };
  const choosing = useStrongestPair();
  const canAsk = selection.text !== "" && query !== null && !choosing;
  const answer = useLook(canAsk ? "v1/contributions" : null, body);
  const { entry: lens } = useLook(canAsk && reads ? "v1/lens" : null, lensBody(given, query));
  const entries = useMemo(() => answer.entry && [{ ...answer.entry, lens }], [answer.entry, lens]);
  return html`<${Card} answer=${choosing ?? answer} entries=${entries} body=${body} layer=${layer} />`;
}

function InContexts({ fields, reads, layer }) {
  const { word, texts } = contextsOf(useSelection());
  const answer = useContexts(texts.length && word ? { word, texts, reads, ...fields } : null);
  const body = answer.data && { input: texts[0], query_positions: answer.data[0].query_positions[0], ...fields };
  return html`<${Card} answer=${answer} entries=${answer.data} body=${body} layer=${layer} texts=${texts} />`;
}

function Card({ answer, entries, body, layer, texts = null }) {
  const data = useMeasured(entries, layer, texts);
  const saved = useMemo(() => savedArrays(data), [data]);
  const handle = useRef(null);
  return html`<section class="card">
    <${Head} entry=${texts ? null : entries?.[0]} title=${texts ? "One word in several contexts" : undefined}
      menus=${html`${body?.input && html`<${CopyMenu} route="v1/contributions" body=${body} />`}
        ${entries && html`<${SaveMenu} name="motion" picture=${handle} arrays=${saved} />`}`}
      says="A word’s vector begins as its embedding; every attention head and MLP adds an arrow to it. Another word’s arrow is its
        attention weight × its value × W_O. Put end to end, the arrows lead to the vector from which the next word is read.">
      <${FieldChoices} field="motion_show" label="of"
        choices=${[["one", "this text"], ["contexts", "one word in several contexts"]]} />
      ${optionsOf(texts !== null, useSelection(), useHead())}
    <//>
    ${texts && html`<${ContextFields} /><${HeadPicker} />`}
    <${Answer} answer=${answer} minHeight="100vh">${() => data && html`<${Motion} data=${data} texts=${texts} handle=${handle} />`}<//>
  </section>`;
}

function optionsOf(isMany, { motion_by: by, motion_mlps: mlps }, { layer, head }) {
  const views = [["auto", isMany ? "what sets the contexts apart" : `what ${by === "head" ? "heads" : "other words"} add most`],
    ["largest", "what is added most"], ["parts", "embedding, attention, MLPs"],
    ...(by === "head" || isMany ? [] : [["key", "the chosen key word"]])];
  return html`<label><input type="checkbox" checked=${!mlps} onChange=${(event) => select({ motion_mlps: !event.target.checked })} />${" "}
      without MLPs</label>
    <${FieldChoices} field="motion_by" label="An arrow for each"
      choices=${[["word", "word"], ["head", "head"], ["one", `word, head ${layer}.${head} alone`]]} />
    <${FieldChoices} field="motion_layers" label="Layers"
      choices=${[["sum", "all together"], ["each", "one after another"], ["one", `layer ${layer}`]]} />
    <${FieldChoices} field="motion_space" label="In" choices=${[["plane", "a plane"], ["space", "three dimensions"]]} />
    <${FieldSelect} field="motion_axes" label="Axes" options=${views} />`;
}

function useMeasured(entries, layer, texts) {
  const { motion_layers: layers, motion_axes: axes, motion_space: space, motion_mlps: hasMlps, key } = useSelection();
  const capabilities = useCapabilities();
  return useMemo(() => {
    if (!entries) return null;
    const asked = axes === "auto" ? (entries.length > 1 ? "apart" : "sources") : axes;
    const keyOf = (way) => clamp(key, way.tokens.keys.length);
    const found = measured(entries, { layers, layer, axes: asked, space, key: keyOf, hasMlps });
    found.ways.forEach((way, i) => {
      way.title = texts?.[i] ?? "";
      way.isWhole = hasMlps;
      way.reads = capabilities.kind === "encoder" ? "here" : "next";
      const name = texts ? `${i + 1}: ${cut(way.title)}` : `${way.steps[0].label}, ${hasMlps ? "in this sentence" : "without MLPs"}`;
      way.label = `${name}, ${format(way.endLength, 3)}`;
    });
    return found;
  }, [entries, layers, layer, axes, space, key, hasMlps]);
}

function savedArrays(data) {
  if (data === null) return [];
  return data.ways.map(({ steps, width }, i) => ({
    label: data.ways.length > 1 ? `arrows of text ${i + 1}` : "arrows",
    array: {
      shape: [steps.length, width],
      get data() {
        return Float32Array.from(steps.flatMap(({ vector }) => Array.from(vector)));
      },
    },
    rows: steps.map(({ what, layer }) => (layer === null || layer === undefined ? what : `layer ${layer}: ${what}`)),
    columns: indices(width),
  }));
}

function Motion({ data, texts, handle }) {
  const { motion_space: space, motion_yaw: yaw, motion_pitch: pitch } = useSelection();
  const count = Math.max(...data.ways.map((way) => way.steps.length));
  const player = usePlayer(count);
  const longest = data.ways.find((way) => way.steps.length === count);
  const named = space === "plane" ? "plane" : "space";
  const canvas = { get current() { return handle.current.canvas; } };
  const sceneAt = (progress) => (context, size) => new Scene(context, size, data, { space, yaw, pitch }).draw(progress);
  const drawAt = (progress) => handle.current.paint(sceneAt(progress));
  return html`<${Figure} sceneAt=${sceneAt} data=${data} player=${player} summary=${summaryOf(data, named)} handle=${handle} />
    <p class="hint">Thick: the part of an arrow in this ${named}. Thin line to the bar: its true length; the rest points out of
      the ${named}.${data.leftOut && html` <span id="motion-left-out">Of all words ${data.leftOut.what} adds most, but the axes leave
      it out: ${data.leftOut.key === 0 ? "the first word often gets unused weight, and would hide the contributions of the others"
      : "they are of what other words add"}.</span>`}</p>
    <${Controls} player=${player} count=${count} sentence=${(done) => sentenceOf(longest, done, count)} />
    <${ClipButton} canvas=${canvas} drawAt=${drawAt} name="motion" onStart=${() => player.seek(player.progress.value)}
      onEnd=${() => drawAt(player.progress.value)} />
    ${texts && html`<${Legend} ways=${data.ways} />`}
    <${Facts} data=${data} named=${named} />
    <details class="motion-steps" open aria-label="All steps"><summary>All steps as ${data.ways.length > 1 ? "tables" : "a table"}</summary>
      ${data.ways.map((way) => html`<${StepsTable} key=${way.title} way=${way} player=${player} space=${named} />`)}
    </details>`;
}

const cut = (text) => (text.length > LONGEST_LABEL ? `${text.slice(0, LONGEST_LABEL)}…` : text);

function sentenceOf(way, done, count) {
  const end = way.isWhole ? "from which the next word is read" : "without the MLPs";
  if (done > count) return `All ${count} arrows at once: their sum is the vector ${end}.`;
  if (done === 0) return "Nothing is added yet.";
  const { layer, kind, what, size, left, reads } = way.steps[done - 1];
  const place = layer === null || layer === undefined || kind === "state" ? "" : `layer ${layer}, `;
  const about = way.title ? `In ‘${way.title}’: ` : "";
  const read = reads ? ` The lens reads here: ${reads.join(", ")}.` : "";
  return `${about}Step ${done} of ${count}: ${place}${what}, length ${format(size)}; ${format(left)} from the end.${read}`;
}

function Facts({ data, named }) {
  const { ways, share, apart, difference } = data;
  const [{ width, endLength, mlps, steps }] = ways;
  const rounded = Math.max(...ways.map((way) => way.rounded));
  const { motion_mlps: hasMlps } = useSelection();
  const [most] = largestOf(steps, 1);
  const ofMost = most && most.size * Math.sqrt(most.share);
  return html`<p class="motion-facts">${most && `The longest arrow is ${most.what}: ${format(most.size)} long, ${format(ofMost)} in the ${
    named}. `}The ${named} contains <b class="number" id="motion-share">${percent(share)}</b> of the squared lengths
    of all additions; the rest is in the other ${width - data.axes.length} of ${width} directions. The sum
    of the arrows differs by <b class="number" id="motion-difference">${format(difference, 3)}</b> from the model’s own
    vector${!hasMlps && " less the MLPs"}, of length <span class="number" id="motion-length">${
      format(endLength)}</span>${ways.length > 1 && " in the first text"}.
    ${!hasMlps && ` The MLPs, together ${format(mlps)} long, are left out.`}
    ${ways.length > 1 && html` It also contains
      ${" "}<b class="number" id="motion-apart">${percent(apart)}</b> of the final differences between the contexts.`}
    ${rounded > 1e-4 && ` The model rounds its sums; the sum of these roundings is a separate arrow of length ${format(rounded, 3)}.`}</p>`;
}

const largestOf = (steps, count) => steps.slice(1).sort((a, b) => b.size - a.size).slice(0, count);

const Legend = ({ ways }) => html`<ul class="motion-legend">${ways.map((way, i) =>
  html`<li><i class=${OF_WAY[i]} aria-hidden="true"></i>${i + 1}: ${way.title}</li>`)}</ul>`;

function summaryOf({ ways, share }, named) {
  const of = ({ steps, title, endLength }) => {
    return `${title ? `${title}: ` : ""}${steps.length} arrows lead to a vector of length ${format(endLength)}; the longest are ${
      largestOf(steps, 3).map((step) => `${step.what} (${format(step.size)})`).join(", ")}.`;
  };
  return `${ways.map(of).join(" ")} The ${named} holds ${percent(share)} of their squared lengths.`;
}
