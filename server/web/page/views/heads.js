// Six scores of each head, for all heads at once, so that unusual heads are visible.
import { OTHER, useDifferenceName } from "../core/compare.js";
import { useLookInParts } from "../core/fetching.js";
import { html, useMemo } from "../core/html.js";
import { useCapabilities, useHead, useInput } from "../core/model.js";
import { counted, descending } from "../core/numbers.js";
import { select, useSelection } from "../core/state.js";
import { useStore } from "../core/store.js";
import { theme } from "../core/theme.js";
import { Bars } from "../parts/bars.js";
import { FieldChoices, Select } from "../parts/choices.js";
import { Answer } from "../parts/problem.js";
import { Term } from "../parts/term.js";
import { ToolRow } from "../parts/tool_row.js";
import { Card } from "../parts/tools.js";
import { MEASURES, headsOf, measureNamed } from "./heads/measures.js";
import { Scatter, layerColour, markPath } from "./heads/scatter.js";

const NUM_STRONGEST = 5;

export function View() {
  const selection = useSelection();
  const { part, layers } = useHead();
  // Cross-attention heads have no previous or first token: the server measures self-attention only.
  const ownPart = part === "cross" ? "decoder" : part;
  const isOfText = selection.heads_on === "text";
  const given = useInput();
  const body = { ...(isOfText ? given : withoutText(given)), part: ownPart };
  const some = layers.length > 1 ? { ...body, layers: layers.slice(0, Math.ceil(layers.length / 4)) } : null;
  const answer = useLookInParts(isOfText && !selection.text ? null : "v1/heads", body, some);
  return html`<div class="heads">
    <p>Every point is one <${Term} of="head" />. Find outliers, then click one to see its pattern.</p>
    <${ToolRow}>
      <${FieldChoices} field="heads_on" label="They read"
        choices=${[["random", "random tokens, twice"], ["text", "the text above"]]} />
      <${AxisPicker} field="heads_x" label="x axis" value=${measureNamed(selection.heads_x, "previous_token")} />
      <${AxisPicker} field="heads_y" label="y axis" value=${measureNamed(selection.heads_y, "induction")} />
    <//>
    ${part === "cross" && html`<p class="hint">The scores are of the decoder's attention to its own words: cross-attention
      has no previous and no first token of the same text.</p>`}
    <${Answer} answer=${answer} minHeight="100vh">${() =>
      html`<${Found} entry=${answer.entry} isPart=${answer.isPart} body=${body} part=${ownPart} />`}<//>
  </div>`;
}

function withoutText({ input, decoder_input: _, [OTHER]: other, ...changes }) {
  return other ? { ...changes, [OTHER]: withoutText(other) } : changes;
}

const AxisPicker = ({ field, ...more }) => html`<${Select} id=${field} ...${more} onPick=${(name) => select({ [field]: name })}
  options=${Object.entries(MEASURES).map(([name, { title }]) => [name, title])} />`;

function Found({ entry, isPart, body, part }) {
  const selection = useSelection();
  const capabilities = useCapabilities();
  const chosen = useHead();
  const difference = useDifferenceName(": ");
  const heads = useMemo(() => headsOf(entry), [entry]);
  const x = measureNamed(selection.heads_x, "previous_token");
  const y = measureNamed(selection.heads_y, "induction");
  const open = ({ layer, head }) => select({ view: "attention", part, layer, head });
  const array = { data: entry.arrays.scores.data, shape: [heads.length, entry.measures.length] };
  const rows = heads.map(({ layer, head }) => `layer ${layer} head ${head}`);
  const lack = [x, y]
    .filter((name) => heads.every(({ scores }) => !Number.isFinite(scores[name])))
    .map((name) => MEASURES[name].lack)[0];
  return html`<div class="heads-found">
    <${Card} title=${`${MEASURES[y].title} against ${MEASURES[x].title.toLowerCase()}${difference}`}
        copy=${{ route: "v1/heads", body }} save=${{ name: "heads",
          arrays: [{ label: "all scores", array, rows, columns: entry.measures }] }}>
      ${lack
        ? html`<p class="lack">This text gives no such score: ${lack}. Let the heads read random tokens, or
          write ${capabilities.kind === "encoder-decoder" && part === "decoder" ? "more for the decoder to read"
            : "another text"}.</p>`
        : html`<${Scatter} heads=${heads} x=${x} y=${y} isDifference=${entry.isDifference} chosen=${chosen}
          numLayers=${chosen.numLayers} onPick=${open} />
        <${LayerLegend} layers=${chosen.layers} numLayers=${chosen.numLayers} />`}
      <p class="hint">${
        entry.repeat_length
          ? `Means over ${entry.num_sequences} sequences of ${entry.repeat_length} random tokens, each written ` +
            "twice: only the repetition can be predicted."
          : `Means over the ${counted((part === "encoder" ? (entry.encoder_tokens ?? entry.tokens)
            : entry.tokens).length, "token")} of the text.`
      }
        ${" "}<b>2.3</b> is layer 2, head 3; the ring is the chosen head.</p>
    <//>
    ${!isPart && html`<section class="heads-measures" aria-label="The measures and their strongest heads">
      ${Object.keys(MEASURES).map((name) => html`<${Measure} key=${name} name=${name} heads=${heads} isDifference=${entry.isDifference}
        chosen=${chosen} onOpen=${open} />`)}
    </section>`}
  </div>`;
}

function LayerLegend({ layers, numLayers }) {
  const mode = useStore(theme);
  const draw = (layer) => (canvas) => {
    if (!canvas) return;
    const context = canvas.getContext("2d");
    context.setTransform(2, 0, 0, 2, 0, 0);
    context.clearRect(0, 0, 16, 16);
    context.fillStyle = layerColour(layer, numLayers, mode);
    markPath(context, layer, 8, 8, 5);
    context.fill();
  };
  return html`<ul class="legend heads-legend" aria-label="Layers">${layers.map(
    (layer) =>
      html`<li key=${`${layer} ${mode}`}><canvas width="32" height="32" aria-hidden="true"
        ref=${draw(layer)}></canvas>layer ${layer}</li>`,
  )}</ul>`;
}

function Measure({ name, heads, isDifference, chosen, onOpen }) {
  const { title, about, formula, source, unit, most, lack } = MEASURES[name];
  const known = heads.filter(({ scores }) => Number.isFinite(scores[name]));
  const strongest = Array.from(
    descending(known.map(({ scores }) => (isDifference ? Math.abs(scores[name]) : scores[name]))).slice(0, NUM_STRONGEST),
    (i) => known[i],
  );
  return html`<${Card} title=${title}>
    <p class="heads-about">${about}</p>
    <p class="formula">${formula}</p>
    ${strongest.length === 0
      ? html`<p class="lack">It has no value on this text: ${lack}.</p>`
      : html`<${Bars} columns=${["head", unit]} largest=${isDifference ? undefined : (most ?? undefined)}
        onPick=${(i) => onOpen(strongest[i])} rows=${strongest.map(({ layer, head, scores }) => ({
          key: `${layer}.${head}`, name: `layer ${layer} head ${head}`, value: scores[name],
          isOn: layer === chosen.layer && head === chosen.head, title: "Open this head" }))} />`}
    <p class="hint"><a href=${source[1]} rel="noreferrer" target="_blank">${source[0]}</a></p>
  <//>`;
}
