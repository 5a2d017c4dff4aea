// A word's vector in motion: the additions of each word, head and MLP, as arrows in a plane or in space, in one text
// or several contexts.
import { useAnswer, look } from "../core/fetching.js";
import { html, useMemo, useRef } from "../core/html.js";
import { clamp, inputOf, shownToken, useCapabilities, useHead } from "../core/model.js";
import { format, percent } from "../core/numbers.js";
import { useQueryOf } from "../core/sequences.js";
import { select, useSelection } from "../core/state.js";
import { useStore } from "../core/store.js";
import { useStrongestPair } from "../core/strongest.js";
import { Choices } from "../parts/choices.js";
import { ClipButton } from "../parts/clip_button.js";
import { Answer } from "../parts/problem.js";
import { HeadPicker } from "../parts/shared_bar.js";
import { CopyMenu, SaveMenu } from "../parts/tools.js";
import { ContextFields, contextsOf, useContexts } from "./moves/contexts.js";
import { Figure } from "./moves/figure.js";
import { Controls, secondsOf, usePlayer } from "./moves/player.js";
import { OF_WAY, shownScene } from "./moves/scene.js";
import { StepsTable } from "./moves/table.js";
import { measured } from "./moves/way.js";

const LONGEST_LABEL = 22; // characters of a text, in the picture
const SUMMED = { word: ["head"], head: ["key"], one: [] };

export function View() {
  const selection = useSelection();
  const isMany = selection.motion_show === "contexts";
  return isMany ? html`<${InContexts} />` : html`<${InText} />`;
}

/** The request fields for each text: vectors by word, by head, or by word of one head. */
function useAsked(part, layer, head) {
  const { motion_by: by } = useSelection();
  return { part, vectors: true, sum_over: SUMMED[by], ...(by === "one" ? { layers: [layer], heads: [head] } : {}) };
}

/** One word of the shared text. */
function InText() {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const { part, layer, head } = useHead();
  const query = useQueryOf(part);
  const body = { ...inputOf(selection, capabilities), query_positions: query, ...useAsked(part, layer, head) };
  const choosing = useStrongestPair();
  const answer = useAnswer(look, selection.text !== "" && query !== null && !choosing ? "v1/contributions" : null, body);
  return html`<${Card} answer=${choosing ?? answer} body=${body} layer=${layer} />`;
}

/** One word in several texts. */
function InContexts() {
  const selection = useSelection();
  const { parts } = useCapabilities().attention;
  const { layer, head } = useHead();
  const { word, texts } = contextsOf(selection);
  const asked = useAsked(parts[0], layer, head);
  const answer = useContexts(texts.length && word ? { word, texts, ...asked } : null);
  const body = answer.data && { input: texts[0], query_positions: answer.data[0].query_positions[0], ...asked };
  return html`<${Card} answer=${answer} body=${body} layer=${layer} texts=${texts} />`;
}

function Card({ answer, body, layer, texts = null }) {
  const { motion_show: show } = useSelection();
  const data = useMeasured(answer.data, layer, texts);
  const saved = useMemo(() => savedArrays(data), [data]);
  const handle = useRef(null);
  return html`<section class="card">
    <header><h2>${texts ? "One word in several contexts" : html`How ${answer.data
      ? html`<${Mover} entry=${answer.data[0]} />` : "this word"} moves`}</h2>
      ${body?.input && html`<${CopyMenu} route="v1/contributions" body=${body} />`}
      ${answer.data && html`<${SaveMenu} name="motion" picture=${handle} arrays=${saved} />`}</header>
    <p class="hint">A word is a vector: it begins as the word’s embedding, and every attention head and MLP adds an arrow to it.
      What another word gives is its attention weight × its value × W_O. The arrows, put end to end, lead to the
      vector for the rest of the model.</p>
    <div class="toolbar">
      <${Choices} label="Look at" value=${show} onPick=${(value) => select({ motion_show: value })}
        choices=${[["one", "this text"], ["contexts", "one word in several contexts"]]} />
      <${Options} isMany=${texts !== null} />
    </div>
    ${texts && html`<${ContextFields} /><${HeadPicker} />`}
    <${Answer} answer=${answer} minHeight="20rem">${() => html`<${Motion} data=${data} texts=${texts} handle=${handle} />`}<//>
  </section>`;
}

function Mover({ entry }) {
  const tokens = entry.part === "encoder" ? (entry.encoder_tokens ?? entry.tokens) : entry.tokens;
  const position = entry.query_positions[0];
  return html`<code class="word query">${shownToken(tokens[position])}<sub>${position}</sub></code>`;
}

/** Controls for the sources of the arrows and for the axes. */
function Options({ isMany }) {
  const { motion_by: by, motion_layers: layers, motion_space: space, motion_axes: axes } = useSelection();
  const { layer, head } = useHead();
  const pick = (field) => (value) => select({ [field]: value });
  const views = [["auto", isMany ? "what sets the contexts apart" : `what ${by === "head" ? "heads" : "other words"} add most`],
    ["largest", "what is added most"], ["parts", "embedding, attention, MLPs"],
    ...(by === "head" || isMany ? [] : [["key", "the chosen key word"]])];
  return html`<${Choices} label="An arrow for each" value=${by} onPick=${pick("motion_by")}
      choices=${[["word", "word"], ["head", "head"], ["one", `word, head ${layer}.${head} alone`]]} />
    <${Choices} label="Layers" value=${layers} onPick=${pick("motion_layers")}
      choices=${[["sum", "all together"], ["each", "one after another"], ["one", `layer ${layer}`]]} />
    <${Choices} label="In" value=${space} onPick=${pick("motion_space")}
      choices=${[["plane", "a plane"], ["space", "three dimensions"]]} />
    <label>Axes <select value=${axes} onChange=${(event) => pick("motion_axes")(event.target.value)}>
      ${views.map(([value, name]) => html`<option value=${value}>${name}</option>`)}</select></label>`;
}

/** The ways of the answers, measured by way.js in the selected axes; null before there are answers. */
function useMeasured(entries, layer, texts) {
  const { motion_layers: layers, motion_axes: axes, motion_space: space, key } = useSelection();
  return useMemo(() => {
    if (entries === null) return null;
    const asked = axes === "auto" ? (entries.length > 1 ? "apart" : "sources") : axes;
    const keyOf = (way) => clamp(key, way.tokens.keys.length);
    const found = measured(entries, { layers, layer, axes: asked, space, key: keyOf });
    found.ways.forEach((way, i) => {
      way.title = texts?.[i] ?? "";
      way.label = `${i + 1}: ${cut(way.title)}`;
    });
    return found;
  }, [entries, layers, layer, axes, space, key]);
}

/** The vectors of the steps of each way, for saving. */
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
    columns: Array.from({ length: width }, (_, number) => String(number)),
  }));
}

/** The arrows: picture, controls, the sentence about them, and the table. */
function Motion({ data, texts, handle }) {
  const { motion_space: space } = useSelection();
  const count = Math.max(...data.ways.map((way) => way.steps.length));
  const player = usePlayer(count);
  const longest = data.ways.find((way) => way.steps.length === count);
  const sentence = (done) => sentenceOf(longest, done, count);
  const named = space === "plane" ? "plane" : "space";
  return html`<${Figure} data=${data} player=${player} seconds=${secondsOf(count)} summary=${summaryOf(data, named)}
      handle=${handle} />
    ${data.leftOut && html`<p class="hint" id="motion-left-out">Of all words ${data.leftOut.what} adds most, but the axes leave it
      out: ${data.leftOut.key === 0
      ? "the first word often gets unused weight, and would hide the contributions of the others"
      : "they are of what other words add"}.</p>`}
    <${Controls} player=${player} count=${count} sentence=${sentence} />
    <${Clip} player=${player} />
    ${texts && html`<${Legend} ways=${data.ways} />`}
    <${Facts} data=${data} named=${named} />
    <details class="motion-steps" open aria-label="All steps"><summary>All steps as ${data.ways.length > 1 ? "tables" : "a table"}</summary>
      ${data.ways.map((way) => html`<${StepsTable} key=${way.title} way=${way} player=${player} space=${named} />`)}
    </details>`;
}

/** The button that records the arrows. */
function Clip({ player }) {
  const scene = useStore(shownScene);
  return scene && html`<${ClipButton} canvas=${{ current: scene.canvas }} drawAt=${(progress) => scene.drawAt(progress)}
    seconds=${Math.round(scene.seconds)} name="motion" onStart=${() => player.seek(player.progress.value)}
    onEnd=${() => scene.drawAt(player.progress.value)} />`;
}

const cut = (text) => (text.length > LONGEST_LABEL ? `${text.slice(0, LONGEST_LABEL)}…` : text);

/** A sentence about the last added step. */
function sentenceOf(way, done, count) {
  if (done > count) return `All ${count} arrows at once: their sum is the vector for the rest of the model.`;
  if (done === 0) return "Nothing is added yet.";
  const step = way.steps[done - 1];
  const place = step.layer === null || step.layer === undefined || step.kind === "state" ? "" : `layer ${step.layer}, `;
  const about = way.title ? `In ‘${way.title}’: ` : "";
  return `${about}Step ${done} of ${count}: ${place}${step.what}, length ${format(step.size)}; ${format(step.left)} from the end.`;
}

function Facts({ data, named }) {
  const { ways, share, apart, difference } = data;
  const rounded = Math.max(...ways.map((way) => way.rounded));
  const numbers = ways[0].width;
  return html`<p class="motion-facts">The ${named} holds <b class="number" id="motion-share">${percent(share)}</b> of the squared
    lengths of what is added; the rest is in the other ${numbers - data.axes.length} directions of ${numbers}. The arrows’ sum is
    ${" "}<b class="number" id="motion-difference">${format(difference, 3)}</b> from the model’s own vector, whose length is
    ${" "}<span class="number" id="motion-length">${format(ways[0].endLength)}</span>${ways.length > 1 ? " in the first text" : ""}.
    ${ways.length > 1 && html` Of what sets the contexts apart at the end it holds
      ${" "}<b class="number" id="motion-apart">${percent(apart)}</b>.`}
    ${rounded > 1e-4 && ` The model rounds its sums as it goes: that is an arrow of its own, of length ${format(rounded, 3)}.`}</p>`;
}

const Legend = ({ ways }) => html`<ul class="motion-legend">${ways.map((way, i) =>
  html`<li><i class=${OF_WAY[i]} aria-hidden="true"></i>${i + 1}: ${way.title}</li>`)}</ul>`;

/** The picture's content in words, for screen readers. */
function summaryOf({ ways, share }, named) {
  const of = ({ steps, title, endLength }) => {
    const largest = [...steps.slice(1)].sort((a, b) => b.size - a.size).slice(0, 3);
    return `${title ? `${title}: ` : ""}${steps.length} arrows lead to a vector of length ${format(endLength)}; the longest are ${
      largest.map((step) => `${step.what} (${format(step.size)})`).join(", ")}.`;
  };
  return `${ways.map(of).join(" ")} The ${named} holds ${percent(share)} of their squared lengths.`;
}
